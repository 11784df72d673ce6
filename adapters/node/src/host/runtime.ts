/** One binding's runtime in a host: fences its turns, lets one operation work at a time, prepares once (worker protocol). */

import { timestampMs } from "@bufbuild/protobuf/wkt";

import type { Fence } from "../../gen/harness/common/v1/fence_pb.js";
import { CancelReason } from "../../gen/harness/event/v1/payload_pb.js";
import type {
  PendingInterrupt,
  ResumeDecision,
  RuntimeContext,
  TurnInput,
} from "../../gen/harness/runtime/v1/runtime_pb.js";
import { type Audience, FacadeAccess } from "../facade/access.js";
import type { FacadeChannels } from "../facade/channels.js";
import { ThreadState } from "../facade/thread.js";
import { Tools } from "../facade/tools.js";
import { HarnessError } from "../errors.js";
import { describe, log } from "../log.js";
import type { HarnessRuntime, Turn } from "./contract.js";
import { CANCEL_GRACE, type FlowLimits, flowLimits, REMEMBERED_RUNS, SUPERSEDE_GRACE } from "./limits.js";
import type { DraftMemory } from "./memory.js";
import * as refusal from "./refusal.js";
import { type EventStream, Run } from "./run.js";
import { LATE, within } from "./within.js";
import { withPendingHead } from "./pending_head.js";

/** A runtime with its fence. It serves one binding, epoch and runtime generation for life. */
export class RuntimeSlot {
  readonly bindingId: string;
  closed = false;
  /** Moment of the monotonic clock. */
  usedAt = performance.now();

  readonly #harness: HarnessRuntime;
  readonly #context: RuntimeContext;
  readonly #flow: FlowLimits;
  readonly #channels: FacadeChannels;
  readonly #memory: DraftMemory;
  /** Ended runs, oldest first: repeated calls of them are answered, not started again. */
  readonly #past = new Map<string, Run>();
  #run: Run | undefined;
  #turn = 0;
  #ready: Promise<void> | undefined;
  #restarting = false;

  constructor(
    bindingId: string,
    harness: HarnessRuntime,
    context: RuntimeContext,
    channels: FacadeChannels,
    memory: DraftMemory,
  ) {
    this.bindingId = bindingId;
    this.#harness = harness;
    this.#context = context;
    this.#flow = flowLimits(context.limits);
    this.#channels = channels;
    this.#memory = memory;
  }

  /** Whether it may be dropped: nothing works here, and what its last run said was handed over. */
  get idle(): boolean {
    return !this.#restarting && (this.#run === undefined || this.#run.handedOver);
  }

  // --- runs ---

  /** The run of the fence, if it is here, after its generation was checked and taken over. */
  find(fence: Fence): Run | undefined {
    const run = this.#run?.runId === fence.runId ? this.#run : this.#past.get(fence.runId);
    run?.attachExecutor(fence.runGeneration);
    return run;
  }

  /** A new run, which ends whatever an older turn still does (I6). */
  admit(fence: Fence, turn: TurnInput, decision: ResumeDecision | undefined, released: (run: Run) => void): Run {
    // A turn belongs to one run, and an older one never works beside a younger.
    if (fence.turn <= this.#turn) throw refusal.staleLease("A younger turn has reached this runtime.");
    if (this.#restarting) throw refusal.busy();
    const deadline = turn.deadline === undefined ? Date.now() : timestampMs(turn.deadline);
    const run = new Run(
      { runId: fence.runId, turn: fence.turn, generation: fence.runGeneration, deadline },
      this.#flow,
      this.#memory,
    );
    const older = this.#run;
    if (older !== undefined) this.#remember(older);
    this.#turn = fence.turn;
    this.#run = run;
    run.start(
      () => this.#open(older, this.#turnOf(run, fence, turn), decision),
      () => {
        this.usedAt = performance.now();
        released(run);
      },
    );
    return run;
  }

  async #open(older: Run | undefined, turn: Turn, decision: ResumeDecision | undefined): Promise<EventStream> {
    if (older?.working) {
      await older.stop(CancelReason.SUPERSEDED, SUPERSEDE_GRACE);
      if (older.working)
        throw new HarnessError("unavailable", "The runtime's older turn does not stop.", {
          code: "runtime_stuck",
        });
    }
    await this.initialize();
    const stream = decision === undefined ? this.#harness.stream(turn) : this.#harness.resume(turn, decision);
    return withPendingHead(stream, turn.thread);
  }

  #turnOf(run: Run, fence: Fence, turn: TurnInput): Turn {
    return {
      runId: run.runId,
      number: run.turn,
      message: turn.message,
      nativeSessionId: turn.nativeSessionId,
      threadRevision: turn.threadRevision,
      signal: run.signal,
      thread: new ThreadState(this.#access("state", run, fence, turn)),
      tools: new Tools(this.#access("tool", run, fence, turn), this.#context.tools),
    };
  }

  #access(audience: Audience, run: Run, fence: Fence, turn: TurnInput): FacadeAccess | undefined {
    const addresses = this.#context.facades
      .filter((facade) => facade.audience === audience)
      .map((facade) => facade.address);
    const token = turn.tokens.find((each) => each.audience === audience)?.value;
    if (addresses.length === 0 || token === undefined) return undefined;
    return new FacadeAccess(
      audience,
      addresses.map((address) => () => this.#channels.client(address)),
      fence,
      token,
      run,
    );
  }

  #remember(run: Run): void {
    this.#past.set(run.runId, run);
    for (const oldest of this.#past.keys()) {
      if (this.#past.size <= REMEMBERED_RUNS) break;
      this.#past.delete(oldest);
    }
  }

  // --- the other operations ---

  /** Whether this call did the work. After a failure the same error again. */
  async initialize(): Promise<boolean> {
    const first = this.#ready === undefined;
    this.#ready ??= this.#harness.prepare();
    await this.#ready;
    return first;
  }

  /** Releases what the provider holds, to be made again on next use; refused while anything else works. */
  async restart(): Promise<void> {
    if (this.#restarting || this.#run?.working) throw refusal.busy();
    this.#restarting = true;
    try {
      await this.#harness.release();
      this.#ready = undefined;
    } finally {
      this.#restarting = false;
    }
  }

  pendingInterrupt(): PendingInterrupt | undefined {
    return this.#harness.pendingInterrupt();
  }

  /** Ends the run, if any, and releases everything within the bound. Idempotent; it never fails its caller (I20). */
  async cleanup(milliseconds: number, reason: CancelReason): Promise<void> {
    this.closed = true;
    try {
      const half = milliseconds / 2;
      await this.#run?.stop(reason, Math.min(CANCEL_GRACE, half));
      if ((await within(half, this.#harness.release())) === LATE) log("error", "cleanup_cut_off");
    } catch (error) {
      log("error", "cleanup_failed", { error: describe(error) });
    }
  }
}
