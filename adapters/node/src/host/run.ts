/** One run in a host: its provider's stream is checked, numbered, kept until durable, and stopped when it must be. */

import { create } from "@bufbuild/protobuf";
import { setImmediate } from "node:timers/promises";

import { SideEffectStatus } from "../../gen/harness/common/v1/error_pb.js";
import { type EventDraft, EventDraftSchema } from "../../gen/harness/event/v1/event_pb.js";
import { CancelReason } from "../../gen/harness/event/v1/payload_pb.js";
import { classified, failedDraft } from "../errors.js";
import { describe, log } from "../log.js";
import { Bell } from "./bell.js";
import { DraftBuffer } from "./buffer.js";
import { Lifecycle, missingTerminal } from "./lifecycle.js";
import { CANCEL_GRACE, type FlowLimits, MAX_TIMER } from "./limits.js";
import type { Dispensable, DraftMemory } from "./memory.js";
import * as refusal from "./refusal.js";
import { ProtocolViolation } from "./violation.js";
import { LATE, within } from "./within.js";

/** Drafts taken from a provider that never waits, before other work of the process gets its turn. */
const DRAFTS_PER_SLICE = 64;
/** How long a batch gathers after the first one, and when it is large enough to go at once. */
const LINGER = 2;
const LARGE_BATCH = 64;

export interface RunIdentity {
  readonly runId: string;
  readonly turn: number;
  readonly generation: number;
  /** Moment of the system's clock, in milliseconds. */
  readonly deadline: number;
}

export interface Batch {
  readonly firstOffset: number;
  readonly drafts: EventDraft[];
}

export type EventStream = AsyncIterable<EventDraft>;

/** A run from its admission until all its drafts are acknowledged. */
export class Run implements Dispensable {
  readonly runId: string;
  readonly turn: number;
  readonly deadline: number;
  sideEffects = SideEffectStatus.NONE;

  readonly #flow: FlowLimits;
  readonly #memory: DraftMemory;
  readonly #buffer: DraftBuffer;
  readonly #lifecycle = new Lifecycle();
  readonly #abort = new AbortController();
  /** Rung when there is more to read, or another reader. */
  readonly #progress = new Bell();
  readonly #acknowledged = new Bell();
  readonly #attached = new Bell();
  #generation: number;
  #driver: Promise<void> | undefined;
  #working = false;
  #stopping: Promise<void> | undefined;
  /** From here on events are late: a terminal was accepted, or a cancel has begun. */
  #closed = false;
  #discarded = 0;
  /** Number of the youngest reader, and through which offset it was given drafts. */
  #reader = 0;
  #sent = 0;
  #acked = 0;
  /** Whether the run has ended and nobody came for what is left of it. */
  #orphaned = false;
  #deadlineTimer: NodeJS.Timeout | undefined;
  #detachTimer: NodeJS.Timeout | undefined;

  constructor(identity: RunIdentity, flow: FlowLimits, memory: DraftMemory) {
    this.runId = identity.runId;
    this.turn = identity.turn;
    this.deadline = identity.deadline;
    this.#generation = identity.generation;
    this.#flow = flow;
    this.#memory = memory;
    this.#buffer = new DraftBuffer(flow, memory);
  }

  /** Aborted when the run must stop. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** The highest run generation seen: an older executor is refused. */
  get generation(): number {
    return this.#generation;
  }

  /** Whether the terminal is in the buffer. */
  get finished(): boolean {
    return this.#lifecycle.ended;
  }

  /** Whether the provider may still be at work. */
  get working(): boolean {
    return this.#working;
  }

  get lastOffset(): number {
    return this.#buffer.last;
  }

  /** Through which offset an executor has said that drafts are durable. */
  get acked(): number {
    return this.#acked;
  }

  /** Whether there are drafts that somebody may still ask for. */
  get keepsDrafts(): boolean {
    return this.#buffer.forgotten < this.#buffer.last;
  }

