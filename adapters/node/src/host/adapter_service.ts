/** `harness.adapter.v1.AdapterService`: what the harness is, whether it is well, and the runtimes it hosts. */

import { timestampNow } from "@bufbuild/protobuf/wkt";

import type { AdapterService } from "../../gen/harness/adapter/v1/adapter_service_pb.js";
import { HealthStatus } from "../../gen/harness/common/v1/health_pb.js";
import { describe, log } from "../log.js";
import type { Finding, Harness } from "./contract.js";
import { checkProtocol } from "./fence.js";
import type { Registry } from "./registry.js";
import { bound, required } from "./runtime_service.js";
import type { Handlers } from "./service.js";
import { LATE, within } from "./within.js";

/** Bound of a health check whose call has no deadline. */
const HEALTH = 5_000;

export function adapterHandlers(harness: Harness, registry: Registry): Handlers<typeof AdapterService> {
  return {
    async getDescriptor() {
      return { descriptor: harness.descriptor, incarnation: registry.incarnation };
    },

    async checkHealth(_request, call) {
      const findings = [...(await lookAt(harness, bound(call, HEALTH))), ...ownFindings(registry)];
      const checkedAt = timestampNow();
      return {
        report: {
          status: Math.max(...findings.map((finding) => finding.status)),
          checks: findings.map((finding) => ({
            ...finding,
            ...(finding.status === HealthStatus.HEALTHY ? { lastSuccessAt: checkedAt } : {}),
          })),
          capacity: { active: registry.activeRuns, limit: registry.limits.maxRuns },
          checkedAt,
        },
      };
    },

    async evaluate({ blueprint, placement, profileSettings }) {
      const { issues, normalizedOptions } = harness.evaluate(required(blueprint), placement, profileSettings ?? {});
      return { issues: [...issues], normalizedOptions };
    },

    async createRuntime({ fence, context }) {
      const created = registry.create(required(fence), required(context));
      return { incarnation: registry.incarnation, created };
    },

    /** The provider names its sessions itself, with the first turn. */
    async openSession({ fence }) {
      checkProtocol(required(fence));
      return { nativeSessionId: "" };
    },

    /** The provider keeps nothing of a session: it is closed already. */
    async closeSession({ fence }) {
      checkProtocol(required(fence));
      return {};
    },
  };
}

/** The harness's own findings, within the bound. A check that fails is a finding, never an error. */
async function lookAt(harness: Harness, milliseconds: number): Promise<readonly Finding[]> {
  try {
    const findings = await within(milliseconds, harness.health());
    return findings === LATE ? [unhealthy("The adapter's health checks did not end in time.")] : findings;
  } catch (error) {
    log("error", "health_check_failed", { error: describe(error) });
    return [unhealthy("The adapter's health check failed unexpectedly.")];
  }
}

function unhealthy(reason: string): Finding {
  return { name: "adapter", status: HealthStatus.UNHEALTHY, reason };
}

function ownFindings(registry: Registry): Finding[] {
  const full = registry.activeRuns >= registry.limits.maxRuns;
  const storage = registry.outOfMemory;
  return [
    full
      ? { name: "capacity", status: HealthStatus.DEGRADED, reason: "As many runs as allowed are at work." }
      : { name: "capacity", status: HealthStatus.HEALTHY },
    storage
      ? { name: "storage", status: HealthStatus.DEGRADED, reason: "Providers wait for acknowledgements." }
      : { name: "storage", status: HealthStatus.HEALTHY },
  ];
}
