/** Text of events: what replaces control characters, and where a long delta is cut (events, Bounds and rule 8). */

// Control characters other than tab and newline.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/gu;
// Half of a pair: no character, and not to be written as UTF-8.
const LONE_SURROGATE = /\p{Surrogate}/gu;
const REPLACEMENT = "\ufffd";

/** `text` with everything replaced that must not be shown; never a reason to fail a run. */
export function cleaned(text: string): string {
  return text.replace(CONTROL, REPLACEMENT).replace(LONE_SURROGATE, REPLACEMENT);
}

/** Pieces of `text`, in order, each at most `limit` bytes of UTF-8 (at least 4), no character cut. */
export function* split(text: string, limit: number): Generator<string> {
  const bytes = Buffer.from(text, "utf8");
  for (let start = 0; start < bytes.length;) {
    let end = Math.min(start + limit, bytes.length);
    // 0b10xxxxxx continues a character: the piece ends before the character it belongs to.
    while (end < bytes.length && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
    yield bytes.toString("utf8", start, end);
    start = end;
  }
}
