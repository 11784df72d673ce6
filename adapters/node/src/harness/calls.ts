/** Calls of portable tools: asked of the broker, told as events, and held back where a person has to decide (tool service). */

import type { EventDraft } from "../../gen/harness/event/v1/event_pb.js";
import type { ToolApproval } from "../../gen/harness/event/v1/payload_pb.js";
import * as events from "./events.js";
import { isObject, objectOf, type Script, type Step, stringOf } from "./message.js";
import { askedAbout, type Halt, type WaitingCall } from "./pause.js";
import type { Stage } from "./stage.js";

/** A call that the broker holds back until a person has decided. */
export interface HeldCall {
  readonly call: WaitingCall;
  readonly approval: ToolApproval;
}

export function callOf(step: Step, stage: Stage): [call: WaitingCall, streamed: boolean] {
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
export async function* callTool(
  call: WaitingCall,
  streamed: boolean,
  stage: Stage,
): AsyncGenerator<EventDraft, ToolApproval | undefined> {
  const { tools } = stage.turn;
  const toolId = tools.idOf(call.name);
  const answer = await tools.invoke(call.id, toolId, call.arguments);
  if (answer.kind === "waits") return answer.approval;
  yield events.toolStarted(call.id, toolId, streamed ? undefined : call.arguments, stage.namespace);
  if (streamed) {
    for (const fragment of fragments(JSON.stringify(call.arguments)))
      yield events.toolArguments(call.id, fragment, stage.namespace);
  }
  if (answer.kind === "completed") {
    yield events.toolCompleted(call.id, answer.completed, stage.namespace);
  } else {
    yield events.toolFailed(
      call.id,
      answer.code,
      "The tool broker refused the call.",
      answer.retryable,
      stage.namespace,
    );
  }
  return undefined;
}

export async function* askAbout(
  held: readonly HeldCall[],
  rest: Script,
  stage: Stage,
): AsyncGenerator<EventDraft, Halt> {
  const interruptId = `interrupt-${stage.turn.number}`;
  const approvals = held.map(({ approval }) => approval);
  yield events.approvalRequested(interruptId, "May this be called?", approvals, stage.namespace);
  return { interruptId, asked: askedAbout(approvals), waiting: held.map(({ call }) => call), rest };
}

/** As a model would stream them: in small pieces that mean nothing alone. */
function fragments(json: string): string[] {
  return json.match(/.{1,12}/gsu) ?? [];
}
