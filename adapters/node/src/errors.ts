/** Failures in the contract's eleven categories, and what of them crosses the adapter's boundary (worker protocol, Errors; I22). */

import { create } from "@bufbuild/protobuf";

import { ErrorCategory, SideEffectStatus } from "../gen/harness/common/v1/error_pb.js";
import { type EventDraft, EventDraftSchema } from "../gen/harness/event/v1/event_pb.js";
import { cleaned } from "./host/text.js";

const MAX_MESSAGE_CHARACTERS = 1000;
const MAX_PROVIDER_CODE_CHARACTERS = 128;
const MAX_RETRY_AFTER_SECONDS = 86_400;
const CODE = /^[a-z][a-z0-9_]{0,63}$/;

interface CategoryRule {
  readonly category: ErrorCategory;
  readonly code: string;
  readonly retryable: boolean;
  /** Whether a provider that answers so has done nothing yet. */
  readonly refuses: boolean;
}

const RULES = {
  configuration: {
    category: ErrorCategory.CONFIGURATION,
    code: "configuration_invalid",
    retryable: false,
    refuses: true,
  },
  authentication: {
    category: ErrorCategory.AUTHENTICATION,
    code: "provider_authentication",
    retryable: false,
    refuses: true,
  },
  authorization: {
    category: ErrorCategory.AUTHORIZATION,
    code: "permission_denied",
    retryable: false,
    refuses: true,
  },
  capacity: { category: ErrorCategory.CAPACITY, code: "capacity", retryable: true, refuses: true },
  throttled: { category: ErrorCategory.THROTTLED, code: "rate_limited", retryable: true, refuses: true },
  unavailable: { category: ErrorCategory.UNAVAILABLE, code: "unavailable", retryable: true, refuses: false },
  timeout: { category: ErrorCategory.TIMEOUT, code: "deadline_exceeded", retryable: false, refuses: false },
  protocol: { category: ErrorCategory.PROTOCOL, code: "protocol_violation", retryable: false, refuses: false },
  persistence: { category: ErrorCategory.PERSISTENCE, code: "persistence_failed", retryable: false, refuses: false },
  cancelled: { category: ErrorCategory.CANCELLED, code: "cancelled", retryable: false, refuses: false },
  internal: { category: ErrorCategory.INTERNAL, code: "internal", retryable: false, refuses: false },
} as const satisfies Record<string, CategoryRule>;

export type CategoryName = keyof typeof RULES;
export const CATEGORY_NAMES = Object.keys(RULES) as readonly CategoryName[];

export interface Particulars {
  /** Stable machine code in lower snake case; the category's own if left out. */
  readonly code?: string;
  /** Whether a new run with the same message may succeed; the category's rule if left out. */
  readonly retryable?: boolean | undefined;
  /** Seconds to wait before a retry. */
  readonly retryAfter?: number | undefined;
  /** Left out: decided from what the run has already shown. */
  readonly sideEffects?: SideEffectStatus;
  /** The provider's own code, for operators; never sensitive. */
  readonly providerCode?: string;
  /** For this process's log alone; it crosses no boundary. */
  readonly diagnostic?: string;
}

/** A classified failure. `message` is public: a sentence of the adapter's own, never a provider's text. */
export class HarnessError extends Error {
  readonly kind: CategoryName;
  readonly particulars: Particulars;

  constructor(kind: CategoryName, message: string, particulars: Particulars = {}) {
    super(message);
    this.kind = kind;
    this.particulars = particulars;
  }

  get category(): ErrorCategory {
    return RULES[this.kind].category;
  }

  get code(): string {
    const given = this.particulars.code ?? "";
    return CODE.test(given) ? given : RULES[this.kind].code;
  }

  get retryable(): boolean {
    return this.particulars.retryable ?? RULES[this.kind].retryable;
  }

  get retryAfter(): number | undefined {
    return this.particulars.retryAfter;
  }

  /** What may have happened outside: a provider that refused did nothing, only what went out before can have had an effect. */
  sideEffects(showedOutput: boolean): SideEffectStatus {
    const given = this.particulars.sideEffects;
    if (given !== undefined) return given;
    return RULES[this.kind].refuses && !showedOutput ? SideEffectStatus.NONE : SideEffectStatus.POSSIBLE;
  }
}

/** `error` itself if it is classified; otherwise an internal one that says nothing of it (I22). */
export function classified(error: unknown): HarnessError {
  if (error instanceof HarnessError) return error;
  return new HarnessError("internal", "The harness failed unexpectedly.", {
    code: "adapter_defect",
    sideEffects: SideEffectStatus.POSSIBLE,
  });
}

/** The terminal `run.failed`: the safe projection and the provider's code, never the diagnostic (I22). */
export function failedDraft(error: HarnessError, sideEffects: SideEffectStatus): EventDraft {
  const after = error.retryAfter;
  const retry =
    after === undefined || !Number.isFinite(after) || after < 0
      ? {}
      : { retryAfterSeconds: Math.min(Math.ceil(after), MAX_RETRY_AFTER_SECONDS) };
  return create(EventDraftSchema, {
    payload: {
      kind: {
        case: "runFailed",
        value: {
          code: error.code,
          category: error.category,
          message: cleaned(error.message).slice(0, MAX_MESSAGE_CHARACTERS) || "The harness failed.",
          retryable: error.retryable,
          sideEffectStatus: sideEffects,
          providerCode: cleaned(error.particulars.providerCode ?? "").slice(0, MAX_PROVIDER_CODE_CHARACTERS),
          ...retry,
        },
      },
    },
  });
}
