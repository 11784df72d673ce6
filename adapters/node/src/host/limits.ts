/** Bounds of a host and of what it accepts (worker protocol, Operations; I35). Times in milliseconds, sizes in bytes. */

import type { RuntimeLimits } from "../../gen/harness/runtime/v1/runtime_pb.js";

export const PROTOCOL_VERSION = 1;
const MIB = 1024 * 1024;

/** What a host holds and how long. */
export interface HostLimits {
  /** Runs worked on at once; more are refused with CAPACITY. */
  readonly maxRuns: number;
  /** Runtimes kept at once; the longest idle one makes room. */
  readonly maxRuntimes: number;
  /** Drafts that are not yet durable, over all runs. */
  readonly maxBufferedBytes: number;
}

export const DEFAULT_HOST_LIMITS: HostLimits = { maxRuns: 1_000, maxRuntimes: 5_000, maxBufferedBytes: 256 * MIB };

/** Bindings whose highest generation is remembered, and cancelled runs that never came. */
export const REMEMBERED = 10_000;
/** Ended runs kept per runtime, so that repeated calls of them are answered rather than started again. */
export const REMEMBERED_RUNS = 8;
/** A runtime unused for this long is dropped; the control plane creates it again when it needs it. */
export const RUNTIME_IDLE = 600_000;
/** How long a provider may take to stop after a cancel that says nothing about it. */
export const CANCEL_GRACE = 5_000;
/** How long an older turn may take to stop when a younger one is here (I27: cut off within 2 s). */
export const SUPERSEDE_GRACE = 1_000;
/** Bound of a cleanup whose call has no deadline. */
export const CLEANUP = 10_000;
/** The longest a timer of Node can wait. */
export const MAX_TIMER = 2 ** 31 - 1;

/** Flow bounds of one runtime. */
export interface FlowLimits {
  readonly maxEvents: number;
  readonly maxBytes: number;
  readonly detachGrace: number;
}

/** The contract's values: zero means the default, and none is above this host's own. */
export function flowLimits(given: RuntimeLimits | undefined): FlowLimits {
  return {
    maxEvents: Math.min(given?.maxUnackedEvents || 16_384, 65_536),
    maxBytes: Math.min(given?.maxUnackedBytes || 16 * MIB, 64 * MIB),
    detachGrace: Math.min(given?.detachGraceSeconds || 60, 3_600) * 1000,
  };
}
