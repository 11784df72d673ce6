/** Structured values inside events: bounded and plain JSON (events, Bounds). */

import type { JsonValue } from "@bufbuild/protobuf";

import { ProtocolViolation } from "./violation.js";

const RESULT_DEPTH = 32;
const METADATA_DEPTH = 8;
const METADATA_KEYS = 256;
export const ARGUMENTS_BYTES = 128 * 1024;
export const RESULT_BYTES = 256 * 1024;
export const EVENT_BYTES = 256 * 1024;

/** Refuses arguments or metadata that are too deep, have too many keys, or are too large as JSON. */
export function checkObject(value: JsonValue, what: string, maxBytes: number): void {
  const keys = countKeys(value, what, METADATA_DEPTH);
  if (keys > METADATA_KEYS) throw new ProtocolViolation(7, "too_many_keys", `${what} has too many keys`);
  checkSize(value, what, maxBytes);
}

/** Refuses a tool's result that is too deep or too large as JSON. */
export function checkResult(value: JsonValue, what: string): void {
  countKeys(value, what, RESULT_DEPTH);
  checkSize(value, what, RESULT_BYTES);
}

function countKeys(value: JsonValue, what: string, depthLeft: number): number {
  if (typeof value !== "object" || value === null) return 0;
  if (depthLeft === 0) throw new ProtocolViolation(7, "too_deep", `${what} is nested too deeply`);
  const children = Array.isArray(value) ? value : Object.values(value);
  const own = Array.isArray(value) ? 0 : children.length;
  return children.reduce((sum: number, child) => sum + countKeys(child, what, depthLeft - 1), own);
}

function checkSize(value: JsonValue, what: string, maxBytes: number): void {
  if (Buffer.byteLength(JSON.stringify(value)) > maxBytes) {
    throw new ProtocolViolation(7, "too_large", `${what} is over ${maxBytes} bytes`);
  }
}