  /** Whether nobody works on the run any more, and its last reader was given all of it, or nobody came for it in the whole grace. */
  get handedOver(): boolean {
    const given = Math.max(this.#sent, this.#buffer.forgotten) >= this.#buffer.last;
    return !this.#working && (given || this.#orphaned);
  }

  /** A call of this generation came: from now on an older executor is refused (I10). */
  attachExecutor(generation: number): void {
    if (generation < this.#generation) throw refusal.staleLease("Another executor has taken the run.");
    if (generation === this.#generation) return;
    this.#generation = generation;
    this.#attached.ring();
  }

  /** Whether an executor of another generation attached within the bound. */
  async waitForAnother(generation: number, milliseconds: number): Promise<boolean> {
    if (this.#generation === generation) await this.#attached.wait(this.signal, milliseconds);
    return this.#generation !== generation;
  }

  /** Begins the run; what comes of it is read with `follow`. `released` is called when the provider is done with it. */
  start(open: () => Promise<EventStream>, released: () => void): void {
    this.#working = true;
    this.#deadlineTimer = setTimeout(
      () => void this.stop(CancelReason.DEADLINE, CANCEL_GRACE),
      Math.min(Math.max(0, this.deadline - Date.now()), MAX_TIMER),
    );
    this.#awaitReader();
    this.#driver = this.#drive(open).finally(() => {
      this.#working = false;
      clearTimeout(this.#deadlineTimer);
      if (this.#discarded > 0) log("warning", "late_events_discarded", { run_id: this.runId, count: this.#discarded });
      this.#settle();
      released();
    });
  }

  // --- reading ---

  /**
   * Batches of drafts after offset `after`, to the terminal. A younger call ends this one with `stream_superseded`. Leaving it does
   * not end the run: the detach grace begins.
   */
  async *follow(after: number, caller: AbortSignal): AsyncGenerator<Batch> {
    if (after > this.#buffer.last) throw refusal.offsetAhead(this.#buffer.last);
    if (after < this.#buffer.forgotten) throw refusal.offsetForgotten(this.#buffer.forgotten + 1);
    this.#reader += 1;
    const me = this.#reader;
    // Who comes again wants it all again: until then nothing of it is given up.
    this.#sent = after;
    this.#orphaned = false;
    this.#memory.withdraw(this);
    this.#progress.ring();
    clearTimeout(this.#detachTimer);
    try {
      yield* this.#batches(after, caller, () => me === this.#reader);
    } finally {
      if (me === this.#reader) {
        this.#awaitReader();
        this.#settle();
      }
    }
  }

  async *#batches(after: number, caller: AbortSignal, isYoungest: () => boolean): AsyncGenerator<Batch> {
    let position = after;
    // When what has gathered goes, by the monotonic clock; the first batch goes at once.
    let due = 0;
    while (isYoungest()) {
      if (caller.aborted) return;
      // An acknowledgement may have come from another stream of this run.
      position = Math.max(position, this.#buffer.forgotten);
      const fresh = this.#buffer.last - position;
      if (fresh === 0) {
        if (this.finished) return;
        await this.#progress.wait(caller);
        due = position === after ? 0 : performance.now() + LINGER;
      } else if (fresh < LARGE_BATCH && !this.finished && performance.now() < due) {
        await this.#progress.wait(caller, due - performance.now());
      } else {
        const drafts = this.#buffer.read(position);
        const firstOffset = position + 1;
        position += drafts.length;
        this.#sent = Math.max(this.#sent, position);
        yield { firstOffset, drafts };
      }
    }
    throw refusal.streamSuperseded();
  }

  /** Drafts through `through` are durable. A lower offset than before changes nothing; one that does not exist is refused. */
  acknowledge(through: number): void {
    if (through > this.#buffer.last) throw refusal.offsetAhead(this.#buffer.last);
    this.#acked = Math.max(this.#acked, through);
    this.#buffer.forget(through);
    this.#acknowledged.ring();
    this.#settle();
  }

  /** Forgets drafts although nobody said that they are durable; who asks for them is refused. */
  giveUpDrafts(): void {
    if (!this.keepsDrafts) return;
    log("warning", "drafts_given_up", { run_id: this.runId, through: this.#buffer.last });
    this.#buffer.forget(this.#buffer.last);
    this.#settle();
  }

  #settle(): void {
    if (!this.finished || this.#working) return;
    if (!this.keepsDrafts) {
      clearTimeout(this.#detachTimer);
      this.#memory.withdraw(this);
    } else if (this.handedOver) {
      this.#memory.offer(this);
    }
  }

  #awaitReader(): void {
    clearTimeout(this.#detachTimer);
    this.#detachTimer = setTimeout(() => this.#onDetached(), this.#flow.detachGrace);
  }

  #onDetached(): void {
    if (this.finished) {
      // Kept all the same until others need the room: who comes late still gets the truth.
      this.#orphaned = true;
      this.#settle();
      return;
    }
    log("warning", "run_detached_too_long", { run_id: this.runId });
    void this.stop(CancelReason.SHUTDOWN, CANCEL_GRACE);
    this.#awaitReader();
  }

  // --- driving ---

  async #drive(open: () => Promise<EventStream>): Promise<void> {
    try {
      const stream = await open();
      if (this.#closed) return;
      this.sideEffects = SideEffectStatus.POSSIBLE;
      await this.#pump(stream);
    } catch (error) {
      this.#fail(error);
    }
  }

  async #pump(stream: EventStream): Promise<void> {
    let count = 0;
    await this.#room();
    // Leaving the loop closes the provider's stream: what it holds is freed in its own `finally`.
    for await (const draft of stream) {
      if (this.#closed) {
        this.#discarded += 1;
        return;
      }
      for (const entry of this.#lifecycle.accept(draft)) this.#buffer.append(entry);
      this.#progress.ring();
      if (this.#lifecycle.ended) {
        this.#closed = true;
        return;
      }
      await this.#room();
      count += 1;
      if (count % DRAFTS_PER_SLICE === 0) await setImmediate();
    }
    if (!this.#closed) throw missingTerminal();
  }

  /** Backpressure: the provider is not read until the control plane has stored what it has, of this run or of others. */
  async #room(): Promise<void> {
    for (;;) {
      if (this.#memory.isFull) this.#memory.makeRoom();
      if (this.#closed || !(this.#buffer.isFull || this.#memory.isFull)) return;
      const waits = new AbortController();
      const signal = AbortSignal.any([this.signal, waits.signal]);
      await Promise.race([this.#acknowledged.wait(signal), this.#memory.wait(signal)]);
      waits.abort();
    }
  }

  #fail(error: unknown): void {
    if (this.#closed || this.finished) {
      // What a stopped provider throws is how it stops.
      if (!this.signal.aborted) log("warning", "failed_after_terminal", { run_id: this.runId, error: describe(error) });
      return;
    }
    const failure = classified(error);
    const violation = failure instanceof ProtocolViolation ? { rule: failure.rule, violation: failure.violation } : {};
    log("error", "run_failed", { run_id: this.runId, error: describe(error), code: failure.code, ...violation });
    const showed = this.#buffer.last > 0;
    const effects = this.sideEffects === SideEffectStatus.NONE ? SideEffectStatus.NONE : failure.sideEffects(showed);
    this.sideEffects = effects;
    this.#finish(failedDraft(failure, effects));
  }

  #finish(terminal: EventDraft): void {
    this.#closed = true;
    for (const entry of this.#lifecycle.accept(terminal)) this.#buffer.append(entry);
    this.#progress.ring();
    this.#settle();
  }

  // --- ending ---

  /**
   * Ends the run, if it has not ended, and its provider's work: after it resolves `finished` holds and no event follows (I12).
   * Idempotent; the first reason counts. `grace` is how long the provider may take to stop in order.
   */
  stop(reason: CancelReason, grace: number): Promise<void> {
    this.#stopping ??= this.#stop(reason, grace);
    return this.#stopping;
  }

  async #stop(reason: CancelReason, grace: number): Promise<void> {
    this.#closed = true;
    this.#abort.abort();
    if (this.#driver !== undefined && (await within(grace, this.#driver)) === LATE) {
      log("error", "provider_ignores_cancellation", { run_id: this.runId });
    }
    if (!this.finished) {
      const value = { reason, sideEffectStatus: this.sideEffects };
      this.#finish(create(EventDraftSchema, { payload: { kind: { case: "runCancelled", value } } }));
    }
  }
}
