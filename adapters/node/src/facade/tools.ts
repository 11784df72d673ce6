/** Portable tools, called through the broker under the run's own token (tool service). */

import type { JsonObject } from "@bufbuild/protobuf";

import type { ToolApproval, ToolCompleted } from "../../gen/harness/event/v1/payload_pb.js";
import type { ToolDescriptor } from "../../gen/harness/runtime/v1/runtime_pb.js";
import { ToolBrokerService } from "../../gen/harness/tool/v1/tool_broker_service_pb.js";
import { HarnessError } from "../errors.js";
import { errorInfo } from "../host/status.js";
import { type FacadeAccess, isServiceError } from "./access.js";
import { unary } from "./rpc.js";

/** How a call went: it ended, it waits for a person, or the broker refused it. */
export type ToolAnswer =
  | { readonly kind: "completed"; readonly completed: ToolCompleted }
  | { readonly kind: "waits"; readonly approval: ToolApproval }
  | { readonly kind: "refused"; readonly code: string; readonly retryable: boolean };

/** Reasons that say something of the run; any other refusal is one of this call alone. */
const OF_THE_RUN: ReadonlySet<string> = new Set(["STALE_LEASE", "unauthenticated"]);

/** The tools one run may call. */
export class Tools {
  readonly #access: FacadeAccess | undefined;
  readonly #descriptors: readonly ToolDescriptor[];

  constructor(access: FacadeAccess | undefined, descriptors: readonly ToolDescriptor[]) {
    this.#access = access;
    this.#descriptors = descriptors;
  }

  /** The stable id behind a stable id or a provider-safe name; a name that is neither is asked for as it is, and refused there. */
  idOf(name: string): string {
    const found = this.#descriptors.find((tool) => tool.toolId === name || tool.providerName === name);
    return found?.toolId ?? name;
  }

  /** Calls a tool. The same `toolCallId` with the same arguments is the same call, whose outcome is answered again. */
  async invoke(toolCallId: string, toolId: string, args: JsonObject): Promise<ToolAnswer> {
    if (this.#access === undefined) {
      throw new HarnessError("configuration", "This run has no access to portable tools.", {
        code: "tools_unavailable",
      });
    }
    try {
      // A tool may take as long as the run.
      const { answer } = await this.#access.call(
        (target, fence) =>
          unary(target, ToolBrokerService.method.invokeTool, { fence, toolCallId, toolId, arguments: args }),
        Number.POSITIVE_INFINITY,
      );
      if (answer.case === "completed") return { kind: "completed", completed: answer.value };
      if (answer.case === "approvalRequired") return { kind: "waits", approval: answer.value };
    } catch (error) {
      if (!isServiceError(error)) throw error;
      const info = errorInfo(error);
      if (info !== undefined && !OF_THE_RUN.has(info.reason)) {
        return { kind: "refused", code: codeOf(info.reason), retryable: info.metadata["retryable"] === "true" };
      }
      throw new HarnessError("unavailable", "The tool broker did not answer.", { code: "tool_broker_failed" });
    }
    throw new HarnessError("protocol", "The tool broker answered with nothing.", { code: "tool_broker_failed" });
  }
}

function codeOf(reason: string): string {
  return reason === "" ? "tool_refused" : reason.toLowerCase().slice(0, 64);
}
