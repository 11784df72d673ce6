package reference

import (
	"context"
	"sync"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/host"
)

// runtime is one binding's. What a turn knows of earlier ones it reads from thread state; only a conversation without
// any keeps its pause here.
type runtime struct {
	durable  bool
	faults   bool
	greeting string

	mu sync.Mutex
	// waiting is the pause of the last turn, consumed the one a decision has gone on with.
	waiting, consumed *pause
}

func newRuntime(context *runtimev1.RuntimeContext) *runtime {
	blueprint, settings := context.GetBlueprint(), context.GetProfileSettings().AsMap()
	options := blueprint.GetHarness().GetOptions().AsMap()
	persistence := blueprint.GetThread().GetPersistence()
	return &runtime{
		durable:  persistence != commonv1.ThreadPersistence_THREAD_PERSISTENCE_EPHEMERAL,
		faults:   settings["allow_faults"] == true,
		greeting: textOf(options["greeting"], ""),
	}
}

// Initialize has nothing to prepare: there is no provider behind it.
func (r *runtime) Initialize(context.Context) error { return nil }

// Release has nothing to give up.
func (r *runtime) Release() {}

// PendingInterrupt is the pause of the last turn, if it had one in this runtime.
func (r *runtime) PendingInterrupt() *runtimev1.PendingInterrupt {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		return nil
	}
	asked, err := r.waiting.requested()
	if err != nil {
		return nil
	}
	return &runtimev1.PendingInterrupt{
		InterruptId: asked.GetInterruptId(), Revision: asked.GetRevision(), RunId: r.waiting.RunID,
	}
}

// Play does what the message says, or goes on with what the decision is about.
func (r *runtime) Play(ctx context.Context, turn *host.Turn, emit host.Emit) error {
	if turn.Decision != nil {
		return r.resume(ctx, turn, emit)
	}
	asked, err := parse(turn.Input.GetMessage())
	if err != nil {
		return err
	}
	r.setWaiting(nil)
	switch asked := asked.(type) {
	case *burst:
		return asked.play(ctx, emit)
	case *scripted:
		return r.perform(ctx, turn, emit, asked)
	}
	return r.converse(ctx, turn, emit)
}

// resume plays the script after the one that paused.
func (r *runtime) resume(ctx context.Context, turn *host.Turn, emit host.Emit) error {
	before, err := r.recall(ctx, turn)
	if err != nil {
		return err
	}
	if !r.durable {
		before.Pause = r.pausedAt()
	}
	if before.Pause == nil {
		// Truthfully: nobody knows any more what was to be done.
		message := "What the conversation waited for is not known here any more."
		return contract.Persistence("interrupt_lost", message, false)
	}
	if err := before.Pause.check(turn.Decision); err != nil {
		return err
	}
	if !r.consume(before.Pause) { // I24
		return contract.Configuration("interrupt_consumed", "The interrupt was answered by another run already.")
	}
	return r.goOn(ctx, turn, emit, before)
}

// consume notes that a decision goes on with the pause; false if one has before.
func (r *runtime) consume(waiting *pause) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumed != nil && r.consumed.RunID == waiting.RunID {
		return false
	}
	r.waiting, r.consumed = nil, waiting
	return true
}

func (r *runtime) setWaiting(waiting *pause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = waiting
}

func (r *runtime) pausedAt() *pause {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// recall is the conversation so far; empty where there is none, or none is kept.
func (r *runtime) recall(ctx context.Context, turn *host.Turn) (memory, error) {
	if !r.durable || turn.Input.GetThreadRevision() == 0 {
		return memory{}, nil
	}
	return recall(ctx, turn.State)
}

func (r *runtime) remember(ctx context.Context, turn *host.Turn, left memory) error {
	if !r.durable {
		return nil
	}
	return remember(ctx, turn.State, left)
}
