/** Messages against the constraints that the contracts declare in their fields. */

import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { createValidator } from "@bufbuild/protovalidate";

import type { FieldIssue } from "./refusal.js";

// They travel in a trailer, and clients refuse a call whose trailers are over 8 KiB.
const MAX_ISSUES = 16;
const validator = createValidator();

/** Every malformed field of `message`: the path, the rule, what it says, and none of the values. */
export function violations<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): FieldIssue[] {
  const result = validator.validate(schema, message);
  if (result.kind === "error") throw result.error;
  if (result.kind === "valid") return [];
  return result.violations.slice(0, MAX_ISSUES).map((violation) => ({
    path: violation.field
      .map((part) => (part.kind === "field" ? part.name : ""))
      .filter((name) => name !== "")
      .join("."),
    code: violation.ruleId,
    message: violation.message,
  }));
}
