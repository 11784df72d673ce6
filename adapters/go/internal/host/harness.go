// Package host runs a harness behind the adapter contract: it keeps runtimes, fences calls, numbers and buffers drafts,
// and stops what must be stopped. It knows nothing of what a harness does.
package host

import (
	"context"

	adapterv1 "harness.internal/adapters/go/gen/harness/adapter/v1"
	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/facade"
)

// Harness is what an adapter's author writes, together with Runtime.
type Harness interface {
	// Descriptor is constant.
	Descriptor() *adapterv1.Descriptor
	// Evaluate is pure.
	Evaluate(*adapterv1.EvaluateRequest) *adapterv1.EvaluateResponse
	// CheckHealth is bounded by its context and free of side effects.
	CheckHealth(context.Context) []*commonv1.HealthCheck
	// NewRuntime makes the runtime of one binding; it must not block.
	NewRuntime(*runtimev1.RuntimeContext) Runtime
}

// Runtime runs the turns of one binding, one at a time.
type Runtime interface {
	// Initialize prepares clients and processes. It is called once, and again after Release.
	Initialize(context.Context) error
	// Play runs a turn: it emits drafts, the last of them a terminal, and returns. An error ends the run as failed. A
	// cancelled context means that the run is being stopped: let its error pass and free what is held.
	Play(ctx context.Context, turn *Turn, emit Emit) error
	// PendingInterrupt is the pause of the last turn, or nil.
	PendingInterrupt() *runtimev1.PendingInterrupt
	// Release gives up clients and processes; durable state stays. No turn is at work, unless one ignored its context.
	Release()
}

// Emit takes the next draft, which must not be changed afterwards. It blocks while too much is not yet durable, and
// fails when the run is being stopped or the draft breaks the contract: return that error.
type Emit func(*eventv1.EventDraft) error

// Turn is what a runtime is asked to do.
type Turn struct {
	RunID  string
	Number uint32
	Input  *runtimev1.TurnInput
	// Decision is the answer this turn resumes with; nil in a plain turn.
	Decision *runtimev1.ResumeDecision
	State    *facade.ThreadState
	Tools    *facade.Tools
}
