/** The runtimes of one process: created, found by their fence, ended by a higher generation, dropped when idle (worker protocol, Fence). */

import type { Fence } from "../../gen/harness/common/v1/fence_pb.js";
import { CancelReason } from "../../gen/harness/event/v1/payload_pb.js";
import type { ResumeDecision, RuntimeContext, TurnInput } from "../../gen/harness/runtime/v1/runtime_pb.js";
import { FacadeChannels } from "../facade/channels.js";
import { log } from "../log.js";
import { Bell } from "./bell.js";
import type { Harness } from "./contract.js";
import { checkProtocol, checkRun, type Generation, generationOf, isLower, isSame } from "./fence.js";
import { CLEANUP, type HostLimits, REMEMBERED, RUNTIME_IDLE } from "./limits.js";
import { DraftMemory } from "./memory.js";
import * as refusal from "./refusal.js";
import type { Run } from "./run.js";
import { RuntimeSlot } from "./runtime.js";

/** A run to start, or to join. */
export interface StartRequest {
  readonly fence: Fence;
  readonly incarnation: string;
  readonly turn: TurnInput;
  readonly decision?: ResumeDecision | undefined;
}

/** All runtimes of this process's incarnation. */
export class Registry {
  readonly incarnation: string;
  readonly limits: HostLimits;
  stopping = false;

  readonly #harness: Harness;
  readonly #channels = new FacadeChannels();
  readonly #memory: DraftMemory;
  /** By binding, the longest unused first. */
  readonly #slots = new Map<string, RuntimeSlot>();
  /** The highest generation seen of a binding, also of runtimes that are gone. */
  readonly #highest = new Map<string, Generation>();
  /** Runs that were cancelled before they came. */
  readonly #cancelled = new Set<string>();
  readonly #active = new Set<Run>();
  readonly #released = new Bell();
  readonly #sweeper: NodeJS.Timeout;

  constructor(harness: Harness, incarnation: string, limits: HostLimits) {
    this.#harness = harness;
    this.incarnation = incarnation;
    this.limits = limits;
    this.#memory = new DraftMemory(limits.maxBufferedBytes);
    this.#sweeper = setInterval(() => this.#dropIdle(performance.now() - RUNTIME_IDLE), RUNTIME_IDLE / 10);
  }

  /** Runs whose provider is at work. */
  get activeRuns(): number {
    return this.#active.size;
  }

  /** Whether no provider is read until drafts are acknowledged. */
  get outOfMemory(): boolean {
    return this.#memory.isFull;
  }

  // --- runtimes ---

  /** Makes the runtime of the fence; false if it is there. A higher generation ends the older runtime, a lower one is refused. */
  create(fence: Fence, context: RuntimeContext): boolean {
    checkProtocol(fence);
    if (this.stopping) throw refusal.stopping();
    const generation = generationOf(fence);
    const highest = this.#highest.get(fence.bindingId);
    // I5, I27: what was replaced never comes back.
    if (isLower(generation, highest)) throw refusal.staleLease("A younger runtime of this binding has been here.");
    const older = this.#slots.get(fence.bindingId);
    if (older !== undefined && isSame(generation, highest)) {
      this.#touch(older);
      return false;
    }
    this.#makeRoom();
    this.#noteGeneration(fence.bindingId, generation);
    if (older !== undefined) this.#drop(older);
    const runtime = this.#harness.createRuntime(context);
    this.#slots.set(fence.bindingId, new RuntimeSlot(fence.bindingId, runtime, context, this.#channels, this.#memory));
    return true;
  }

  /** The runtime of the fence: a refusal tells an older one, one that never was here, and one that is here no more apart. */
  find(fence: Fence): RuntimeSlot {
    checkProtocol(fence);
    const generation = generationOf(fence);
    const highest = this.#highest.get(fence.bindingId);
    if (isLower(generation, highest)) throw refusal.staleLease("A younger runtime of this binding has been here.");
    if (!isSame(generation, highest)) throw refusal.runtimeUnknown();
    const slot = this.#slots.get(fence.bindingId);
    if (slot === undefined || slot.closed) throw refusal.runtimeGone(); // I11
    return slot;
  }

  /** Ends the runtime of the fence; one that is not here is clean (I20). */
  async cleanup(fence: Fence, milliseconds: number): Promise<void> {
    let slot: RuntimeSlot;
    try {
      slot = this.find(fence);
    } catch (error) {
      if (error instanceof refusal.Refusal && ["runtime_unknown", "runtime_gone"].includes(error.reason)) return;
      throw error;
    }
    this.#slots.delete(slot.bindingId);
    await slot.cleanup(milliseconds, CancelReason.SHUTDOWN);
  }

  // --- runs ---

