/** Waiting for something to change, without polling. */

/** Wakes all who wait when it is rung. Whoever was woken looks again at what it waits for. */
export class Bell {
  #waiting = new Set<() => void>();

  ring(): void {
    const woken = this.#waiting;
    this.#waiting = new Set();
    for (const wake of woken) wake();
  }

  /** Resolves at the next ring, after `milliseconds`, or when `signal` is aborted, whichever is first. */
  wait(signal?: AbortSignal, milliseconds?: number): Promise<void> {
    return new Promise((resolve) => {
      if (signal?.aborted) {
        resolve();
        return;
      }
      const waiting = this.#waiting;
      const wake = (): void => {
        clearTimeout(timer);
        waiting.delete(wake);
        signal?.removeEventListener("abort", wake);
        resolve();
      };
      const timer = milliseconds === undefined ? undefined : setTimeout(wake, milliseconds);
      waiting.add(wake);
      signal?.addEventListener("abort", wake, { once: true });
    });
  }
}
