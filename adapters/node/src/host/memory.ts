/** The memory all runs of a host share for drafts that are not yet durable: bounded in total (I35). */

import { Bell } from "./bell.js";

/** What can give up its drafts when others need the room. */
export interface Dispensable {
  giveUpDrafts(): void;
}

/**
 * Counts encoded bytes over all runs. Past the bound ended runs that were handed over give theirs up, the oldest first; when that
 * is not enough, no provider is read until there is room.
 */
export class DraftMemory {
  readonly #maxBytes: number;
  readonly #room = new Bell();
  /** Oldest first. */
  readonly #dispensable = new Set<Dispensable>();
  #used = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get isFull(): boolean {
    return this.#used >= this.#maxBytes;
  }

  take(size: number): void {
    this.#used += size;
  }

  free(size: number): void {
    this.#used -= size;
    if (size > 0 && !this.isFull) this.#room.ring();
  }

  /** The run has ended, and its reader has been given all of it. */
  offer(run: Dispensable): void {
    this.#dispensable.add(run);
    this.makeRoom();
  }

  /** The run's drafts are gone, or somebody reads them again. */
  withdraw(run: Dispensable): void {
    this.#dispensable.delete(run);
  }

  makeRoom(): void {
    for (const run of this.#dispensable) {
      if (!this.isFull) return;
      this.#dispensable.delete(run);
      run.giveUpDrafts();
    }
  }

  /** Resolves when there may be room. */
  wait(signal: AbortSignal): Promise<void> {
    return this.#room.wait(signal);
  }
}