  /** The run of the fence, started if it is not here yet (I6). */
  start({ fence, incarnation, turn, decision }: StartRequest): Run {
    const slot = this.#slotFor(fence, incarnation);
    this.#touch(slot);
    const known = slot.find(fence);
    if (known !== undefined) return known;
    if (this.#cancelled.has(keyOf(fence))) throw refusal.runCancelled(); // I12
    if (this.stopping) throw refusal.stopping();
    if (this.#active.size >= this.limits.maxRuns)
      throw refusal.capacity(`This host works on ${this.limits.maxRuns} runs already.`);
    const run = slot.admit(fence, turn, decision, (ended) => this.#onReleased(ended));
    this.#active.add(run);
    return run;
  }

  /** The run of the fence, which must be here. */
  attach(fence: Fence, incarnation: string): Run {
    return known(this.#slotFor(fence, incarnation).find(fence));
  }

  /** The run of the fence, for an acknowledgement. */
  known(fence: Fence): Run {
    checkRun(fence);
    return known(this.find(fence).find(fence));
  }

  /** The run to stop; undefined: it is not here, and a later start of it is refused (I12), whether or not its runtime is here. */
  findToCancel(fence: Fence): Run | undefined {
    checkRun(fence);
    try {
      const run = this.find(fence).find(fence);
      if (run === undefined) this.#rememberCancelled(fence);
      return run;
    } catch (error) {
      this.#rememberCancelled(fence);
      throw error;
    }
  }

  // --- life ---

  /** Takes no new work and waits a bounded time for what is at work; the rest is cancelled (I33). */
  async drain(milliseconds: number): Promise<void> {
    this.stopping = true;
    const end = performance.now() + milliseconds;
    while (this.#active.size > 0 && performance.now() < end)
      await this.#released.wait(undefined, end - performance.now());
    if (this.#active.size > 0) log("warning", "runs_cut_off", { count: this.#active.size });
    await Promise.all([...this.#active].map((run) => run.stop(CancelReason.SHUTDOWN, 1_000)));
  }

  /** Releases every runtime, within the bound of a cleanup. */
  async close(): Promise<void> {
    this.stopping = true;
    clearInterval(this.#sweeper);
    const slots = [...this.#slots.values()];
    this.#slots.clear();
    await Promise.all(slots.map((slot) => slot.cleanup(CLEANUP, CancelReason.SHUTDOWN)));
    this.#channels.close();
  }

  #slotFor(fence: Fence, incarnation: string): RuntimeSlot {
    checkRun(fence);
    // I11: what was issued to a dead process is not started by its successor.
    if (incarnation !== this.incarnation) throw refusal.incarnationMismatch();
    return this.find(fence);
  }

  #onReleased(run: Run): void {
    this.#active.delete(run);
    this.#released.ring();
  }

  #touch(slot: RuntimeSlot): void {
    slot.usedAt = performance.now();
    this.#slots.delete(slot.bindingId);
    this.#slots.set(slot.bindingId, slot);
  }

  #makeRoom(): void {
    if (this.#slots.size < this.limits.maxRuntimes) return;
    // I35: executors acknowledge seldom, so an ended run that was read to its end must not count as work.
    const idle = [...this.#slots.values()].find((slot) => slot.idle);
    if (idle === undefined) throw refusal.capacity(`All ${this.limits.maxRuntimes} runtimes of this host are at work.`);
    this.#drop(idle);
  }

  #drop(slot: RuntimeSlot): void {
    // From here on nothing reaches it; its cleanup goes on beside.
    this.#slots.delete(slot.bindingId);
    void slot.cleanup(CLEANUP, CancelReason.SUPERSEDED);
  }

  #dropIdle(unusedSince: number): void {
    for (const slot of this.#slots.values()) {
      if (slot.usedAt <= unusedSince && slot.idle) this.#drop(slot);
    }
  }

  #noteGeneration(bindingId: string, generation: Generation): void {
    this.#highest.delete(bindingId);
    this.#highest.set(bindingId, generation);
    for (const oldest of this.#highest.keys()) {
      if (this.#highest.size <= Math.max(REMEMBERED, this.limits.maxRuntimes)) break;
      this.#highest.delete(oldest);
    }
  }

  #rememberCancelled(fence: Fence): void {
    const key = keyOf(fence);
    this.#cancelled.delete(key);
    this.#cancelled.add(key);
    for (const oldest of this.#cancelled) {
      if (this.#cancelled.size <= REMEMBERED) break;
      this.#cancelled.delete(oldest);
    }
  }
}

function known(run: Run | undefined): Run {
  if (run === undefined) throw refusal.runUnknown();
  return run;
}

// A space stands in no id.
function keyOf(fence: Fence): string {
  return `${fence.bindingId} ${fence.runId}`;
}
