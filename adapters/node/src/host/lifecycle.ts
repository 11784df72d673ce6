/** The state machine of one run's events at the adapter's edge (events, Lifecycle rules 1 to 8; I19). Pure: no clock, no I/O. */

import { clone, create, type JsonObject, toBinary, toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";

import { type EventDraft, EventDraftSchema } from "../../gen/harness/event/v1/event_pb.js";
import { FormFieldType, InterruptType, ToolOutcome } from "../../gen/harness/event/v1/payload_pb.js";
import { cleaned, split } from "./text.js";
import { violations } from "./validation.js";
import { ARGUMENTS_BYTES, checkObject, checkResult, EVENT_BYTES } from "./values.js";
import { ProtocolViolation } from "./violation.js";

const ID = /^[A-Za-z0-9._:-]{1,128}$/;
const DELTA_BYTES = 64 * 1024;
const MAX_OPEN_CALLS = 128;
const MAX_OPEN_NAMESPACES = 64;
const REMEMBERED_CALLS = 512;

type Kind = NonNullable<NonNullable<EventDraft["payload"]>["kind"]["case"]>;

const TERMINALS: ReadonlySet<Kind> = new Set<Kind>(["runCompleted", "runInterrupted", "runCancelled", "runFailed"]);
const ROOT_ONLY: ReadonlySet<Kind> = new Set<Kind>([...TERMINALS, "sessionUpdated"]);
/** What may stand between `interrupt.requested` and its terminal (rule 4). */
const AFTER_INTERRUPT: ReadonlySet<Kind> = new Set<Kind>([
  "toolCompleted",
  "subagentCompleted",
  "providerMetadata",
  "runInterrupted",
  "runCancelled",
  "runFailed",
]);

interface OpenCall {
  readonly namespace: string;
  /** Fragments of its arguments so far; undefined if they came at once. */
  arguments: string | undefined;
}

/** Checks the drafts of one run in order. `accept` either throws and has changed nothing, or returns what goes on for the draft. */
export class Lifecycle {
  #ended = false;
  #interrupt = "";
  readonly #calls = new Map<string, OpenCall>();
  readonly #endedCalls = new Set<string>();
  /** Open namespaces by path, with the call that started each. */
  readonly #namespaces = new Map<string, string>();

  /** Whether a terminal was accepted. */
  get ended(): boolean {
    return this.#ended;
  }

  /** Nothing for an empty delta, pieces of one that is too long, a terminal behind what closes all that is open; otherwise the draft. */
  accept(draft: EventDraft): EventDraft[] {
    const kind = draft.payload?.kind.case;
    if (kind === undefined) throw new ProtocolViolation(7, "malformed", "an event has no known payload");
    if (this.#ended)
      throw new ProtocolViolation(1, "after_terminal", `${wireName(kind)} came after the terminal event`);
    if (kind === "runStarted")
      throw new ProtocolViolation(1, "run_started", "run.started is written by the engine alone");
    const pieces = splitDelta(sanitised(draft));
    for (const piece of pieces) checkAlone(piece, kind);
    this.#checkPlace(draft, kind);
    this.#apply(draft);
    if (!TERMINALS.has(kind)) return pieces;
    this.#ended = true;
    return [...this.#closings(kind), ...pieces];
  }

  /** Completions for all that a terminal finds open, the innermost and youngest first; never a success (rules 2 and 3). */
  #closings(terminal: Kind): EventDraft[] {
    const failed = terminal === "runFailed";
    const calls = [...this.#calls].reverse();
    const closed: EventDraft[] = [];
    const closeCalls = (path: string): void => {
      for (const [callId, call] of calls) {
        if (call.namespace === path) closed.push(closedCall(callId, segmentsOf(path), failed));
      }
    };
    // A namespace opened later is never the parent of one opened earlier.
    for (const [path, parentCall] of [...this.#namespaces].reverse()) {
      closeCalls(path);
      closed.push(closedNamespace(segmentsOf(path), parentCall, failed));
    }
    closeCalls("");
    return closed;
  }

  #checkPlace(draft: EventDraft, kind: Kind): void {
    const namespace = pathOf(draft.namespace);
    if (namespace !== "" && !this.#namespaces.has(namespace)) {
      throw new ProtocolViolation(3, "namespace_not_open", `${wireName(kind)} is outside every open namespace`);
    }
    if (namespace !== "" && ROOT_ONLY.has(kind)) {
      throw new ProtocolViolation(3, "not_at_root", `${wireName(kind)} belongs to the root`);
    }
    if (this.#interrupt === "" && kind === "runInterrupted") {
      throw new ProtocolViolation(4, "interrupt_not_requested", "run.interrupted without interrupt.requested");
    }
    if (this.#interrupt !== "" && !AFTER_INTERRUPT.has(kind)) {
      throw new ProtocolViolation(4, "after_interrupt", `${wireName(kind)} came after interrupt.requested`);
    }
  }

  #apply(draft: EventDraft): void {
    const payload = draft.payload?.kind;
    const namespace = pathOf(draft.namespace);
    switch (payload?.case) {
      case "toolStarted":
        return this.#startCall(payload.value.toolCallId, {
          namespace,
          arguments: payload.value.arguments === undefined ? "" : undefined,
        });
      case "toolArgumentsDelta":
        return this.#extendArguments(this.#openCall(payload.value.toolCallId, namespace), payload.value.delta);
      case "toolCompleted":
        return this.#completeCall(payload.value.toolCallId, namespace, payload.value.outcome);
      case "subagentStarted":
        return this.#openNamespace([...draft.namespace, payload.value.agentId], payload.value.parentToolCallId);
      case "subagentCompleted":
        return this.#closeNamespace(
          pathOf([...draft.namespace, payload.value.agentId]),
          payload.value.parentToolCallId,
        );
      case "interruptRequested":
        for (const { toolCallId } of payload.value.toolApprovals) {
          // I25: a call that waits for approval has not started.
          if (this.#isKnown(toolCallId))
            throw new ProtocolViolation(
              4,
              "approval_started",
              "interrupt.requested asks about a call that has started",
            );
        }
        this.#interrupt = payload.value.interruptId;
        return;
      case "runInterrupted":
        if (payload.value.interruptId !== this.#interrupt) {
          throw new ProtocolViolation(4, "other_interrupt", "run.interrupted names another interrupt");
        }
        return;
      default:
        return;
    }
  }

  #isKnown(callId: string): boolean {
    return this.#calls.has(callId) || this.#endedCalls.has(callId);
  }

  #startCall(callId: string, call: OpenCall): void {
    if (this.#isKnown(callId))
      throw new ProtocolViolation(2, "call_started_twice", "tool.started names a call that has already started");
    if (this.#calls.size >= MAX_OPEN_CALLS)
      throw new ProtocolViolation(7, "too_many_calls", `more than ${MAX_OPEN_CALLS} tool calls are open`);
    this.#calls.set(callId, call);
  }

  #openCall(callId: string, namespace: string): OpenCall {
    const call = this.#calls.get(callId);
    if (call === undefined)
      throw new ProtocolViolation(2, "call_not_open", "an event names a tool call that is not open");
    if (call.namespace !== namespace)
      throw new ProtocolViolation(3, "other_namespace", "an event is in another namespace than its call");
    return call;
  }

  #extendArguments(call: OpenCall, fragment: string): void {
    if (call.arguments === undefined) {
      throw new ProtocolViolation(2, "arguments_given", "tool.arguments.delta for a call that started with arguments");
    }
    const joined = call.arguments + fragment;
    if (Buffer.byteLength(joined) > ARGUMENTS_BYTES) {
      throw new ProtocolViolation(
        7,
        "too_large",
        `the joined arguments of a tool call are over ${ARGUMENTS_BYTES} bytes`,
      );
    }
    call.arguments = joined;
  }

  #completeCall(callId: string, namespace: string, outcome: ToolOutcome): void {
    const call = this.#openCall(callId, namespace);
    // A call whose arguments never became JSON was never invoked: it may fail, not succeed.
    if (call.arguments && outcome === ToolOutcome.SUCCESS) {
      checkObject(parsedArguments(call.arguments), "the joined arguments of a tool call", ARGUMENTS_BYTES);
    }
    this.#calls.delete(callId);
    this.#endedCalls.add(callId);
    for (const oldest of this.#endedCalls) {
      if (this.#endedCalls.size <= REMEMBERED_CALLS) break;
      this.#endedCalls.delete(oldest);
    }
  }

  #openNamespace(path: readonly string[], parentCall: string): void {
    const agent = path.at(-1) ?? "";
    if ([...this.#namespaces.keys()].some((open) => open === agent || open.endsWith(`/${agent}`))) {
      throw new ProtocolViolation(3, "namespace_open", "subagent.started names a subagent that is already open");
    }
    if (this.#namespaces.size >= MAX_OPEN_NAMESPACES)
      throw new ProtocolViolation(7, "too_many_namespaces", "too many subagents are open");
    this.#namespaces.set(pathOf(path), parentCall);
  }

  #closeNamespace(path: string, parentCall: string): void {
    if (this.#namespaces.get(path) !== parentCall) {
      throw new ProtocolViolation(3, "namespace_not_open", "subagent.completed names no open subagent of that call");
    }
    const inner = [...this.#namespaces.keys()].some((other) => other.startsWith(`${path}/`));
    if (inner || [...this.#calls.values()].some((call) => call.namespace === path)) {
      throw new ProtocolViolation(3, "not_balanced", "subagent.completed while something inside it is open");
    }
    this.#namespaces.delete(path);
  }
}

/** What a stream that just stops has done (rule 6). */
export const missingTerminal = (): ProtocolViolation =>
  new ProtocolViolation(6, "missing_terminal", "the stream ended without a terminal event");

/** `toolStarted` as clients see it: `tool.started`. */
function wireName(kind: Kind): string {
  return kind.replace(/[A-Z]/g, (letter) => `.${letter.toLowerCase()}`);
}

// "/" stands in no id, so that no two paths meet.
function pathOf(namespace: readonly string[]): string {
  return namespace.join("/");
}

function segmentsOf(path: string): string[] {
  return path === "" ? [] : path.split("/");
}

function closedCall(toolCallId: string, namespace: string[], failed: boolean): EventDraft {
  const error = { code: "run_failed", message: "The run failed before the tool call completed." };
  const value = failed
    ? { toolCallId, outcome: ToolOutcome.ERROR, error }
    : { toolCallId, outcome: ToolOutcome.CANCELLED };
  return create(EventDraftSchema, { namespace, payload: { kind: { case: "toolCompleted", value } } });
}

function closedNamespace(path: string[], parentToolCallId: string, failed: boolean): EventDraft {
  const outcome = failed ? ToolOutcome.ERROR : ToolOutcome.CANCELLED;
  const value = { agentId: path.at(-1) ?? "", parentToolCallId, outcome };
  return create(EventDraftSchema, {
    namespace: path.slice(0, -1),
    payload: { kind: { case: "subagentCompleted", value } },
  });
}

function parsedArguments(text: string): JsonObject {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new ProtocolViolation(2, "arguments_not_json", "the joined arguments of a tool call do not parse as JSON");
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    throw new ProtocolViolation(2, "arguments_not_object", "the joined arguments of a tool call are no JSON object");
  }
  return parsed as JsonObject;
}

