/** The reference harness: which of its behaviours a message asks for, and what one binding's runtime holds. */

import { create, type JsonObject } from "@bufbuild/protobuf";

import { type AgentBlueprint, ThreadPersistence } from "../../gen/harness/common/v1/blueprint_pb.js";
import { HealthStatus } from "../../gen/harness/common/v1/health_pb.js";
import { Placement } from "../../gen/harness/common/v1/placement_pb.js";
import {
  type PendingInterrupt,
  PendingInterruptSchema,
  type ResumeDecision,
  type RuntimeContext,
} from "../../gen/harness/runtime/v1/runtime_pb.js";
import { HarnessError } from "../errors.js";
import type { Finding, Harness, HarnessRuntime, Turn, Verdict } from "../host/contract.js";
import type { EventStream } from "../host/run.js";
import * as burst from "./burst.js";
import * as conversation from "./conversation.js";
import { DESCRIPTOR, MAX_GREETING_CHARACTERS } from "./descriptor.js";
import { parse } from "./message.js";
import type { Pause } from "./pause.js";
import * as script from "./script.js";

export class ReferenceHarness implements Harness {
  readonly descriptor = DESCRIPTOR;

  /** It depends on nothing outside its process. */
  health(): Promise<readonly Finding[]> {
    return Promise.resolve([
      { name: "configuration", status: HealthStatus.HEALTHY },
      { name: "provider", status: HealthStatus.HEALTHY },
    ]);
  }

  evaluate(blueprint: AgentBlueprint, placement: Placement): Verdict {
    const options = blueprint.harness?.options ?? {};
    const issues: { path: string; code: string; message: string }[] = [];
    for (const name of Object.keys(options)) {
      if (name === "greeting") continue;
      issues.push({
        path: `harness.options.${name}`.slice(0, 512),
        code: "unknown_option",
        message: "This harness has no such option: remove it.",
      });
    }
    const message = greetingProblem(options["greeting"]);
    if (message !== undefined) issues.push({ path: "harness.options.greeting", code: "invalid_option", message });
    if (placement !== Placement.PROVIDER_MANAGED && placement !== Placement.UNSPECIFIED) {
      const hint = "This harness runs in an adapter host only: choose a profile with placement provider_managed.";
      issues.push({ path: "harness.profile_id", code: "placement_unsupported", message: hint });
    }
    return { issues, normalizedOptions: issues.length > 0 ? options : { greeting: "", ...options } };
  }

  createRuntime(context: RuntimeContext): HarnessRuntime {
    return new ReferenceRuntime(context);
  }
}

/** One binding's runtime. Turns know of each other by thread state; only a conversation without any goes on from here. */
class ReferenceRuntime implements HarnessRuntime {
  readonly #options: JsonObject;
  readonly #setting: script.Setting;
  #greeting = "";
  #pause: Pause | undefined;

  constructor(context: RuntimeContext) {
    this.#options = context.blueprint?.harness?.options ?? {};
    this.#setting = {
      allowFaults: context.profileSettings?.["allow_faults"] === true,
      durable: context.blueprint?.thread?.persistence !== ThreadPersistence.EPHEMERAL,
      onPause: (pause) => {
        this.#pause = pause;
      },
    };
  }

  prepare(): Promise<void> {
    const greeting = this.#options["greeting"] ?? "";
    const problem = greetingProblem(greeting);
    if (problem !== undefined)
      return Promise.reject(new HarnessError("configuration", `The option greeting is wrong: ${problem}`));
    this.#greeting = String(greeting);
    return Promise.resolve();
  }

  async *stream(turn: Turn): EventStream {
    const asked = parse(turn.message);
    this.#pause = undefined;
    if (asked.kind === "burst") yield* burst.stream(asked, turn.signal);
    else if (asked.kind === "plain")
      yield* conversation.stream(turn, asked.text, this.#greeting, this.#setting.durable);
    else yield* script.stream(turn, asked, this.#setting);
  }

  resume(turn: Turn, decision: ResumeDecision): EventStream {
    return script.resume(turn, decision, this.#setting, this.#pause);
  }

  pendingInterrupt(): PendingInterrupt | undefined {
    if (this.#pause === undefined) return undefined;
    const { interruptId, runId } = this.#pause;
    return create(PendingInterruptSchema, { interruptId, revision: 1, runId });
  }

  /** There is nothing of a provider to release. */
  release(): Promise<void> {
    return Promise.resolve();
  }
}

function greetingProblem(greeting: unknown): string | undefined {
  if (greeting === undefined) return undefined;
  if (typeof greeting !== "string") return "Give a text.";
  return greeting.length > MAX_GREETING_CHARACTERS ? `Give at most ${MAX_GREETING_CHARACTERS} characters.` : undefined;
}
