// Package draft makes the events a harness emits.
package draft

import (
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/structpb"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	"harness.internal/adapters/go/internal/contract"
)

// Of wraps a payload.
func Of(payload *eventv1.EventPayload) *eventv1.EventDraft {
	return &eventv1.EventDraft{Payload: payload}
}

// Text is a piece of an answer.
func Text(messageID, text string) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_ContentDelta{
		ContentDelta: &eventv1.ContentDelta{MessageId: messageID, Text: text},
	}})
}

// Reasoning is a piece of a model's reasoning.
func Reasoning(messageID, text string) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_ReasoningDelta{
		ReasoningDelta: &eventv1.ReasoningDelta{MessageId: messageID, Text: text},
	}})
}

// SessionUpdated says how the provider calls the conversation.
func SessionUpdated(nativeID string) *eventv1.EventDraft {
	event := Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_SessionUpdated{
		SessionUpdated: &eventv1.SessionUpdated{},
	}})
	event.NativeSessionId = nativeID
	return event
}

// ToolStarted begins a call; without arguments fragments of them follow.
func ToolStarted(callID, name string, arguments *structpb.Struct) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_ToolStarted{
		ToolStarted: &eventv1.ToolStarted{ToolCallId: callID, ToolName: name, Arguments: arguments},
	}})
}

// ToolArguments is a fragment of a call's arguments.
func ToolArguments(callID, fragment string) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_ToolArgumentsDelta{
		ToolArgumentsDelta: &eventv1.ToolArgumentsDelta{ToolCallId: callID, Delta: fragment},
	}})
}

// ToolCompleted ends a call.
func ToolCompleted(completed *eventv1.ToolCompleted) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_ToolCompleted{ToolCompleted: completed}})
}

// InterruptRequested asks a person.
func InterruptRequested(requested *eventv1.InterruptRequested) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_InterruptRequested{InterruptRequested: requested}})
}

// Metadata is for telemetry only.
func Metadata(metadata *structpb.Struct) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_ProviderMetadata{
		ProviderMetadata: &eventv1.ProviderMetadata{Provider: "reference", Metadata: metadata},
	}})
}

// Usage counts tokens; nothing further follows.
func Usage(input, output int) *eventv1.EventDraft {
	read, wrote := uint32(input), uint32(output)
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_UsageUpdated{
		UsageUpdated: &eventv1.UsageUpdated{InputTokens: &read, OutputTokens: &wrote, Final: true},
	}})
}

// Completed ends a run well. The head names the state it leaves behind, if any.
func Completed(head *eventv1.PendingHead) *eventv1.EventDraft {
	event := Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_RunCompleted{
		RunCompleted: &eventv1.RunCompleted{StopReason: "end_turn"},
	}})
	event.PendingHead = head
	return event
}

// Interrupted ends a run that waits for a person.
func Interrupted(interruptID string, head *eventv1.PendingHead) *eventv1.EventDraft {
	event := Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_RunInterrupted{
		RunInterrupted: &eventv1.RunInterrupted{InterruptId: interruptID, Reason: "The run waits for a decision."},
	}})
	event.PendingHead = head
	return event
}

// Cancelled ends a run on somebody's wish.
func Cancelled(reason eventv1.CancelReason, sideEffects commonv1.SideEffectStatus) *eventv1.EventDraft {
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_RunCancelled{
		RunCancelled: &eventv1.RunCancelled{Reason: reason, SideEffectStatus: sideEffects},
	}})
}

// Failed ends a run badly: the safe projection of the failure, never its diagnostic (I22).
func Failed(failure *contract.Failure, sideEffects commonv1.SideEffectStatus) *eventv1.EventDraft {
	message := Shortened(failure.Message, 1000)
	if message == "" {
		message = "The harness failed."
	}
	failed := &eventv1.RunFailed{
		Code:             failure.Code,
		Category:         failure.Category,
		Message:          message,
		Retryable:        failure.Retryable,
		SideEffectStatus: sideEffects,
		ProviderCode:     Shortened(failure.ProviderCode, 128),
	}
	if failure.RetryAfter > 0 {
		seconds := min(uint32((failure.RetryAfter.Milliseconds()+999)/1000), 86_400)
		failed.RetryAfterSeconds = &seconds
	}
	return Of(&eventv1.EventPayload{Kind: &eventv1.EventPayload_RunFailed{RunFailed: failed}})
}

// Shortened cuts text after a number of characters.
func Shortened(text string, characters int) string {
	if utf8.RuneCountInString(text) <= characters {
		return text
	}
	return string([]rune(text)[:characters])
}
