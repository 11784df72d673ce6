package host

import (
	"context"
	"log/slog"
	"sync"
	"time"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/facade"
)

// supersedeGrace is how long an older turn may take to stop when a younger one is here (I27: cut off within 2 s).
const supersedeGrace = time.Second

// slot is one binding's runtime with its fence. It serves one binding, epoch and runtime generation for life.
type slot struct {
	limits   *Limits
	memory   *memory
	channels *facade.Channels
	context  *runtimev1.RuntimeContext
	runtime  Runtime
	// operation has a value in it while one of the operations that exclude each other is at work.
	operation chan struct{}

	// preparing guards what follows; it may be held for as long as a provider takes, so nothing else waits for it.
	preparing   sync.Mutex
	initialized bool
	failure     error

	mu     sync.Mutex
	closed bool
	usedAt time.Time
	turn   uint32
	run    *run
	past   []*run
}

func newSlot(runtime Runtime, context *runtimev1.RuntimeContext, registry *Registry) *slot {
	return &slot{
		limits: &registry.limits, memory: registry.memory, channels: registry.channels,
		context: context, runtime: runtime, operation: make(chan struct{}, 1), usedAt: time.Now(),
	}
}

// find returns the run of the fence after its generation was checked and taken over, or nil.
func (s *slot) find(fence *commonv1.Fence) (*run, error) {
	s.mu.Lock()
	known := s.known(fence.GetRunId())
	s.mu.Unlock()
	if known == nil {
		return nil, nil
	}
	return known, known.takeOver(fence.GetRunGeneration())
}

func (s *slot) known(runID string) *run {
	if s.run != nil && s.run.id == runID {
		return s.run
	}
	for _, past := range s.past {
		if past.id == runID {
			return past
		}
	}
	return nil
}

// admit starts the run of the fence, which is not here yet. That ends whatever an older turn still does.
func (s *slot) admit(
	fence *commonv1.Fence, input *runtimev1.TurnInput, decision *runtimev1.ResumeDecision,
) (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, contract.RuntimeGone()
	}
	if fence.GetTurn() <= s.turn { // I6: a turn belongs to one run, and an older one never works beside a younger
		return nil, contract.StaleLease("A younger turn has reached this runtime.")
	}
	// Whatever can be refused is refused before anything of the run is visible.
	if input.GetDeadline().CheckValid() != nil {
		return nil, contract.Invalid("The request is malformed at turn.deadline: it is no moment from year 1 to 9999.")
	}
	admitted, older := newRun(fence, s.limits, flowOf(s.context.GetLimits()), s.memory), s.run
	turn := s.turnOf(admitted, input, decision)
	admitted.start(
		input.GetDeadline().AsTime(),
		func(ctx context.Context) error { return s.begin(ctx, older) },
		func(ctx context.Context, emit Emit) error {
			defer func() { <-s.operation }()
			return s.play(ctx, turn, emit)
		},
	)
	if older != nil {
		s.past = append(s.past, older)
		s.past = s.past[max(0, len(s.past)-s.limits.RememberedRuns):]
	}
	s.turn, s.run, s.usedAt = fence.GetTurn(), admitted, time.Now()
	return admitted, nil
}

func (s *slot) turnOf(run *run, input *runtimev1.TurnInput, decision *runtimev1.ResumeDecision) *Turn {
	access := func(audience string) *facade.Access {
		return facade.NewAccess(s.channels, run, audience, s.context.GetFacades(), input.GetTokens())
	}
	return &Turn{
		RunID: run.id, Number: run.turn, Input: input, Decision: decision,
		State: facade.NewThreadState(access("state")), Tools: facade.NewTools(access("tool"), s.context),
	}
}

// begin waits until this turn is the only one at work.
func (s *slot) begin(ctx context.Context, older *run) error {
	if older != nil && older.working() {
		older.stop(eventv1.CancelReason_CANCEL_REASON_SUPERSEDED, supersedeGrace)
		// Cut off it is already; until it has let go of the provider this turn cannot begin.
		timer := time.NewTimer(s.limits.CancelGrace)
		defer timer.Stop()
		select {
		case <-older.done:
		case <-timer.C:
			return contract.Unavailable("runtime_stuck", "The runtime's older turn does not stop.")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case s.operation <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slot) play(ctx context.Context, turn *Turn, emit Emit) error {
	if _, err := s.initialize(ctx); err != nil {
		return err
	}
	defer s.touch()
	return s.runtime.Play(ctx, turn, emit)
}

func (s *slot) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usedAt = time.Now()
}

// initialize prepares the runtime once; false if it was. After a failure the same error again, until a restart (I20).
func (s *slot) initialize(ctx context.Context) (bool, error) {
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if s.failure != nil || s.initialized {
		return false, s.failure
	}
	s.failure = s.runtime.Initialize(ctx)
	s.initialized = s.failure == nil
	return s.initialized, s.failure
}

// restart gives up what the provider holds; refused while anything else works.
func (s *slot) restart() error {
	busy := contract.Busy("A run or another operation is at work in this runtime.")
	if s.isWorking() {
		return busy
	}
	select {
	case s.operation <- struct{}{}:
	default:
		return busy
	}
	defer func() { <-s.operation }()
	s.preparing.Lock()
	defer s.preparing.Unlock()
	s.initialized, s.failure = false, nil
	s.runtime.Release()
	return nil
}

func (s *slot) isWorking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run != nil && s.run.working()
}

// cleanup ends the run, if any, and gives up everything, within a bound. It is idempotent (I20).
func (s *slot) cleanup(bound time.Duration, reason eventv1.CancelReason) {
	s.mu.Lock()
	s.closed = true
	last := s.run
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	released := make(chan error, 1)
	go func() {
		released <- guarded(func() error {
			if last != nil {
				last.stop(reason, min(s.limits.CancelGrace, bound/2))
			}
			return s.release(ctx, last)
		})
	}()
	select {
	case err := <-released:
		if err != nil {
			slog.Error("cleanup_failed", "error", err.Error())
		}
	case <-ctx.Done():
		slog.Error("cleanup_cut_off", "bound", bound.String())
	}
}

// release gives up what the provider holds once nothing else works. A run that ignored its cancellation never makes
// room: what can be released then is released all the same.
func (s *slot) release(ctx context.Context, last *run) error {
	if last == nil || !last.isAbandoned() {
		select {
		case s.operation <- struct{}{}:
			defer func() { <-s.operation }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.runtime.Release()
	return nil
}

// mayMakeRoom says whether a full host may drop it: nothing works, and whoever read the last run has all of it.
func (s *slot) mayMakeRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.operation) == 0 && (s.run == nil || s.run.settled())
}

// isIdle says whether it was not used since a moment, and keeps nothing that somebody may still ask for.
func (s *slot) isIdle(since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usedAt.Before(since) && len(s.operation) == 0 && (s.run == nil || s.run.quiet())
}

func (s *slot) lastUsed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usedAt
}
