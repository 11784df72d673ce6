package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/draft"
	"harness.internal/adapters/go/internal/lifecycle"
)

const shutdown = eventv1.CancelReason_CANCEL_REASON_SHUTDOWN

// errStopped is what a provider gets from Emit once its run is being stopped.
var errStopped = errors.New("the run is being stopped")

// run is one run in this host, from its admission until its runtime forgets it. The provider works in a goroutine of its
// own, every stream reads in the goroutine of its call; they meet under mu.
type run struct {
	id     string
	turn   uint32
	fence  *commonv1.Fence
	limits *Limits
	flow   flow
	memory *memory
	// cancel stops the provider, done is closed once it has returned.
	cancel   context.CancelFunc
	done     chan struct{}
	deadline *time.Timer

	mu sync.Mutex
	// generation is the highest seen: an older executor is refused.
	generation uint32
	lifecycle  *lifecycle.Lifecycle
	buffer     buffer
	// acked is through which offset an executor said that drafts are durable.
	acked uint32
	// reader numbers the youngest stream, sent is how far it has got.
	reader uint64
	sent   uint32
	// closed: further events of the provider are late and discarded.
	closed    bool
	discarded int
	violation error
	// stopped is closed when a stop has ended; nil before one has begun.
	stopped     chan struct{}
	abandoned   bool
	sideEffects commonv1.SideEffectStatus
	detach      *time.Timer
	// keepUntil is when drafts that nobody has come for may be given up.
	keepUntil time.Time
	// changed is closed, and replaced, when something that a waiter may look at has changed.
	changed chan struct{}
	waiters int
}

func newRun(fence *commonv1.Fence, limits *Limits, flow flow, memory *memory) *run {
	return &run{
		id: fence.GetRunId(), turn: fence.GetTurn(), fence: fence, generation: fence.GetRunGeneration(),
		limits: limits, flow: flow, memory: memory,
		done: make(chan struct{}), changed: make(chan struct{}),
		lifecycle: lifecycle.New(), sideEffects: contract.NoSideEffects,
	}
}

// start lets the provider work: begin waits for the run's place, play is the turn.
func (r *run) start(deadline time.Time, begin func(context.Context) error, play func(context.Context, Emit) error) {
	// The deadline ends the run by stop, which says so in the terminal.
	ctx, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel = cancel
	r.deadline = time.AfterFunc(time.Until(deadline), func() {
		r.stop(eventv1.CancelReason_CANCEL_REASON_DEADLINE, r.limits.CancelGrace)
	})
	r.awaitReader()
	go func() {
		defer close(r.done)
		defer cancel()
		err := guarded(func() error {
			if err := begin(ctx); err != nil {
				return err
			}
			r.mu.Lock()
			r.sideEffects = contract.PossibleSideEffects
			r.mu.Unlock()
			return play(ctx, func(event *eventv1.EventDraft) error { return r.emit(ctx, event) })
		})
		r.conclude(err)
	}()
}

// guarded turns a panic into an error: whatever goes wrong ends this run and no other (I23).
func guarded(work func() error) (err error) {
	defer func() {
		if caught := recover(); caught != nil {
			// The value may hold anything; where it happened says enough.
			slog.Error("provider_panicked", "type", fmt.Sprintf("%T", caught), "stack", string(debug.Stack()))
			err = errors.New("the provider panicked")
		}
	}()
	return work()
}

// emit takes the provider's next draft once there is room for it.
func (r *run) emit(ctx context.Context, event *eventv1.EventDraft) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Backpressure: the provider goes on when the control plane has stored what it has.
	for {
		// Asked for before the look, so that no room is missed in between.
		room := r.memory.room()
		if r.closed || !r.isFull() {
			break
		}
		if err := r.wait(ctx, room, 0); err != nil {
			return err
		}
	}
	if r.closed {
		r.discarded++
		return errStopped
	}
	events, err := r.lifecycle.Accept(event)
	if err != nil {
		// I19: nothing of it goes out, whatever the provider makes of the error.
		r.closed, r.violation = true, err
		return err
	}
	r.append(events)
	return nil
}

func (r *run) isFull() bool {
	return r.buffer.len() >= r.flow.maxEvents || r.buffer.bytes >= r.flow.maxBytes || r.memory.isFull()
}

