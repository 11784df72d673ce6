/** A pause for a person: what a script asks, what is kept of it, and what a decision must fit (reference harness, interrupt). */

import { fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";

import type { EventDraft } from "../../gen/harness/event/v1/event_pb.js";
import {
  ApprovalDecisionKind,
  type FormField,
  FormFieldSchema,
  type ToolApproval,
  ToolApprovalSchema,
} from "../../gen/harness/event/v1/payload_pb.js";
import type { ResumeDecision, ToolDecision } from "../../gen/harness/runtime/v1/runtime_pb.js";
import { HarnessError } from "../errors.js";
import * as events from "./events.js";
import { isObject, type Script } from "./message.js";

const FIELD_TYPES = ["string", "number", "boolean", "choice"];
const DECISIONS = ["approve", "reject", "edit"];
/** The most calls that one interrupt can ask about. */
export const MAX_ASKED = 32;
const ALLOWED_BY_DEFAULT = ["approve", "reject"];

/** A call that waits at the broker, to be made again once it is decided on. */
export interface WaitingCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: JsonObject;
}

/** What was asked: the values of a form, or decisions on calls, each with the kinds allowed. */
export type Asked =
  { readonly form: true } | { readonly calls: Readonly<Record<string, readonly ApprovalDecisionKind[]>> };

/** Where a script stopped. */
export interface Halt {
  readonly interruptId: string;
  readonly asked: Asked;
  /** Calls that the broker holds back; none after an `interrupt` step. */
  readonly waiting: readonly WaitingCall[];
  /** Steps behind those calls; they go on after them. */
  readonly rest: Script;
}

/** What a turn leaves behind that waits: its run, where it stopped, and what comes next. */
export interface Pause extends Halt {
  readonly runId: string;
  readonly scripts: readonly Script[];
  readonly perTurn: boolean;
}

export function isPause(document: unknown): document is Pause {
  if (typeof document !== "object" || document === null) return false;
  const { runId, interruptId, asked, scripts, perTurn, rest, waiting } = document as Partial<Pause>;
  const plain = typeof runId === "string" && typeof interruptId === "string" && typeof perTurn === "boolean";
  return plain && typeof asked === "object" && asked !== null && [scripts, rest, waiting].every(Array.isArray);
}

/** The event of an `interrupt` step, and what is kept of it: a form, or calls to be approved. */
export function requested(
  step: JsonObject,
  defaultId: string,
  namespace: events.Namespace,
): { draft: EventDraft; halt: Halt } {
  const fields = isObject(step["interrupt"]) ? step["interrupt"] : {};
  const interruptId = typeof fields["id"] === "string" && fields["id"] !== "" ? fields["id"] : defaultId;
  const prompt = typeof fields["prompt"] === "string" ? fields["prompt"] : "";
  const { form, approve } = fields;
  if (Array.isArray(form) && form.length > 0 && approve === undefined) {
    const draft = events.formRequested(interruptId, prompt, form.map(formField), namespace);
    return { draft, halt: { interruptId, asked: { form: true }, waiting: [], rest: [] } };
  }
  if (Array.isArray(approve) && approve.length > 0 && form === undefined) {
    const approvals = approve.map(approval);
    const halt = { interruptId, asked: askedAbout(approvals), waiting: [], rest: [] };
    return { draft: events.approvalRequested(interruptId, prompt, approvals, namespace), halt };
  }
  throw wrong("either `form`, a list of fields, or `approve`, a list of calls");
}

export function askedAbout(approvals: readonly ToolApproval[]): Asked {
  return { calls: Object.fromEntries(approvals.map((call) => [call.toolCallId, call.allowed])) };
}

