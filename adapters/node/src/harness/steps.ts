/** The steps of a script, one function each, and what plays them in order (reference harness, table of steps). */

import { create, fromJson, type JsonObject } from "@bufbuild/protobuf";
import { setTimeout as sleep } from "node:timers/promises";

import { type EventDraft, EventDraftSchema } from "../../gen/harness/event/v1/event_pb.js";
import { EventPayloadSchema } from "../../gen/harness/event/v1/payload_pb.js";
import { CATEGORY_NAMES, type CategoryName, HarnessError } from "../errors.js";
import { askAbout, callOf, callTool, type HeldCall } from "./calls.js";
import * as conversation from "./conversation.js";
import * as events from "./events.js";
import { isObject, MAX_SECONDS, numberIn, objectOf, type Script, type Step, stringOf } from "./message.js";
import { type Halt, MAX_ASKED, requested, told } from "./pause.js";
import type { Stage } from "./stage.js";

const MAX_SPIN_SECONDS = 60;
/** Steps whose counterpart in the control plane is not connected to this harness. */
export const UNAVAILABLE: Readonly<Record<string, string>> = {
  memory: "memory",
  probe: "a sandbox to look at",
};

/** Events; what it returns says that the script stopped for a person. */
export type Play = AsyncGenerator<EventDraft, Halt | undefined>;

/** Adjacent tool steps are what a model calls at once: all of them are made, and those held back are asked about together. */
export async function* play(steps: Script, stage: Stage, held: HeldCall[] = []): Play {
  for (const [index, step] of steps.entries()) {
    stage.turn.signal.throwIfAborted();
    const name = nameOf(step);
    if (held.length > 0 && (name !== "tool" || held.length === MAX_ASKED))
      return yield* askAbout(held, steps.slice(index), stage);
    if (name === "tool") {
      const [call, streamed] = callOf(step, stage);
      const approval = yield* callTool(call, streamed, stage);
      if (approval !== undefined) held.push({ call, approval });
      continue;
    }
    const halt = yield* STEPS[name]?.(step, stage) ?? nothing();
    if (halt !== undefined) return halt;
  }
  return held.length > 0 ? yield* askAbout(held, [], stage) : undefined;
}

async function* nothing(): AsyncGenerator<EventDraft, undefined> {
  return undefined;
}

export function nameOf(step: Step): string {
  const names = Object.keys(step).filter((name) => NAMES.has(name));
  const [name] = names;
  if (name !== undefined && names.length === 1) return name;
  const known = [...NAMES].sort().join(", ");
  throw new HarnessError("configuration", `A step must have exactly one of: ${known}.`, { code: "step_unknown" });
}

export function innerScript(step: Step): Script {
  const agent = step["subagent"];
  return isObject(agent) && Array.isArray(agent["script"]) ? (agent["script"] as Step[]) : [];
}

// --- what a model and its tools do ---

type PlayStep = (step: Step, stage: Stage) => AsyncGenerator<EventDraft, Halt | undefined>;

