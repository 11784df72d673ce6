/** What of a fence is compared, and what it must have (worker protocol, Fence). */

import type { Fence } from "../../gen/harness/common/v1/fence_pb.js";
import { PROTOCOL_VERSION } from "./limits.js";
import * as refusal from "./refusal.js";

/** What orders the runtimes of a binding. */
export interface Generation {
  readonly epoch: number;
  readonly runtime: number;
}

export function generationOf(fence: Fence): Generation {
  return { epoch: fence.epoch, runtime: fence.runtimeGeneration };
}

/** Whether `one` is older than `other`; nothing is older than what never was. */
export function isLower(one: Generation, other: Generation | undefined): boolean {
  if (other === undefined) return false;
  return one.epoch < other.epoch || (one.epoch === other.epoch && one.runtime < other.runtime);
}

export function isSame(one: Generation, other: Generation | undefined): boolean {
  return one.epoch === other?.epoch && one.runtime === other.runtime;
}

export function checkProtocol(fence: Fence): void {
  if (fence.protocolVersion !== PROTOCOL_VERSION) {
    throw refusal.mismatch(`This process speaks version ${PROTOCOL_VERSION} of the worker protocol only.`);
  }
}

export function checkRun(fence: Fence): void {
  const missing = [
    ...(fence.runId === "" ? ["run_id"] : []),
    ...(fence.turn === 0 ? ["turn"] : []),
    ...(fence.runGeneration === 0 ? ["run_generation"] : []),
  ];
  if (missing.length === 0) return;
  const issues = missing.map((name) => ({
    path: `fence.${name}`,
    code: "required",
    message: "A call about a run names it.",
  }));
  throw refusal.invalid(`The fence names no run: ${missing.join(", ")} is missing.`, issues);
}
