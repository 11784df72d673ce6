/** What a message asks for: plain conversation, a burst, or a script (reference harness). */

import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

import { HarnessError } from "../errors.js";

const MAX_EVENTS = 10_000_000;
const MAX_SIZE = 64 * 1024;
export const MAX_SECONDS = 86_400;
const MAX_RATE = 1_000_000;
const MAX_STEPS = 10_000;
const MAX_SCRIPTS = 1_000;
const MAX_NESTING = 8;

export type Step = JsonObject;
export type Script = readonly Step[];

/** `n` deltas of `size` characters, `rate` per second (0: as fast as possible), the first after `delay` seconds. */
export interface Burst {
  readonly kind: "burst";
  readonly n: number;
  readonly rate: number;
  readonly yields: boolean;
  readonly delay: number;
  readonly size: number;
  readonly stamp: boolean;
}

/** One script, or one for each turn of the session. */
export interface Scripted {
  readonly kind: "script";
  readonly scripts: readonly Script[];
  readonly perTurn: boolean;
}

export interface Plain {
  readonly kind: "plain";
  readonly text: string;
}

/** Anything that is no instruction is plain text; an instruction that is wrong in itself is refused. */
export function parse(message: string): Plain | Burst | Scripted {
  const fields = instruction(message);
  if (fields === undefined) return { kind: "plain", text: message };
  if (fields["n"] !== undefined) return burst(fields);
  if (fields["script"] !== undefined)
    return { kind: "script", scripts: [script(fields["script"], "script", 0)], perTurn: false };
  const scripts = fields["scripts"];
  if (scripts === undefined) return { kind: "plain", text: message };
  if (!Array.isArray(scripts) || scripts.length === 0 || scripts.length > MAX_SCRIPTS) {
    throw wrong("scripts", `a list of 1 to ${MAX_SCRIPTS} scripts`);
  }
  return { kind: "script", scripts: scripts.map((each) => script(each, "scripts", 0)), perTurn: true };
}

export function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The text at `name`; empty if there is none. */
export function stringOf(object: JsonObject, name: string): string {
  const value: JsonValue | undefined = object[name];
  return typeof value === "string" ? value : "";
}

/** The object that is the value of a step. */
export function objectOf(step: Step, name: string): JsonObject {
  const value = step[name];
  if (isObject(value)) return value;
  throw new HarnessError("configuration", `The step \`${name}\` needs an object.`, { code: "step_invalid" });
}

/** `value` if it is a number from `least` to `most`. */
export function numberIn(value: JsonValue | undefined, name: string, least: number, most: number): number {
  if (typeof value !== "number" || !(least <= value && value <= most))
    throw wrong(name, `a number from ${least} to ${most}`);
  return value;
}

function instruction(message: string): JsonObject | undefined {
  if (!message.trimStart().startsWith("{")) return undefined;
  try {
    return JSON.parse(message) as JsonObject;
  } catch {
    return undefined; // text that happens to begin with a brace
  }
}

function burst(fields: JsonObject): Burst {
  return {
    kind: "burst",
    n: wholeNumber(fields["n"], "n", MAX_EVENTS),
    rate: numberIn(fields["rate"] ?? 0, "rate", 0, MAX_RATE),
    yields: fields["yield0"] === true,
    delay: numberIn(fields["delay"] ?? 0, "delay", 0, MAX_SECONDS),
    size: wholeNumber(fields["size"] ?? 16, "size", MAX_SIZE),
    stamp: fields["stamp"] === true,
  };
}

function wholeNumber(value: JsonValue | undefined, name: string, most: number): number {
  if (!Number.isInteger(value)) throw wrong(name, `a whole number from 0 to ${most}`);
  return numberIn(value, name, 0, most);
}

function script(value: JsonValue, where: string, depth: number): Script {
  if (depth > MAX_NESTING) throw wrong(where, `nested at most ${MAX_NESTING} deep`);
  if (!Array.isArray(value) || value.length > MAX_STEPS) throw wrong(where, `a list of at most ${MAX_STEPS} steps`);
  return value.map((step) => {
    if (!isObject(step)) throw wrong(where, "made of objects, one a step");
    const agent = step["subagent"];
    if (!isObject(agent)) return step;
    return {
      ...step,
      subagent: { ...agent, script: [...script(agent["script"] ?? [], "subagent.script", depth + 1)] },
    };
  });
}

function wrong(name: string, expected: string): HarnessError {
  return new HarnessError("configuration", `The message's ${name} must be ${expected}.`, { code: "message_invalid" });
}
