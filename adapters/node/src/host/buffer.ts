/** Drafts of one run that are not yet durable: numbered from 1, bounded, forgotten when durable (worker protocol, AckRun). */

import { toBinary } from "@bufbuild/protobuf";

import { type EventDraft, EventDraftSchema } from "../../gen/harness/event/v1/event_pb.js";
import type { FlowLimits } from "./limits.js";
import type { DraftMemory } from "./memory.js";

const MAX_BATCH_EVENTS = 512;
const MAX_BATCH_BYTES = 512 * 1024;
// Forgotten places at the front of the array before it is cut.
const SLACK = 1_024;

interface Entry {
  readonly draft: EventDraft;
  readonly size: number;
}

/** Numbers drafts and keeps them until told to forget them. Nothing is dropped by itself; whoever appends asks `isFull` first. */
export class DraftBuffer {
  /** Offset of the last draft; zero: there is none. */
  last = 0;
  /** Through which offset drafts are forgotten. */
  forgotten = 0;

  readonly #limits: FlowLimits;
  readonly #memory: DraftMemory;
  #entries: Entry[] = [];
  #front = 0;
  #bytes = 0;

  constructor(limits: FlowLimits, memory: DraftMemory) {
    this.#limits = limits;
    this.#memory = memory;
  }

  /** Whether the provider must not be read any further. */
  get isFull(): boolean {
    return this.last - this.forgotten >= this.#limits.maxEvents || this.#bytes >= this.#limits.maxBytes;
  }

  /** Takes the next offset for `draft`. A terminal may come on top of a full buffer. */
  append(draft: EventDraft): void {
    const size = toBinary(EventDraftSchema, draft).length;
    this.#entries.push({ draft, size });
    this.#bytes += size;
    this.last += 1;
    this.#memory.take(size);
  }

  /** Forgets drafts through offset `through`; a lower offset than before changes nothing. */
  forget(through: number): void {
    const before = this.#bytes;
    while (this.forgotten < through && this.forgotten < this.last) {
      this.#bytes -= this.#entries[this.#front]?.size ?? 0;
      this.#front += 1;
      this.forgotten += 1;
    }
    if (this.#front >= SLACK || this.forgotten === this.last) {
      this.#entries = this.#entries.slice(this.#front);
      this.#front = 0;
    }
    this.#memory.free(before - this.#bytes);
  }

  /** The next drafts after offset `after`, at least `forgotten`: bounded in number, and in bytes unless the first alone is more. */
  read(after: number): EventDraft[] {
    const start = this.#front + after - this.forgotten;
    const drafts: EventDraft[] = [];
    let bytes = 0;
    for (const { draft, size } of this.#entries.slice(start, start + MAX_BATCH_EVENTS)) {
      bytes += size;
      if (bytes > MAX_BATCH_BYTES && drafts.length > 0) break;
      drafts.push(draft);
    }
    return drafts;
  }
}
