/** Constructors of the events this harness yields (events, Vocabulary). */

import { create, fromJson, type JsonObject, type JsonValue, type MessageInitShape } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";

import { type EventDraft, EventDraftSchema } from "../../gen/harness/event/v1/event_pb.js";
import { type EventPayloadSchema, InterruptType, ToolOutcome } from "../../gen/harness/event/v1/payload_pb.js";
import type { FormFieldSchema, ToolApprovalSchema, ToolCompleted } from "../../gen/harness/event/v1/payload_pb.js";

type KindInit = NonNullable<MessageInitShape<typeof EventPayloadSchema>["kind"]>;
/** Path of subagent ids, empty at the root. */
export type Namespace = readonly string[];

function draft(kind: KindInit, namespace: Namespace = []): EventDraft {
  return create(EventDraftSchema, { namespace: [...namespace], payload: { kind } });
}

export const text = (body: string, messageId: string, namespace: Namespace = []): EventDraft =>
  draft({ case: "contentDelta", value: { messageId, text: body } }, namespace);

export const reasoning = (body: string, messageId: string, namespace: Namespace = []): EventDraft =>
  draft({ case: "reasoningDelta", value: { messageId, text: body } }, namespace);

/** Without `args` they follow as `toolArguments` fragments. */
export const toolStarted = (
  toolCallId: string,
  toolName: string,
  args: JsonObject | undefined,
  namespace: Namespace = [],
): EventDraft =>
  draft(
    { case: "toolStarted", value: { toolCallId, toolName, ...(args === undefined ? {} : { arguments: args }) } },
    namespace,
  );

export const toolArguments = (toolCallId: string, delta: string, namespace: Namespace = []): EventDraft =>
  draft({ case: "toolArgumentsDelta", value: { toolCallId, delta } }, namespace);

export const toolSucceeded = (
  toolCallId: string,
  result: JsonValue | undefined,
  namespace: Namespace = [],
): EventDraft =>
  draft(
    {
      case: "toolCompleted",
      value: {
        toolCallId,
        outcome: ToolOutcome.SUCCESS,
        ...(result === undefined ? {} : { result: fromJson(ValueSchema, result) }),
      },
    },
    namespace,
  );

export const toolFailed = (
  toolCallId: string,
  code: string,
  message: string,
  retryable: boolean,
  namespace: Namespace = [],
): EventDraft =>
  draft(
    {
      case: "toolCompleted",
      value: { toolCallId, outcome: ToolOutcome.ERROR, error: { code, message, retryable } },
    },
    namespace,
  );

/**
 * A call as the broker completed it. The reason of a rejection is for the model, not for the log: an event has an error with outcome
 * `error` alone.
 */
export const toolCompleted = (toolCallId: string, answer: ToolCompleted, namespace: Namespace = []): EventDraft => {
  const { outcome, result, resultRef, error = { code: "tool_failed" } } = answer;
  const told = outcome === ToolOutcome.ERROR ? { error } : { resultRef, ...(result === undefined ? {} : { result }) };
  return draft({ case: "toolCompleted", value: { toolCallId, outcome, ...told } }, namespace);
};

export const subagentStarted = (
  agentId: string,
  parentToolCallId: string,
  agentName: string,
  namespace: Namespace = [],
): EventDraft => draft({ case: "subagentStarted", value: { agentId, parentToolCallId, agentName } }, namespace);

export const subagentCompleted = (agentId: string, parentToolCallId: string, namespace: Namespace = []): EventDraft =>
  draft({ case: "subagentCompleted", value: { agentId, parentToolCallId, outcome: ToolOutcome.SUCCESS } }, namespace);

export const usage = (inputTokens: number, outputTokens: number): EventDraft =>
  draft({ case: "usageUpdated", value: { inputTokens, outputTokens, final: true } });

export const providerMetadata = (metadata: JsonObject): EventDraft =>
  draft({ case: "providerMetadata", value: { provider: "reference_node", metadata } });

export const sessionUpdated = (nativeSessionId: string): EventDraft =>
  create(EventDraftSchema, { payload: { kind: { case: "sessionUpdated", value: {} } }, nativeSessionId });

export const completed = (): EventDraft => draft({ case: "runCompleted", value: { stopReason: "end_turn" } });

export const interrupted = (interruptId: string): EventDraft =>
  draft({ case: "runInterrupted", value: { interruptId, reason: "The run waits for a decision." } });

export const formRequested = (
  interruptId: string,
  prompt: string,
  fields: MessageInitShape<typeof FormFieldSchema>[],
  namespace: Namespace = [],
): EventDraft =>
  draft(
    {
      case: "interruptRequested",
      value: { interruptId, revision: 1, interruptType: InterruptType.FORM_INPUT, prompt, fields },
    },
    namespace,
  );

export const approvalRequested = (
  interruptId: string,
  prompt: string,
  toolApprovals: MessageInitShape<typeof ToolApprovalSchema>[],
  namespace: Namespace = [],
): EventDraft =>
  draft(
    {
      case: "interruptRequested",
      value: { interruptId, revision: 1, interruptType: InterruptType.TOOL_APPROVAL, prompt, toolApprovals },
    },
    namespace,
  );
