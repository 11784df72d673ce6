/** What a host and the harness it serves are to each other. A second harness would implement this and share everything in `host`. */

import type { JsonObject } from "@bufbuild/protobuf";

import type { Descriptor } from "../../gen/harness/adapter/v1/descriptor_pb.js";
import type { AgentBlueprint } from "../../gen/harness/common/v1/blueprint_pb.js";
import type { Issue } from "../../gen/harness/common/v1/error_pb.js";
import type { HealthStatus } from "../../gen/harness/common/v1/health_pb.js";
import type { Placement } from "../../gen/harness/common/v1/placement_pb.js";
import type { PendingInterrupt, ResumeDecision, RuntimeContext } from "../../gen/harness/runtime/v1/runtime_pb.js";
import type { ThreadState } from "../facade/thread.js";
import type { Tools } from "../facade/tools.js";
import type { EventStream } from "./run.js";

/** One turn, as the harness sees it. */
export interface Turn {
  readonly runId: string;
  /** Number of the turn in its binding, from 1. */
  readonly number: number;
  readonly message: string;
  /** The native session as committed now; empty when there is none. */
  readonly nativeSessionId: string;
  /** Revision of the thread's committed head; zero: there is none. */
  readonly threadRevision: number;
  /** Aborted when the run must stop: pass it to everything that waits. */
  readonly signal: AbortSignal;
  readonly thread: ThreadState;
  readonly tools: Tools;
}

/** One binding's runtime. The host calls one of `prepare`, `stream`, `resume` and `release` at a time. */
export interface HarnessRuntime {
  /** Prepares what turns need. Called before the first turn and again after `release`; an error is kept and given again. */
  prepare(): Promise<void>;
  /** Runs one turn: any events, then exactly one terminal. */
  stream(turn: Turn): EventStream;
  /** Runs the turn that answers an interrupt; the same rules. */
  resume(turn: Turn, decision: ResumeDecision): EventStream;
  /** The canonical summary of the native pause, if there is one. */
  pendingInterrupt(): PendingInterrupt | undefined;
  /** Releases what is held of the provider; durable conversation state stays. Idempotent. */
  release(): Promise<void>;
}

/** One bounded look at something the harness needs, free of side effects. */
export interface Finding {
  readonly name: string;
  readonly status: HealthStatus;
  readonly reason?: string;
}

export interface Verdict {
  readonly issues: readonly Omit<Issue, "$typeName" | "$unknown">[];
  readonly normalizedOptions: JsonObject;
}

export interface Harness {
  readonly descriptor: Descriptor;
  health(): Promise<readonly Finding[]>;
  /** Whether and how a blueprint can run. Pure. */
  evaluate(blueprint: AgentBlueprint, placement: Placement, profileSettings: JsonObject): Verdict;
  createRuntime(context: RuntimeContext): HarnessRuntime;
}
