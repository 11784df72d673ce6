/** Why a call is refused before any run: a status, a reason, and a sentence (worker protocol, Errors). */

import { status } from "@grpc/grpc-js";

import { type CategoryName, type HarnessError } from "../errors.js";

/** One malformed field of a request: where, which rule, what it says; never the value. */
export interface FieldIssue {
  readonly path: string;
  readonly code: string;
  readonly message: string;
}

interface Details {
  readonly category: CategoryName;
  readonly retryable?: boolean;
  /** Seconds. */
  readonly retryAfter?: number | undefined;
  readonly issues?: readonly FieldIssue[];
}

/** A call that is answered with a google.rpc.Status. */
export class Refusal extends Error {
  readonly code: status;
  readonly reason: string;
  readonly details: Details;

  constructor(code: status, reason: string, message: string, details: Details) {
    super(message);
    this.code = code;
    this.reason = reason;
    this.details = details;
  }
}

const CODES: Record<CategoryName, status> = {
  configuration: status.FAILED_PRECONDITION,
  authentication: status.UNAUTHENTICATED,
  authorization: status.PERMISSION_DENIED,
  capacity: status.RESOURCE_EXHAUSTED,
  throttled: status.RESOURCE_EXHAUSTED,
  unavailable: status.UNAVAILABLE,
  timeout: status.DEADLINE_EXCEEDED,
  protocol: status.INTERNAL,
  persistence: status.UNAVAILABLE,
  cancelled: status.CANCELLED,
  internal: status.INTERNAL,
};

/** A classified failure outside a run, by its safe projection (I22). */
export function fromError(error: HarnessError): Refusal {
  const { kind, retryable, retryAfter } = error;
  return new Refusal(CODES[kind], error.code, error.message, { category: kind, retryable, retryAfter });
}

export const staleLease = (message: string): Refusal =>
  new Refusal(status.FAILED_PRECONDITION, "STALE_LEASE", message, { category: "authorization" });

export const runtimeUnknown = (): Refusal =>
  new Refusal(
    status.NOT_FOUND,
    "runtime_unknown",
    "No runtime of this binding, epoch and generation is here; create it first.",
    {
      category: "unavailable",
    },
  );

/** What was started in a runtime that is gone may have had effects: no run of it is started again (I11). */
export const runtimeGone = (): Refusal =>
  new Refusal(
    status.NOT_FOUND,
    "runtime_gone",
    "The runtime of this binding, epoch and generation was here and is no more.",
    {
      category: "unavailable",
    },
  );

export const runUnknown = (): Refusal =>
  new Refusal(status.NOT_FOUND, "run_unknown", "This runtime knows nothing of the run.", { category: "unavailable" });

export const runCancelled = (): Refusal =>
  new Refusal(status.FAILED_PRECONDITION, "run_cancelled", "The run was cancelled before it started.", {
    category: "cancelled",
  });

export const incarnationMismatch = (): Refusal =>
  new Refusal(
    status.FAILED_PRECONDITION,
    "incarnation_mismatch",
    "The run was issued to another incarnation of this process.",
    {
      category: "unavailable",
    },
  );

export const capacity = (message: string): Refusal =>
  new Refusal(status.RESOURCE_EXHAUSTED, "capacity", message, {
    category: "capacity",
    retryable: true,
    retryAfter: 1,
  });

export const busy = (): Refusal =>
  new Refusal(status.ABORTED, "operation_in_progress", "A run or another operation is at work in this runtime.", {
    category: "capacity",
    retryable: true,
  });

export const stopping = (): Refusal =>
  new Refusal(status.UNAVAILABLE, "unavailable", "This host is stopping.", {
    category: "unavailable",
    retryable: true,
  });

export const offsetForgotten = (oldest: number): Refusal =>
  new Refusal(
    status.OUT_OF_RANGE,
    "offset_forgotten",
    `Drafts before offset ${oldest} were acknowledged and are forgotten.`,
    {
      category: "protocol",
    },
  );

export const offsetAhead = (last: number): Refusal =>
  new Refusal(status.OUT_OF_RANGE, "offset_ahead", `The run has no draft after offset ${last}.`, {
    category: "protocol",
  });

/** A younger stream of the run took over; this is not the end of the run. */
export const streamSuperseded = (): Refusal =>
  new Refusal(status.ABORTED, "stream_superseded", "A younger stream of this run took over.", {
    category: "unavailable",
  });

export const invalid = (message: string, issues: readonly FieldIssue[] = []): Refusal =>
  new Refusal(status.INVALID_ARGUMENT, "invalid_request", message, { category: "configuration", issues });

export const mismatch = (message: string): Refusal =>
  new Refusal(status.FAILED_PRECONDITION, "WORKER_MISMATCH", message, { category: "configuration" });

export const unauthenticated = (): Refusal =>
  new Refusal(status.UNAUTHENTICATED, "unauthenticated", "A valid bearer token is needed.", {
    category: "authentication",
  });