func (r *run) append(events []*eventv1.EventDraft) {
	for _, event := range events {
		r.memory.take(r.buffer.append(event))
	}
	if r.lifecycle.Ended() {
		r.closed = true
	}
	r.wake()
}

// conclude writes the terminal that the provider left out.
func (r *run) conclude(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deadline.Stop()
	if r.discarded > 0 {
		slog.Warn("late_events_discarded", "run_id", r.id, "count", r.discarded)
	}
	switch {
	case r.lifecycle.Ended() || r.stopped != nil:
		// It has its end, or whoever stops it writes it.
	case r.violation != nil:
		r.fail(r.violation)
	case err != nil:
		r.fail(err)
	default:
		r.fail(contract.Protocol("missing_terminal", "The event stream ended without a terminal event.")) // rule 6
	}
	r.offer()
}

func (r *run) fail(err error) {
	failure := contract.Classify(err)
	slog.Error("run_failed", "run_id", r.id, "code", failure.Code, "diagnostic", failure.Diagnostic)
	sideEffects := contract.NoSideEffects
	if r.sideEffects != contract.NoSideEffects {
		sideEffects = failure.SideEffectsAfter(r.buffer.last > 0)
	}
	r.finish(draft.Failed(failure, sideEffects))
}

func (r *run) finish(terminal *eventv1.EventDraft) {
	events, err := r.lifecycle.Accept(terminal)
	if err != nil {
		// Only our own terminals come here; one that is refused must not leave the run without an end (I9).
		slog.Error("terminal_refused", "run_id", r.id, "error", err.Error())
		failure := contract.Classify(errors.New("terminal refused"))
		events, _ = r.lifecycle.Accept(draft.Failed(failure, contract.PossibleSideEffects))
	}
	r.append(events)
}

// stop ends the run and its provider's work: after it returns the terminal is in the buffer and nothing follows it (I12).
// It is idempotent; the first reason counts.
func (r *run) stop(reason eventv1.CancelReason, grace time.Duration) {
	r.mu.Lock()
	if r.stopped != nil {
		stopped := r.stopped
		r.mu.Unlock()
		<-stopped
		return
	}
	stopped := make(chan struct{})
	r.stopped, r.closed = stopped, true
	r.wake()
	r.mu.Unlock()
	defer close(stopped)

	r.cancel()
	timer := time.NewTimer(max(grace, r.limits.StopBound))
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		slog.Error("provider_ignores_cancellation", "run_id", r.id)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = r.working()
	if !r.lifecycle.Ended() {
		r.finish(draft.Cancelled(reason, r.sideEffects))
	}
	r.offer()
}

// working says whether the provider may still be at work.
func (r *run) working() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// ended says whether the terminal is in the buffer, and what may have happened outside.
func (r *run) ended() (bool, commonv1.SideEffectStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lifecycle.Ended(), r.sideEffects
}

// isAbandoned says whether the provider ignored its cancellation.
func (r *run) isAbandoned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.abandoned
}

// Fence is the envelope of calls that this run makes now, with the generation of the executor that is known.
func (r *run) Fence() *commonv1.Fence {
	fence := proto.CloneOf(r.fence)
	r.mu.Lock()
	defer r.mu.Unlock()
	fence.RunGeneration = r.generation
	return fence
}

// WaitForExecutor says whether an executor of another generation came before the context ended (I10: the work goes on).
func (r *run) WaitForExecutor(ctx context.Context, generation uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.generation == generation {
		if r.wait(ctx, nil, 0) != nil {
			return false
		}
	}
	return true
}

// takeOver refuses an older executor than the youngest that came, and notes a younger one.
func (r *run) takeOver(generation uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if generation < r.generation { // I10
		return contract.StaleLease("Another executor has taken the run.")
	}
	if generation > r.generation {
		r.generation = generation
		r.wake()
	}
	return nil
}

// wait returns when something changed, also has a value, or the time (if any) is over; or with the context's error. Call
// it with mu held; it is free meanwhile.
func (r *run) wait(ctx context.Context, also <-chan struct{}, bound time.Duration) error {
	changed := r.changed
	r.waiters++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.waiters--
	}()
	var over <-chan time.Time
	if bound > 0 {
		timer := time.NewTimer(bound)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-changed:
	case <-also:
	case <-over:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (r *run) wake() {
	if r.waiters > 0 {
		close(r.changed)
		r.changed = make(chan struct{})
	}
}