/** The draft with every text cleaned (events, Bounds); a copy where that changes anything. */
function sanitised(draft: EventDraft): EventDraft {
  const payload = draft.payload?.kind;
  if (payload?.case === "contentDelta" || payload?.case === "reasoningDelta") {
    // Most events: nothing is copied unless something has to be replaced.
    const text = cleaned(payload.value.text);
    if (text === payload.value.text) return draft;
  }
  const copy = clone(EventDraftSchema, draft);
  cleanTexts(copy.payload?.kind.value);
  return copy;
}

function cleanTexts(value: unknown): void {
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return;
  const members = value as Record<string, unknown>;
  for (const [name, member] of Object.entries(members)) {
    if (name.startsWith("$")) continue;
    if (typeof member === "string") members[name] = cleaned(member);
    else cleanTexts(member);
  }
}

/** No draft for an empty delta, several for one that is too long (rule 8). */
function splitDelta(draft: EventDraft): EventDraft[] {
  const payload = draft.payload?.kind;
  if (payload?.case === "contentDelta" || payload?.case === "reasoningDelta") {
    const { case: kind, value } = payload;
    return cut(draft, value.text, (text) => ({ case: kind, value: { messageId: value.messageId, text } }));
  }
  if (payload?.case === "toolArgumentsDelta") {
    const { case: kind, value } = payload;
    return cut(draft, value.delta, (delta) => ({ case: kind, value: { toolCallId: value.toolCallId, delta } }));
  }
  return [draft];
}

