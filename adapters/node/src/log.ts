/** Lines of JSON on standard error: types, places and ids, never what a person or a provider said (I22). */

const LEVELS = ["debug", "info", "warning", "error"] as const;
export type Level = (typeof LEVELS)[number];
type Facts = Readonly<Record<string, string | number | boolean>>;

let least: number = LEVELS.indexOf("info");

export function isLevel(text: string): text is Level {
  return (LEVELS as readonly string[]).includes(text);
}

export function setLevel(level: Level): void {
  least = LEVELS.indexOf(level);
}

export function log(level: Level, event: string, facts: Facts = {}): void {
  if (LEVELS.indexOf(level) < least) return;
  process.stderr.write(`${JSON.stringify({ time: new Date().toISOString(), level, event, ...facts })}\n`);
}

/** An error's type and where it was thrown, without its text, which may hold anything. */
export function describe(error: unknown): string {
  if (!(error instanceof Error)) return typeof error;
  const place = /\n\s+at (?:.*\()?.*\/([^/]+:\d+):\d+\)?/.exec(error.stack ?? "")?.[1];
  const name = error.constructor.name;
  return place === undefined ? name : `${name} at ${place}`;
}
