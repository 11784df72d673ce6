/** Plain conversation: shows that it knows the earlier turns, out of committed thread state alone. */

import { createHash } from "node:crypto";

import type { EventDraft } from "../../gen/harness/event/v1/event_pb.js";
import { SideEffectStatus } from "../../gen/harness/common/v1/error_pb.js";
import { HarnessError } from "../errors.js";
import type { Turn } from "../host/contract.js";
import { describe, log } from "../log.js";
import * as events from "./events.js";
import { isPause, type Pause } from "./pause.js";

export const CODEC = "reference_node.v1";
const MAX_REMEMBERED_CHARACTERS = 200;

/** What is kept of a conversation: how many turns it had, what was said last, and what it waits for. */
export interface Memory {
  readonly turns: number;
  readonly said: string;
  readonly pause?: Pause;
}

export const NOTHING: Memory = { turns: 0, said: "" };

/** The committed state; nothing without one. */
export async function recall(turn: Turn): Promise<Memory> {
  if (turn.threadRevision === 0) return NOTHING;
  const head = await turn.thread.loadHead();
  if (head === undefined) throw broken("missing");
  const last = head.parts.at(-1);
  // Only turns that leave no state (bursts, scripts) came before.
  if (last === undefined) return NOTHING;
  if (head.codec !== CODEC) throw broken("of another encoding");
  return decoded(last);
}

/**
 * Writes the state this turn leaves behind: its last part, and with it this run's parts replace the earlier ones, so that the
 * state does not grow with the conversation. When that fails the turn's output may have been seen already, and nothing of the run
 * may be committed any more (events, rule 5; I30).
 */
export async function remember(turn: Turn, memory: Memory): Promise<void> {
  try {
    await turn.thread.writePart(Buffer.from(JSON.stringify(memory)), CODEC, "memory", true);
  } catch (error) {
    turn.signal.throwIfAborted();
    log("error", "state_not_saved", { run_id: turn.runId, error: describe(error) });
    await markUncertain(turn);
    throw new HarnessError("persistence", "It is not certain that the conversation's state was saved.", {
      code: "thread_durability_uncertain",
      sideEffects: SideEffectStatus.POSSIBLE,
    });
  }
}

async function markUncertain(turn: Turn): Promise<void> {
  try {
    await turn.thread.markUncertain();
  } catch (error) {
    turn.signal.throwIfAborted();
    // The run ends without naming any state all the same, so that nothing of it can be committed.
    log("warning", "not_marked_uncertain", { run_id: turn.runId, error: describe(error) });
  }
}

/** One plain turn: session, answer word by word, usage, end. */
export async function* stream(
  turn: Turn,
  message: string,
  greeting: string,
  durable: boolean,
): AsyncGenerator<EventDraft> {
  const memory = durable ? await recall(turn) : NOTHING;
  if (turn.nativeSessionId === "") yield events.sessionUpdated(sessionId(turn));
  const answer = answerTo(memory, message, greeting);
  for (const word of words(answer)) yield events.text(word, "m1");
  if (durable) await remember(turn, { turns: memory.turns + 1, said: message.slice(0, MAX_REMEMBERED_CHARACTERS) });
  yield events.usage(words(message).length, words(answer).length);
  yield events.completed();
}

/** `body` cut before each word but the first; joined it is `body` again. */
export function words(body: string): string[] {
  return body.match(/\s*\S+\s*|\s+/gu) ?? [];
}

function answerTo(memory: Memory, message: string, greeting: string): string {
  const turn = memory.turns + 1;
  return [
    ...(greeting === "" ? [] : [greeting]),
    memory.turns > 0
      ? `This is turn ${turn} of this conversation; before that you said: ${memory.said}`
      : `This is turn ${turn} of this conversation; nothing was said before.`,
    `Now you say: ${message.slice(0, MAX_REMEMBERED_CHARACTERS)}`,
  ].join("\n");
}

/** As a provider would: the first turn decides the name, and nothing can be read from it. */
function sessionId(turn: Turn): string {
  return `node-${createHash("sha256").update(`reference_node ${turn.runId}`).digest("hex").slice(0, 32)}`;
}

function decoded(bytes: Buffer): Memory {
  let document: unknown;
  try {
    document = JSON.parse(bytes.toString("utf8"));
  } catch {
    throw broken("damaged");
  }
  if (!isMemory(document)) throw broken("damaged");
  return document;
}

function isMemory(document: unknown): document is Memory {
  if (typeof document !== "object" || document === null) return false;
  const { turns, said, pause } = document as Partial<Memory>;
  return Number.isInteger(turns) && typeof said === "string" && (pause === undefined || isPause(pause));
}

function broken(how: string): HarnessError {
  return new HarnessError("persistence", `The conversation's state is ${how}.`, { code: "state_damaged" });
}