/** Refuses a decision on another interrupt than the one that waits, or of a kind that was not asked for (I25). */
export function checkDecision(pause: Pause, decision: ResumeDecision): void {
  if (pause.runId !== decision.interruptedRunId || pause.interruptId !== decision.interruptId) {
    throw new HarnessError("configuration", "The decision is on another interrupt than the conversation's.", {
      code: "interrupt_unknown",
    });
  }
  const { answer } = decision;
  if (answer.case === "dismiss") return;
  const fits =
    "form" in pause.asked
      ? answer.case === "formValues"
      : answer.case === "toolDecisions" && decides(pause.asked.calls, answer.value.decisions);
  if (!fits)
    throw new HarnessError("configuration", "The decision is not of a kind that the interrupt allows.", {
      code: "decision_invalid",
    });
}

function decides(
  calls: Readonly<Record<string, readonly ApprovalDecisionKind[]>>,
  decisions: readonly ToolDecision[],
): boolean {
  const decided = new Set(decisions.map((one) => one.toolCallId));
  const eachOnce = decided.size === decisions.length && decided.size === Object.keys(calls).length;
  return eachOnce && decisions.every((one) => calls[one.toolCallId]?.includes(kindOf(one)));
}

function kindOf(decision: ToolDecision): ApprovalDecisionKind {
  switch (decision.decision.case) {
    case "approve":
      return ApprovalDecisionKind.APPROVE;
    case "reject":
      return ApprovalDecisionKind.REJECT;
    case "edit":
      return ApprovalDecisionKind.EDIT;
    default:
      return ApprovalDecisionKind.UNSPECIFIED;
  }
}

/** The decision as the `decision` step tells it: one line of JSON, keys in order. */
export function told(decision: ResumeDecision | undefined): string {
  return JSON.stringify(sorted(plain(decision)));
}

function plain(decision: ResumeDecision | undefined): JsonValue {
  switch (decision?.answer.case) {
    case undefined:
      return null;
    case "formValues":
      return { form: decision.answer.value };
    case "toolDecisions":
      return {
        calls: Object.fromEntries(decision.answer.value.decisions.map((call) => [call.toolCallId, one(call)])),
      };
    case "dismiss":
      return { dismiss: true };
  }
}

function one({ decision }: ToolDecision): JsonValue {
  if (decision.case === "edit") return { edit: decision.value };
  if (decision.case === "reject") return { reject: decision.value };
  return "approve";
}

function sorted(value: JsonValue): JsonValue {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isObject(value)) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, member]) => [key, sorted(member)]));
}

function formField(item: JsonValue): FormField {
  const given = object(item);
  const type = String(given["type"] ?? "string");
  if (!FIELD_TYPES.includes(type)) throw wrong(`fields of type ${FIELD_TYPES.join(", ")}`);
  return parsed(() => fromJson(FormFieldSchema, { ...given, type: `FORM_FIELD_TYPE_${type.toUpperCase()}` }));
}

function approval(item: JsonValue): ToolApproval {
  const given = object(item);
  const allowed = Array.isArray(given["allowed"]) ? given["allowed"].map(String) : ALLOWED_BY_DEFAULT;
  if (!allowed.every((kind) => DECISIONS.includes(kind))) throw wrong(`calls that allow ${DECISIONS.join(", ")}`);
  return parsed(() =>
    fromJson(ToolApprovalSchema, {
      tool_call_id: given["id"] ?? "",
      tool_name: given["name"] ?? "",
      arguments: given["arguments"] ?? {},
      allowed: allowed.map((kind) => `APPROVAL_DECISION_KIND_${kind.toUpperCase()}`),
    }),
  );
}

function object(item: JsonValue): JsonObject {
  if (!isObject(item)) throw wrong("a list of objects");
  return item;
}

function parsed<T>(parse: () => T): T {
  try {
    return parse();
  } catch {
    throw wrong("fields and calls as the vocabulary has them");
  }
}

function wrong(expected: string): HarnessError {
  return new HarnessError("configuration", `The step \`interrupt\` needs ${expected}.`, { code: "step_invalid" });
}