type DeltaInit =
  | { case: "contentDelta" | "reasoningDelta"; value: { messageId: string; text: string } }
  | { case: "toolArgumentsDelta"; value: { toolCallId: string; delta: string } };

function cut(draft: EventDraft, text: string, piece: (text: string) => DeltaInit): EventDraft[] {
  if (text === "") return [];
  if (text.length * 3 <= DELTA_BYTES || Buffer.byteLength(text) <= DELTA_BYTES) return [draft];
  return [...split(text, DELTA_BYTES)].map((part) =>
    create(EventDraftSchema, { namespace: draft.namespace, payload: { kind: piece(part) } }),
  );
}

/** Refuses a draft that may not enter a log, whatever came before it (rule 7). */
function checkAlone(draft: EventDraft, kind: Kind): void {
  if (isBareDelta(draft)) return;
  const what = wireName(kind);
  checkStructures(draft, what);
  if (toBinary(EventDraftSchema, draft).length > EVENT_BYTES) {
    throw new ProtocolViolation(7, "too_large", `${what} is over ${EVENT_BYTES} bytes`);
  }
  const [first] = violations(EventDraftSchema, draft);
  // Only the path of the field is told; the value is the event's content.
  if (first !== undefined)
    throw new ProtocolViolation(7, "malformed", `${what} is malformed at ${first.path || "the event"}`);
  if ((draft.nativeSessionId !== "") !== (kind === "sessionUpdated")) {
    throw new ProtocolViolation(7, "private_field", `${what} carries a native session id, or needs one`);
  }
  if (draft.pendingHead !== undefined && kind !== "runCompleted" && kind !== "runInterrupted") {
    throw new ProtocolViolation(7, "private_field", `${what} carries a pending state`);
  }
}

