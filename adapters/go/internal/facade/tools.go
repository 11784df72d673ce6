package facade

import (
	"context"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	toolv1 "harness.internal/adapters/go/gen/harness/tool/v1"
	"harness.internal/adapters/go/internal/contract"
)

const (
	// askBound is how long one request waits for an outcome before it asks again, in case the broker vanished.
	askBound = 60 * time.Second
	// fullTries is how often, a second apart, a broker that is at its own bound is asked again.
	fullTries = 10
)

// Tools calls the portable tools of one run's agent. Whether a call is allowed, needs a person or has run before is
// decided behind the facade; the call's id makes a repetition safe.
type Tools struct {
	access  *Access
	context *runtimev1.RuntimeContext
}

// NewTools reaches the broker with the given access; nil: the run has none, and every call fails.
func NewTools(access *Access, context *runtimev1.RuntimeContext) *Tools {
	return &Tools{access: access, context: context}
}

// Connected says whether the run was given the broker's address and a token for it.
func (t *Tools) Connected() bool { return t.access != nil }

// Find is the tool that a provider calls by that name, or else the one with that id; nil if there is none.
func (t *Tools) Find(name string) *runtimev1.ToolDescriptor {
	var byID *runtimev1.ToolDescriptor
	for _, tool := range t.context.GetTools() {
		if tool.GetProviderName() == name {
			return tool
		}
		if tool.GetToolId() == name {
			byID = tool
		}
	}
	return byID
}

// MayWait says whether a call of the tool may have to wait for a person, as far as can be known here: the broker decides.
func (t *Tools) MayWait(tool *runtimev1.ToolDescriptor) bool {
	spec := t.context.GetBlueprint().GetTools()
	policy := spec.GetApprovalPolicy()
	for _, binding := range spec.GetBindings() {
		own := binding.GetApprovalPolicy()
		if binding.GetToolId() == tool.GetToolId() && own != commonv1.ApprovalPolicy_APPROVAL_POLICY_UNSPECIFIED {
			policy = own
		}
	}
	switch policy {
	case commonv1.ApprovalPolicy_APPROVAL_POLICY_NEVER:
		return false
	case commonv1.ApprovalPolicy_APPROVAL_POLICY_SENSITIVE_ONLY:
		return tool.GetSensitive()
	}
	return true
}

// Invoke calls a tool: either how the call ended, or the approval that it waits for. What the broker refuses is an
// outcome too, for the model to read; only a run that has no say any more gets an error.
func (t *Tools) Invoke(
	ctx context.Context, callID, toolID string, arguments *structpb.Struct,
) (*eventv1.ToolCompleted, *eventv1.ToolApproval, error) {
	var response *toolv1.InvokeToolResponse
	invoke := func(ctx context.Context, conn grpc.ClientConnInterface, fence *commonv1.Fence) (err error) {
		ctx, cancel := context.WithTimeout(ctx, askBound)
		defer cancel()
		response, err = toolv1.NewToolBrokerServiceClient(conn).InvokeTool(ctx, &toolv1.InvokeToolRequest{
			Fence: fence, ToolCallId: callID, ToolId: toolID, Arguments: arguments,
		})
		return err
	}
	full := 0
	for {
		err := t.access.fenced(ctx, toolAwayBound, invoke)
		switch {
		case err == nil && response.GetApprovalRequired() != nil:
			return nil, response.GetApprovalRequired(), nil
		case err == nil:
			completed := response.GetCompleted()
			completed.ToolCallId = callID
			if completed.GetOutcome() != eventv1.ToolOutcome_TOOL_OUTCOME_ERROR {
				completed.Error = nil // why a person refused is for the model; the event has an error with that outcome only
			}
			return completed, nil, nil
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case status.Code(err) == codes.DeadlineExceeded:
			// The outcome is kept under the call's id: it takes effect once.
		case hasNoRoom(err) && full < fullTries:
			full++
			if err := sleep(ctx, time.Second); err != nil {
				return nil, nil, err
			}
		default:
			completed, err := refused(callID, err)
			return completed, nil, err
		}
	}
}

// hasNoRoom says whether the broker is at its own bound, rather than the run at one of its bounds.
func hasNoRoom(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && infoOf(err).GetMetadata()["retryable"] == "true"
}

// refused is what a status in the place of an answer means for the call.
func refused(callID string, err error) (*eventv1.ToolCompleted, error) {
	info, code := infoOf(err), status.Code(err)
	if info.GetReason() == staleLease || code == codes.Unauthenticated {
		message := "The run takes no tool call of this runtime any more."
		failure, _ := contract.NewFailure("authorization", "stale_lease", message)
		failure.Diagnostic = "gRPC status " + code.String()
		return nil, failure
	}
	if info.GetReason() == "" {
		away := isAway(err) || code == codes.DeadlineExceeded
		message := "The tool could not be reached; the call may have had its effect."
		return Failed(callID, "tool_unavailable", message, away), nil
	}
	retryable := info.GetMetadata()["retryable"] == "true"
	return Failed(callID, strings.ToLower(info.GetReason()), status.Convert(err).Message(), retryable), nil
}

// Failed is the outcome of a call that went wrong.
func Failed(callID, code, message string, retryable bool) *eventv1.ToolCompleted {
	return &eventv1.ToolCompleted{
		ToolCallId: callID,
		Outcome:    eventv1.ToolOutcome_TOOL_OUTCOME_ERROR,
		Error:      &eventv1.ToolError{Code: shortened(code, 64), Message: shortened(message, 1000), Retryable: retryable},
	}
}

func shortened(text string, characters int) string {
	if runes := []rune(text); len(runes) > characters {
		return string(runes[:characters])
	}
	return text
}

// infoOf is the ErrorInfo of a status; nil if it has none.
func infoOf(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}
