package reference

import (
	"context"

	"google.golang.org/protobuf/types/known/structpb"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/draft"
)

// --- what a model and its tools do ---

func playText(_ context.Context, stage *stage, step step) error {
	return playPieces(stage, step, "text", "m", draft.Text)
}

func playReasoning(_ context.Context, stage *stage, step step) error {
	return playPieces(stage, step, "reasoning", "r", draft.Reasoning)
}

func playPieces(stage *stage, step step, name, prefix string, make func(id, text string) *eventv1.EventDraft) error {
	id := textOf(step["message_id"], "")
	if id == "" {
		id = stage.nextID(prefix)
	}
	pieces := words(textOf(step[name], ""))
	if chunks, ok := step["chunks"].([]any); ok {
		pieces = nil
		for _, chunk := range chunks {
			pieces = append(pieces, textOf(chunk, ""))
		}
	}
	for _, piece := range pieces {
		if err := stage.emit(make(id, piece)); err != nil {
			return err
		}
	}
	return nil
}

// playToolResult is a tool of the provider's own: it never reaches the broker.
func playToolResult(_ context.Context, stage *stage, step step) error {
	call, err := object(step, "tool_result")
	if err != nil {
		return err
	}
	id := textOf(call["id"], "")
	if id == "" {
		id = stage.nextID("call-")
	}
	var arguments *structpb.Struct
	if given, ok := call["arguments"]; ok {
		if arguments, err = objectOf(given); err != nil {
			return stepInvalid("tool_result", "arguments that are an object")
		}
	}
	if err := stage.emit(draft.ToolStarted(id, textOf(call["name"], "tool"), arguments)); err != nil {
		return err
	}
	completed := &eventv1.ToolCompleted{ToolCallId: id, Outcome: eventv1.ToolOutcome_TOOL_OUTCOME_SUCCESS}
	if said, failed := call["error"]; failed && said != nil {
		completed.Outcome, completed.Error = eventv1.ToolOutcome_TOOL_OUTCOME_ERROR, toolError(said)
	} else if completed.Result, err = resultOf(call["result"]); err != nil {
		return stepInvalid("tool_result", "a result that is JSON")
	}
	return stage.emit(draft.ToolCompleted(completed))
}

func toolError(said any) *eventv1.ToolError {
	fields, ok := said.(map[string]any)
	if !ok {
		fields = map[string]any{"message": said}
	}
	return &eventv1.ToolError{
		Code:      textOf(fields["code"], "tool_failed"),
		Message:   textOf(fields["message"], "The tool failed."),
		Retryable: fields["retryable"] == true,
	}
}

// resultOf is a JSON value as a message; absent if there is none.
func resultOf(value any) (*structpb.Value, error) {
	if value == nil {
		return nil, nil
	}
	return structpb.NewValue(value)
}

func playInterrupt(_ context.Context, stage *stage, step step) error {
	fields, err := object(step, "interrupt")
	if err != nil {
		return err
	}
	asked, err := requested(fields, stage.interruptID())
	if err != nil {
		return err
	}
	if err := stage.emit(draft.InterruptRequested(asked)); err != nil {
		return err
	}
	return &errPaused{asked: asked}
}

func playDecision(_ context.Context, stage *stage, _ step) error {
	line, err := told(stage.turn.Decision)
	if err != nil {
		return err
	}
	return stage.emit(draft.Text(stage.nextID("m"), line))
}

func playUsage(_ context.Context, stage *stage, step step) error {
	return playEvent(stage, step, "usage", "usage_updated")
}

func playWarning(_ context.Context, stage *stage, step step) error {
	return playEvent(stage, step, "warning", "warning")
}

func playEvent(stage *stage, step step, name, kind string) error {
	fields, err := object(step, name)
	if err != nil {
		return err
	}
	payload := &eventv1.EventPayload{}
	if err := decode(map[string]any{kind: fields}, payload, name); err != nil {
		return err
	}
	return stage.emit(draft.Of(payload))
}

func playMetadata(_ context.Context, stage *stage, step step) error {
	metadata, err := objectOf(step["metadata"])
	if err != nil {
		return stepInvalid("metadata", "an object")
	}
	return stage.emit(draft.Metadata(metadata))
}

func playState(ctx context.Context, stage *stage, step step) error {
	data := append([]byte{statePart}, textOf(step["state"], "")...)
	return stage.turn.State.Write(ctx, data, codec, stage.nextID("part-"), false)
}

func playSleep(ctx context.Context, _ *stage, step step) error {
	read := reader{fields: step}
	duration := read.number("sleep", 0, maxSeconds)
	if read.err != nil {
		return read.err
	}
	return sleep(ctx, seconds(duration))
}

// --- classified failures ---

func playFail(_ context.Context, _ *stage, step step) error {
	said, err := object(step, "fail")
	if err != nil {
		return err
	}
	failure, known := contract.NewFailure(
		textOf(said["category"], "internal"), textOf(said["code"], ""), textOf(said["message"], "The provider failed."),
	)
	if !known {
		return stepInvalid("fail", "one of the contract's eleven categories")
	}
	if retryable, ok := said["retryable"].(bool); ok {
		failure.Retryable = retryable
	}
	read := reader{fields: said}
	failure.RetryAfter = seconds(read.number("retry_after", 0, maxSeconds))
	failure.ProviderCode = textOf(said["provider_code"], "")
	failure.Diagnostic = textOf(said["diagnostic"], "")
	if read.err != nil {
		return read.err
	}
	return failure
}
