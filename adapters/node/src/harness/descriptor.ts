/** What this adapter says of itself: only what works is claimed (I21). */

import { create, type JsonObject } from "@bufbuild/protobuf";

import {
  type Descriptor,
  DescriptorSchema,
  SessionIdStyle,
  ThreadStateStrategy,
  TrustBoundary,
} from "../../gen/harness/adapter/v1/descriptor_pb.js";
import { CapabilityLevel } from "../../gen/harness/common/v1/capability_pb.js";
import { Placement } from "../../gen/harness/common/v1/placement_pb.js";

export const VERSION = "0.1.0";
export const MAX_GREETING_CHARACTERS = 200;

const OPTIONS_SCHEMA: JsonObject = {
  type: "object",
  properties: {
    greeting: {
      type: "string",
      maxLength: MAX_GREETING_CHARACTERS,
      default: "",
      title: "Greeting",
      description: "Said before every answer to a plain message.",
    },
  },
  additionalProperties: false,
};

const { NATIVE, UNAVAILABLE, UNSUPPORTED } = CapabilityLevel;
type Claim = readonly [CapabilityLevel, string];

const NO_MODEL = "There is no model behind it.";
const HOST_ONLY = "This adapter runs in an adapter host only.";
const NOT_CONNECTED = "Not connected in this adapter.";

const CLAIMS: Readonly<Record<string, Claim>> = {
  "stream.text": [NATIVE, "Word by word, or as the message says."],
  "stream.reasoning": [NATIVE, "As a script says."],
  "stream.usage": [NATIVE, "Counts words."],
  "invoke.non_streaming": [UNAVAILABLE, "Every turn is streamed."],
  "session.multi_turn": [NATIVE, "Remembers turns in committed thread state."],
  "session.cross_replica_resume": [NATIVE, "Everything it knows of a conversation is thread state."],
  "session.clear": [NATIVE, "A new epoch starts with nothing."],
  "thread.durable_commit": [NATIVE, "Writes its state in every plain turn."],
  "thread.eviction_restore": [NATIVE, "Loads the committed head in every turn that needs it."],
  "interrupt.form_input": [NATIVE, "Asks what a script says, and goes on from thread state."],
  "interrupt.tool_approval": [
    NATIVE,
    "Asks about the calls a script names, and about those that the tool broker holds back.",
  ],
  "interrupt.multi_tool": [NATIVE, "One interrupt of a script asks about up to 32 calls."],
  "tool.mcp": [UNAVAILABLE, NOT_CONNECTED],
  "tool.builtin": [NATIVE, "Calls portable tools through the tool broker."],
  "tool.caller_credentials": [UNAVAILABLE, NOT_CONNECTED],
  "tool.partial_availability": [NATIVE, "A tool that fails costs its own call alone."],
  "tool.cancellation": [NATIVE, "A cancelled run gives up its open call at once."],
  "input.images": [UNSUPPORTED, NO_MODEL],
  "input.documents": [UNSUPPORTED, NO_MODEL],
  skills: [UNAVAILABLE, NOT_CONNECTED],
  subagents: [NATIVE, "Scripted subagents within the same run."],
  "subagents.mixed_harness": [UNAVAILABLE, NOT_CONNECTED],
  "middleware.portable": [UNAVAILABLE, NOT_CONNECTED],
  "memory.semantic": [UNAVAILABLE, NOT_CONNECTED],
  "memory.episodic_reference": [UNAVAILABLE, NOT_CONNECTED],
  "memory.procedural": [UNAVAILABLE, NOT_CONNECTED],
  "memory.user_scope": [UNAVAILABLE, NOT_CONNECTED],
  "memory.shared_policy": [UNAVAILABLE, NOT_CONNECTED],
  "observability.metrics": [UNAVAILABLE, "It exports no metrics."],
  "observability.tracing": [UNAVAILABLE, "It exports no spans."],
  "observability.trace_propagation": [NATIVE, "Its calls to facades carry the trace of the run."],
  "observability.redaction": [NATIVE, "Logs types and places only."],
  "runtime.cancel": [NATIVE, "Stops the turn and its open calls."],
  "runtime.restart": [NATIVE, "Holds nothing that a restart could lose."],
  "runtime.bounded_cleanup": [NATIVE, "Cleanup ends within its deadline."],
  "runtime.sandbox_isolation": [UNAVAILABLE, HOST_ONLY],
  "runtime.lease_fencing": [NATIVE, "Stale turns and generations are refused."],
  "runtime.eviction_recovery": [NATIVE, "A new runtime goes on from thread state."],
};

export const DESCRIPTOR: Descriptor = create(DescriptorSchema, {
  harnessId: "reference_node",
  displayName: "Reference harness in TypeScript",
  description:
    "Deterministic, free and offline: it does what the message says, with no model behind it. Written from the contracts alone.",
  adapterVersion: VERSION,
  contractVersions: [1],
  placements: [Placement.PROVIDER_MANAGED],
  trustBoundary: TrustBoundary.PROCESS,
  threadStateStrategy: ThreadStateStrategy.ADAPTER_STORE,
  sessionIdStyle: SessionIdStyle.EVENT_ASSIGNED,
  optionsSchema: OPTIONS_SCHEMA,
  presentation: { order: ["greeting"] },
  capabilities: Object.fromEntries(
    Object.entries(CLAIMS).map(([key, [level, explanation]]) => [key, { level, explanation }]),
  ),
});
