/** A burst: many deltas at a given rate, for measuring. It leaves no thread state. */

import { setImmediate, setTimeout as sleep } from "node:timers/promises";

import type { EventDraft } from "../../gen/harness/event/v1/event_pb.js";
import * as events from "./events.js";
import type { Burst } from "./message.js";

/** The deltas at their moments of one schedule, so that a late one delays none after it. */
export async function* stream(plan: Burst, signal: AbortSignal): AsyncGenerator<EventDraft> {
  const body = "x".repeat(plan.size);
  if (plan.delay > 0) await sleep(plan.delay * 1000, undefined, { signal });
  const begun = performance.now();
  for (let index = 0; index < plan.n; index += 1) {
    if (plan.rate > 0) {
      const ahead = begun + (index * 1000) / plan.rate - performance.now();
      if (ahead > 0) await sleep(ahead, undefined, { signal });
    } else if (plan.yields) {
      await setImmediate(undefined, { signal });
    }
    signal.throwIfAborted();
    yield events.text(plan.stamp ? `ts=${(Date.now() / 1000).toFixed(6)} ${body}` : body, "m1");
  }
  yield events.completed();
}
