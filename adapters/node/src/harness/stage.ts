/** Where a script plays. */

import type { ResumeDecision } from "../../gen/harness/runtime/v1/runtime_pb.js";
import type { Turn } from "../host/contract.js";
import type { Namespace } from "./events.js";

/** Ids of messages and calls count through the whole turn, subagents included. */
export interface Stage {
  readonly turn: Turn;
  readonly namespace: Namespace;
  readonly nextId: (prefix: string) => string;
  readonly decision: ResumeDecision | undefined;
  readonly durable: boolean;
}

export function stageOf(turn: Turn, durable: boolean, decision?: ResumeDecision): Stage {
  let begun = 0;
  const nextId = (prefix: string): string => {
    begun += 1;
    return `${prefix}${begun}`;
  };
  return { turn, durable, decision, namespace: [], nextId };
}