/** Most events: what is declared of them is checked here at a fraction of the cost. Their text is bounded by splitting. */
function isBareDelta({ payload, nativeSessionId, pendingHead }: EventDraft): boolean {
  const kind = payload?.kind;
  if (kind?.case !== "contentDelta" && kind?.case !== "reasoningDelta") return false;
  return ID.test(kind.value.messageId) && nativeSessionId === "" && pendingHead === undefined;
}

function checkStructures(draft: EventDraft, what: string): void {
  const payload = draft.payload?.kind;
  const malformed = (message: string): ProtocolViolation => new ProtocolViolation(7, "malformed", `${what} ${message}`);
  switch (payload?.case) {
    case "toolStarted":
      if (payload.value.arguments !== undefined)
        checkObject(payload.value.arguments, `${what} arguments`, ARGUMENTS_BYTES);
      return;
    case "toolCompleted": {
      const { error, outcome, result, resultRef } = payload.value;
      if (result !== undefined) checkResult(toJson(ValueSchema, result), `${what} result`);
      if ((error !== undefined) !== (outcome === ToolOutcome.ERROR))
        throw malformed("has an error exactly if its outcome is `error`");
      if (resultRef !== "" && result !== undefined) throw malformed("has both a result and a reference to one");
      return;
    }
    case "warning":
      if (payload.value.details !== undefined) checkObject(payload.value.details, `${what} details`, EVENT_BYTES);
      return;
    case "providerMetadata":
      if (payload.value.metadata !== undefined) checkObject(payload.value.metadata, `${what} metadata`, EVENT_BYTES);
      return;
    case "interruptRequested": {
      const { fields, interruptType, toolApprovals } = payload.value;
      for (const call of toolApprovals) checkObject(call.arguments ?? {}, `${what} arguments`, ARGUMENTS_BYTES);
      const form = interruptType === InterruptType.FORM_INPUT;
      if (form !== fields.length > 0 || form === toolApprovals.length > 0) {
        throw malformed("has either form fields or tool approvals, by its type");
      }
      const names = [...fields.map((field) => field.name), ...toolApprovals.map((call) => call.toolCallId)];
      if (new Set(names).size !== names.length) throw malformed("names a field or call twice");
      if (fields.some((field) => field.type === FormFieldType.CHOICE && field.options.length === 0)) {
        throw malformed("has a choice without options");
      }
      return;
    }
    default:
      return;
  }
}
