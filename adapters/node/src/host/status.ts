/** A google.rpc.Status in the trailers of a call: how this process writes one, and how it reads one of a facade. */

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { anyPack, anyUnpack, type Duration, DurationSchema } from "@bufbuild/protobuf/wkt";
import * as grpc from "@grpc/grpc-js";

import {
  BadRequestSchema,
  type ErrorInfo,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../../gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../../gen/google/rpc/status_pb.js";
import type { Refusal } from "./refusal.js";

const DOMAIN = "harness";
const TRAILER = "grpc-status-details-bin";

/** What grpc-js sends for a refusal. */
export function statusOf(refusal: Refusal): grpc.StatusObject & Error {
  const { category, issues = [], retryable = false, retryAfter } = refusal.details;
  const details = [
    anyPack(
      ErrorInfoSchema,
      create(ErrorInfoSchema, {
        reason: refusal.reason,
        domain: DOMAIN,
        metadata: { category, retryable: String(retryable) },
      }),
    ),
  ];
  if (retryAfter !== undefined) {
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay: duration(retryAfter) })));
  }
  if (issues.length > 0) {
    const fieldViolations = issues.map(({ path, code, message }) => ({
      field: path,
      reason: code,
      description: message,
    }));
    details.push(anyPack(BadRequestSchema, create(BadRequestSchema, { fieldViolations })));
  }
  const status = create(StatusSchema, { code: refusal.code, message: refusal.message, details });
  const metadata = new grpc.Metadata();
  metadata.set(TRAILER, Buffer.from(toBinary(StatusSchema, status)));
  return { name: "Refusal", message: refusal.message, code: refusal.code, details: refusal.message, metadata };
}

/** The reason a call to a facade was refused for; undefined if it does not say. */
export function errorInfo(error: grpc.ServiceError): ErrorInfo | undefined {
  const bytes = error.metadata?.get(TRAILER)[0];
  if (!(bytes instanceof Uint8Array)) return undefined;
  try {
    for (const detail of fromBinary(StatusSchema, bytes).details) {
      const info = anyUnpack(detail, ErrorInfoSchema);
      if (info !== undefined) return info;
    }
  } catch {
    // Somebody else's trailer: the status code has to do.
  }
  return undefined;
}

function duration(seconds: number): Duration {
  const whole = Math.floor(seconds);
  return create(DurationSchema, { seconds: BigInt(whole), nanos: Math.round((seconds - whole) * 1e9) });
}
