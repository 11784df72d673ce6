package reference

import (
	"fmt"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/types/known/structpb"

	adapterv1 "harness.internal/adapters/go/gen/harness/adapter/v1"
	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
)

// HarnessID and Version name this adapter.
const (
	HarnessID = "reference_go"
	Version   = "0.1.0"
)

// capabilityKeys are all those of contract version 1.
var capabilityKeys = []string{
	"stream.text", "stream.reasoning", "stream.usage", "invoke.non_streaming",
	"session.multi_turn", "session.cross_replica_resume", "session.clear",
	"thread.durable_commit", "thread.eviction_restore",
	"interrupt.form_input", "interrupt.tool_approval", "interrupt.multi_tool",
	"tool.mcp", "tool.builtin", "tool.caller_credentials", "tool.partial_availability", "tool.cancellation",
	"input.images", "input.documents", "skills", "subagents", "subagents.mixed_harness", "middleware.portable",
	"memory.semantic", "memory.episodic_reference", "memory.procedural", "memory.user_scope", "memory.shared_policy",
	"observability.metrics", "observability.tracing", "observability.trace_propagation", "observability.redaction",
	"runtime.cancel", "runtime.restart", "runtime.bounded_cleanup", "runtime.sandbox_isolation",
	"runtime.lease_fencing", "runtime.eviction_recovery",
}

// native are the claims; everything else is unavailable or unsupported.
var native = map[string]string{
	"stream.text":                     "Word by word, or as the message says.",
	"stream.reasoning":                "As a script says.",
	"stream.usage":                    "Counts words, or as a script says.",
	"session.multi_turn":              "Remembers turns in committed thread state.",
	"session.cross_replica_resume":    "Everything it knows of a conversation is thread state.",
	"session.clear":                   "A new epoch starts with nothing.",
	"thread.durable_commit":           "Writes its state in every plain turn.",
	"thread.eviction_restore":         "Loads the committed head in every turn that needs it.",
	"interrupt.form_input":            "Asks what a script says, and goes on from thread state.",
	"interrupt.tool_approval":         "Asks about the calls a script names, and about calls the tool broker holds back.",
	"interrupt.multi_tool":            "One interrupt asks about up to 32 calls.",
	"tool.builtin":                    "Calls portable tools through the tool broker; scripted tools of its own beside.",
	"tool.partial_availability":       "A tool that is away costs its own call alone.",
	"tool.cancellation":               "A cancel ends the call to the tool broker at once.",
	"observability.trace_propagation": "Calls to facades carry the trace of their run.",
	"observability.redaction":         "Logs ids, codes and places only.",
	"runtime.cancel":                  "Stops the script, also one that hangs.",
	"runtime.restart":                 "Holds nothing that a restart could lose.",
	"runtime.bounded_cleanup":         "Bounded by the deadline of the call.",
	"runtime.lease_fencing":           "Refuses stale turns and generations.",
	"runtime.eviction_recovery":       "A new runtime goes on from thread state.",
}

// unclaimed says why, where there is more to say than that nobody has connected it.
var unclaimed = map[string]string{
	"subagents":                 "The `subagent` step is not part of this adapter.",
	"runtime.sandbox_isolation": "It serves as an adapter host only, not as a sandbox worker.",
	"observability.metrics":     "It keeps a log, no metrics.",
	"observability.tracing":     "It passes traces on and records no spans.",
}

// unsupported can never be: there is no model behind it.
var unsupported = map[string]string{
	"input.images":    "There is no model behind it.",
	"input.documents": "There is no model behind it.",
}

func describe() (*adapterv1.Descriptor, error) {
	schema, err := structpb.NewStruct(map[string]any{
		"type": "object",
		"properties": map[string]any{"greeting": map[string]any{
			"type": "string", "maxLength": 200, "default": "", "title": "Greeting",
			"description": "Said before every answer to a plain message.",
		}},
		"additionalProperties": false,
	})
	if err != nil {
		return nil, err
	}
	presentation, err := structpb.NewStruct(map[string]any{"order": []any{"greeting"}})
	if err != nil {
		return nil, err
	}
	descriptor := &adapterv1.Descriptor{
		HarnessId:           HarnessID,
		DisplayName:         "Reference harness in Go",
		Description:         "Deterministic, free and offline: it does what the message says, with no model behind it.",
		AdapterVersion:      Version,
		ContractVersions:    []uint32{1},
		Placements:          []commonv1.Placement{commonv1.Placement_PLACEMENT_PROVIDER_MANAGED},
		TrustBoundary:       adapterv1.TrustBoundary_TRUST_BOUNDARY_PROCESS,
		ThreadStateStrategy: adapterv1.ThreadStateStrategy_THREAD_STATE_STRATEGY_ADAPTER_STORE,
		SessionIdStyle:      adapterv1.SessionIdStyle_SESSION_ID_STYLE_EVENT_ASSIGNED,
		OptionsSchema:       schema,
		Presentation:        presentation,
		Capabilities:        capabilities(),
	}
	if err := protovalidate.Validate(descriptor); err != nil {
		return nil, fmt.Errorf("the descriptor is malformed: %w", err)
	}
	return descriptor, nil
}

func capabilities() map[string]*commonv1.Capability {
	claims := map[string]*commonv1.Capability{}
	for _, key := range capabilityKeys {
		claim := &commonv1.Capability{Level: commonv1.CapabilityLevel_CAPABILITY_LEVEL_UNAVAILABLE}
		claim.Explanation = "Not connected in this adapter."
		if why, ok := unclaimed[key]; ok {
			claim.Explanation = why
		}
		if why, ok := unsupported[key]; ok {
			claim.Level = commonv1.CapabilityLevel_CAPABILITY_LEVEL_UNSUPPORTED
			claim.Explanation = why
		}
		if why, ok := native[key]; ok {
			claim.Level = commonv1.CapabilityLevel_CAPABILITY_LEVEL_NATIVE
			claim.Explanation = why
		}
		claims[key] = claim
	}
	return claims
}