const STEPS: Readonly<Record<string, PlayStep>> = {
  async *text(step, stage) {
    const id = stringOf(step, "message_id") || stage.nextId("m");
    for (const piece of pieces(step, "text")) yield events.text(piece, id, stage.namespace);
    return undefined;
  },

  async *reasoning(step, stage) {
    const id = stringOf(step, "message_id") || stage.nextId("r");
    for (const piece of pieces(step, "reasoning")) yield events.reasoning(piece, id, stage.namespace);
    return undefined;
  },

  async *tool_result(step, stage) {
    const call = objectOf(step, "tool_result");
    const id = stringOf(call, "id") || stage.nextId("call-");
    const args = isObject(call["arguments"]) ? call["arguments"] : undefined;
    yield events.toolStarted(id, stringOf(call, "name") || "tool", args, stage.namespace);
    const error = call["error"] ?? null;
    if (error === null) {
      yield events.toolSucceeded(id, call["result"], stage.namespace);
      return undefined;
    }
    const said = isObject(error) ? error : { message: String(error) };
    const message = stringOf(said, "message") || "The tool failed.";
    yield events.toolFailed(
      id,
      stringOf(said, "code") || "tool_failed",
      message,
      said["retryable"] === true,
      stage.namespace,
    );
    return undefined;
  },

  async *subagent(step, stage) {
    const agent = objectOf(step, "subagent");
    const id = stringOf(agent, "agent_id") || stage.nextId("agent-");
    const given = stringOf(agent, "parent_tool_call_id");
    const call = given || stage.nextId("call-");
    if (given === "") yield events.toolStarted(call, "subagent", { agent_id: id }, stage.namespace);
    yield events.subagentStarted(id, call, stringOf(agent, "agent_name") || id, stage.namespace);
    const halted = yield* play(innerScript(step), { ...stage, namespace: [...stage.namespace, id] });
    if (halted !== undefined) return halted;
    yield events.subagentCompleted(id, call, stage.namespace);
    if (given === "") yield events.toolSucceeded(call, undefined, stage.namespace);
    return undefined;
  },

  async *interrupt(step, stage) {
    const { draft, halt } = requested(step, `interrupt-${stage.turn.number}`, stage.namespace);
    yield draft;
    return halt;
  },

  async *decision(_step, stage) {
    yield events.text(told(stage.decision), stage.nextId("m"), stage.namespace);
    return undefined;
  },

  async *usage(step, stage) {
    yield payloadOf("usage_updated", objectOf(step, "usage"), stage.namespace);
    return undefined;
  },

  async *warning(step, stage) {
    yield payloadOf("warning", objectOf(step, "warning"), stage.namespace);
    return undefined;
  },

  async *metadata(step) {
    yield events.providerMetadata(objectOf(step, "metadata"));
    return undefined;
  },

  async *state(step, stage) {
    if (!stage.durable)
      throw new HarnessError("configuration", "The step `state` needs a conversation that keeps state.", {
        code: "step_invalid",
      });
    const key = stage.nextId("state-");
    await stage.turn.thread.writePart(Buffer.from(stringOf(step, "state")), conversation.CODEC, key, false);
    return undefined;
  },

  async *sleep(step, stage) {
    await sleep(numberIn(step["sleep"], "sleep", 0, MAX_SECONDS) * 1000, undefined, { signal: stage.turn.signal });
    return undefined;
  },

  // --- what goes wrong ---

  async *fail(step) {
    throw failure(objectOf(step, "fail"));
  },

  async *hang(_step, stage) {
    // Until the run is stopped; the longest that a timer can wait is more than any run may take.
    await sleep(MAX_SECONDS * 2 * 1000, undefined, { signal: stage.turn.signal });
    return undefined;
  },

  async *spin(step) {
    const end = performance.now() + numberIn(step["spin"], "spin", 0, MAX_SPIN_SECONDS) * 1000;
    while (performance.now() < end); // burning CPU, and keeping the process from everything else, is the fault
    return undefined;
  },

  async *raise(step) {
    throw new TypeError(stringOf(step, "raise"));
  },

  async *exit(step) {
    process.exit(numberIn(step["exit"], "exit", 0, 255));
  },

  async *emit(step) {
    const given = objectOf(step, "emit");
    let document: JsonObject = given["payload"] === undefined ? { payload: given } : given;
    if (given["payload"] === undefined && typeof given["type"] === "string") {
      const kind = given["type"].replaceAll(".", "_");
      document = { payload: { [kind]: given["data"] ?? {} }, namespace: given["namespace"] ?? [] };
    }
    yield parsed("emit", () => fromJson(EventDraftSchema, document));
    return undefined;
  },
};

const NAMES: ReadonlySet<string> = new Set(["tool", ...Object.keys(STEPS), ...Object.keys(UNAVAILABLE)]);

function failure(said: JsonObject): HarnessError {
  const category = stringOf(said, "category") || "internal";
  if (!isCategory(category)) {
    const message = `The step \`fail\` has an unknown category; use one of: ${CATEGORY_NAMES.join(", ")}.`;
    return new HarnessError("configuration", message, { code: "step_invalid" });
  }
  const retryAfter = said["retry_after"] ?? null;
  return new HarnessError(category, stringOf(said, "message") || "The provider failed.", {
    code: stringOf(said, "code"),
    retryable: typeof said["retryable"] === "boolean" ? said["retryable"] : undefined,
    retryAfter: retryAfter === null ? undefined : numberIn(retryAfter, "retry_after", 0, MAX_SECONDS),
    providerCode: stringOf(said, "provider_code"),
    diagnostic: stringOf(said, "diagnostic"),
  });
}

function isCategory(name: string): name is CategoryName {
  return (CATEGORY_NAMES as readonly string[]).includes(name);
}

function pieces(step: Step, name: string): string[] {
  const chunks = step["chunks"];
  return Array.isArray(chunks) ? chunks.map(String) : conversation.words(stringOf(step, name));
}

function payloadOf(kind: string, data: JsonObject, namespace: events.Namespace): EventDraft {
  const payload = parsed(kind, () => fromJson(EventPayloadSchema, { [kind]: data }));
  return create(EventDraftSchema, { namespace: [...namespace], payload });
}

function parsed<T>(name: string, parse: () => T): T {
  try {
    return parse();
  } catch {
    throw new HarnessError("configuration", `The step for ${name} has a wrong field.`, { code: "step_invalid" });
  }
}
