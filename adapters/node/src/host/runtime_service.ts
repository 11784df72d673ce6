/** `harness.runtime.v1.RuntimeService`: translate, call, translate back. */

import type { Duration } from "@bufbuild/protobuf/wkt";

import { SideEffectStatus } from "../../gen/harness/common/v1/error_pb.js";
import type { RuntimeService } from "../../gen/harness/runtime/v1/runtime_service_pb.js";
import { CANCEL_GRACE, CLEANUP } from "./limits.js";
import type { Registry } from "./registry.js";
import * as refusal from "./refusal.js";
import type { Call, Handlers } from "./service.js";

/** Part of the caller's deadline that an operation may use, so that the caller hears the answer. */
const SHARE = 0.9;
const LEAST = 50;

export function runtimeHandlers(registry: Registry): Handlers<typeof RuntimeService> {
  return {
    async initialize({ fence }) {
      return { initialized: await registry.find(required(fence)).initialize() };
    },

    async *startRun({ fence, incarnation, turn }, call) {
      const run = registry.start({ fence: required(fence), incarnation, turn: required(turn) });
      for await (const batch of run.follow(run.acked, call.signal)) yield { batch };
    },

    async *resumeRun({ fence, incarnation, turn, decision }, call) {
      const run = registry.start({
        fence: required(fence),
        incarnation,
        turn: required(turn),
        decision: required(decision),
      });
      for await (const batch of run.follow(run.acked, call.signal)) yield { batch };
    },

    async *attachRun({ fence, incarnation, afterOffset }, call) {
      const run = registry.attach(required(fence), incarnation);
      // Says that the stream stands, although there is nothing new.
      if (afterOffset === run.lastOffset) yield {};
      for await (const batch of run.follow(afterOffset, call.signal)) yield { batch };
    },

    async ackRun({ fence, throughOffset }) {
      registry.known(required(fence)).acknowledge(throughOffset);
      return {};
    },

    async cancelRun({ fence, reason, grace }) {
      const run = registry.findToCancel(required(fence));
      if (run === undefined) return { alreadyEnded: false, sideEffectStatus: SideEffectStatus.NONE };
      const alreadyEnded = run.finished;
      await run.stop(reason, grace === undefined ? CANCEL_GRACE : milliseconds(grace));
      return { alreadyEnded, sideEffectStatus: run.sideEffects };
    },

    async getPendingInterrupt({ fence }) {
      const interrupt = registry.find(required(fence)).pendingInterrupt();
      return interrupt === undefined ? {} : { interrupt };
    },

    async restart({ fence }) {
      await registry.find(required(fence)).restart();
      return {};
    },

    async cleanup({ fence }, call) {
      await registry.cleanup(required(fence), bound(call, CLEANUP));
      return {};
    },
  };
}

/** How long an operation of at most `most` milliseconds may take for this caller. */
export function bound(call: Call, most: number): number {
  const left = call.remaining();
  return left === undefined ? most : Math.max(LEAST, Math.min(left * SHARE, most));
}

/** A message that the contract requires; the boundary has refused requests without it. */
export function required<T>(message: T | undefined): T {
  if (message === undefined) throw refusal.invalid("The request lacks a required message.");
  return message;
}

function milliseconds(duration: Duration): number {
  return Math.max(0, Number(duration.seconds) * 1000 + duration.nanos / 1e6);
}
