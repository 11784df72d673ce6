/** A script: steps that say exactly what the harness does, good or bad (reference harness, table of steps). */

import { create, fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { setTimeout as sleep } from "node:timers/promises";

import { type EventDraft, EventDraftSchema } from "../../gen/harness/event/v1/event_pb.js";
import { EventPayloadSchema, type ToolApproval } from "../../gen/harness/event/v1/payload_pb.js";
import type { ResumeDecision } from "../../gen/harness/runtime/v1/runtime_pb.js";
import { CATEGORY_NAMES, type CategoryName, HarnessError } from "../errors.js";
import type { Turn } from "../host/contract.js";
import * as conversation from "./conversation.js";
import * as events from "./events.js";
import { isObject, MAX_SECONDS, numberIn, type Script, type Scripted, type Step } from "./message.js";
import { askedAbout, checkDecision, type Halt, MAX_ASKED, type Pause, requested, told, type WaitingCall } from "./pause.js";

const FAULTS: ReadonlySet<string> = new Set(["emit", "raise", "exit", "hang", "spin"]);
/** Steps whose counterpart in the control plane is not connected to this harness. */
const UNAVAILABLE: Readonly<Record<string, string>> = {
  memory: "memory",
  probe: "a sandbox to look at",
};
const MAX_SPIN_SECONDS = 60;

/** What holds for all scripts of a runtime. */
export interface Setting {
  readonly allowFaults: boolean;
  readonly durable: boolean;
  /** Told of the pause a turn leaves behind, and of none when it leaves none. */
  readonly onPause: (pause: Pause | undefined) => void;
}

/** Where a script plays. Ids of messages and calls count through the whole turn, subagents included. */
interface Stage {
  readonly turn: Turn;
  readonly namespace: events.Namespace;
  readonly nextId: (prefix: string) => string;
  readonly decision: ResumeDecision | undefined;
  readonly durable: boolean;
}

/** A call that the broker holds back until a person has decided. */
interface HeldCall {
  readonly call: WaitingCall;
  readonly approval: ToolApproval;
}

/** Events; what it returns says that the script stopped for a person. */
type Play = AsyncGenerator<EventDraft, Halt | undefined>;

/** Plays the script of this turn, then completes or pauses. Nothing is played if any step of it is refused. */
export async function* stream(turn: Turn, asked: Scripted, setting: Setting): AsyncGenerator<EventDraft> {
  const needsMemory = asked.perTurn || touchesState(asked.scripts[0] ?? []);
  const memory = needsMemory && setting.durable ? await conversation.recall(turn) : conversation.NOTHING;
  const steps = asked.scripts[asked.perTurn ? memory.turns : 0] ?? [];
  check(steps, setting);
  yield* perform(turn, asked, memory, setting, steps, play(steps, stageOf(turn, setting.durable)));
}

/**
 * Goes on after a pause: with the calls that waited and what stood behind them, if there are any, then with the next script. `kept` is
 * the pause of a runtime without thread state.
 */
export async function* resume(
  turn: Turn,
  decision: ResumeDecision,
  setting: Setting,
  kept: Pause | undefined,
): AsyncGenerator<EventDraft> {
  const memory = setting.durable ? await conversation.recall(turn) : conversation.NOTHING;
  const pause = setting.durable ? memory.pause : kept;
  if (pause === undefined) {
    // Truthfully: nobody knows any more what was to be done, or it was done already (I24).
    throw new HarnessError("persistence", "What the conversation waited for is not known here any more.", { code: "interrupt_lost" });
  }
  checkDecision(pause, decision);
  setting.onPause(undefined);
  const steps = [...pause.rest, ...((pause.perTurn ? pause.scripts[memory.turns] : undefined) ?? [])];
  check(steps, setting);
  yield* perform(turn, pause, memory, setting, steps, goOn(pause, steps, stageOf(turn, setting.durable, decision)));
}

async function* goOn(pause: Pause, steps: Script, stage: Stage): Play {
  const held: HeldCall[] = [];
  // A person who dismissed the question decided on nothing: no call is made.
  const calls = stage.decision?.answer.case === "dismiss" ? [] : pause.waiting;
  for (const call of calls) {
    const approval = yield* callTool(call, false, stage);
    if (approval !== undefined) held.push({ call, approval });
  }
  return yield* play(steps, stage, held);
}

async function* perform(
  turn: Turn,
  { scripts, perTurn }: Pick<Scripted, "scripts" | "perTurn">,
  memory: conversation.Memory,
  setting: Setting,
  steps: Script,
  script: Play,
): AsyncGenerator<EventDraft> {
  const turns = memory.turns + (perTurn ? 1 : 0);
  const said = perTurn ? "a script" : memory.said;
  const halt = yield* script;
  if (halt !== undefined) {
    const pause: Pause = { ...halt, runId: turn.runId, scripts, perTurn };
    if (setting.durable) await conversation.remember(turn, { turns, said, pause });
    setting.onPause(pause);
    yield events.interrupted(halt.interruptId);
    return;
  }
  const changes = perTurn || memory.pause !== undefined || writesState(steps);
  if (setting.durable && changes) await conversation.remember(turn, { turns, said });
  yield events.completed();
}

function stageOf(turn: Turn, durable: boolean, decision?: ResumeDecision): Stage {
  let begun = 0;
  const nextId = (prefix: string): string => {
    begun += 1;
    return `${prefix}${begun}`;
  };
  return { turn, durable, decision, namespace: [], nextId };
}

/** Whether the script needs the conversation's state: it may stop for a person, or writes to it. */
function touchesState(steps: Script): boolean {
  return hasStep(steps, ["interrupt", "tool", "state"]);
}

/** The memory stands last in the state, so it is written again after anything else. */
function writesState(steps: Script): boolean {
  return hasStep(steps, ["state"]);
}

function hasStep(steps: Script, names: readonly string[]): boolean {
  return steps.some((step) => names.some((name) => step[name] !== undefined) || hasStep(innerScript(step), names));
}

function innerScript(step: Step): Script {
  const agent = step["subagent"];
  return isObject(agent) && Array.isArray(agent["script"]) ? (agent["script"] as Step[]) : [];
}

/** Refuses the first step that is unknown, not available, or a fault that the operator's profile does not allow. */
function check(steps: Script, setting: Setting): void {
  for (const step of steps) {
    const name = nameOf(step);
    if (FAULTS.has(name) && !setting.allowFaults) {
      const message = `The step \`${name}\` is a fault, and the operator's profile does not allow faults.`;
      throw new HarnessError("configuration", message, { code: "faults_not_allowed" });
    }
    const missing = UNAVAILABLE[name] ?? (name === "subagent" && objectOf(step, name)["delegate"] === true ? "delegation" : undefined);
    if (missing !== undefined) {
      const message = `The step \`${name}\` needs ${missing}, which this harness does not have.`;
      throw new HarnessError("configuration", message, { code: "step_unavailable" });
    }
    check(innerScript(step), setting);
  }
}

function nameOf(step: Step): string {
  const names = Object.keys(step).filter((name) => NAMES.has(name));
  const [name] = names;
  if (name !== undefined && names.length === 1) return name;
  const known = [...NAMES].sort().join(", ");
  throw new HarnessError("configuration", `A step must have exactly one of: ${known}.`, { code: "step_unknown" });
}

/** Adjacent tool steps are what a model calls at once: all of them are made, and those held back are asked about together. */
async function* play(steps: Script, stage: Stage, held: HeldCall[] = []): Play {
  for (const [index, step] of steps.entries()) {
    stage.turn.signal.throwIfAborted();
    const name = nameOf(step);
    if (held.length > 0 && (name !== "tool" || held.length === MAX_ASKED)) return yield* askAbout(held, steps.slice(index), stage);
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

async function* askAbout(held: readonly HeldCall[], rest: Script, stage: Stage): AsyncGenerator<EventDraft, Halt> {
  const interruptId = `interrupt-${stage.turn.number}`;
  const approvals = held.map(({ approval }) => approval);
  yield events.approvalRequested(interruptId, "May this be called?", approvals, stage.namespace);
  return { interruptId, asked: askedAbout(approvals), waiting: held.map(({ call }) => call), rest };
}

async function* nothing(): AsyncGenerator<EventDraft, undefined> {
  return undefined;
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
    yield events.toolFailed(id, stringOf(said, "code") || "tool_failed", message, said["retryable"] === true, stage.namespace);
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
    if (!stage.durable) throw new HarnessError("configuration", "The step `state` needs a conversation that keeps state.", { code: "step_invalid" });
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

function callOf(step: Step, stage: Stage): [call: WaitingCall, streamed: boolean] {
  const call = objectOf(step, "tool");
  // Unique in the conversation, not only in the run: the broker knows a call by it.
  const id = stringOf(call, "id") || `turn-${stage.turn.number}-${stage.nextId("call-")}`;
  const args = isObject(call["arguments"]) ? call["arguments"] : {};
  return [{ id, name: stringOf(call, "name"), arguments: args }, call["stream_arguments"] === true];
}

/**
 * Calls a portable tool and tells what became of it; what it returns is asked of a person first. The broker is asked before anything is
 * told: a call that has to wait has not started (I25), and only the broker knows which do.
 */
async function* callTool(call: WaitingCall, streamed: boolean, stage: Stage): AsyncGenerator<EventDraft, ToolApproval | undefined> {
  const { tools } = stage.turn;
  const toolId = tools.idOf(call.name);
  const answer = await tools.invoke(call.id, toolId, call.arguments);
  if (answer.kind === "waits") return answer.approval;
  yield events.toolStarted(call.id, toolId, streamed ? undefined : call.arguments, stage.namespace);
  if (streamed) {
    for (const fragment of fragments(JSON.stringify(call.arguments))) yield events.toolArguments(call.id, fragment, stage.namespace);
  }
  if (answer.kind === "completed") {
    yield events.toolCompleted({ ...answer.completed, toolCallId: call.id }, stage.namespace);
  } else {
    yield events.toolFailed(call.id, answer.code, "The tool broker refused the call.", answer.retryable, stage.namespace);
  }
  return undefined;
}

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

// --- shared by the steps ---

function pieces(step: Step, name: string): string[] {
  const chunks = step["chunks"];
  return Array.isArray(chunks) ? chunks.map(String) : conversation.words(stringOf(step, name));
}

/** As a model would stream them: in small pieces that mean nothing alone. */
function fragments(json: string): string[] {
  return json.match(/.{1,12}/gsu) ?? [];
}

function stringOf(object: JsonObject, name: string): string {
  const value: JsonValue | undefined = object[name];
  return typeof value === "string" ? value : "";
}

function objectOf(step: Step, name: string): JsonObject {
  const value = step[name];
  if (isObject(value)) return value;
  throw new HarnessError("configuration", `The step \`${name}\` needs an object.`, { code: "step_invalid" });
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
