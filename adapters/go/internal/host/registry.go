package host

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/facade"
)

// protocolVersion of the worker protocol, the only one spoken here.
const protocolVersion = 1

// generation orders the runtimes of a binding.
type generation struct{ epoch, runtime uint32 }

func (g generation) below(other generation) bool {
	return g.epoch < other.epoch || (g.epoch == other.epoch && g.runtime < other.runtime)
}

func generationOf(fence *commonv1.Fence) generation {
	return generation{fence.GetEpoch(), fence.GetRuntimeGeneration()}
}

type runKey struct{ bindingID, runID string }

// Registry holds the runtimes of one process's incarnation (worker protocol, Fence).
type Registry struct {
	incarnation string
	harness     Harness
	limits      Limits
	memory      *memory
	channels    *facade.Channels

	mu       sync.Mutex
	stopping bool
	slots    map[string]*slot
	// highest seen of a binding, also of runtimes that are gone.
	highest *remembered[string, generation]
	// cancelled are runs that were cancelled before they came.
	cancelled *remembered[runKey, struct{}]
	active    map[*run]struct{}
	// idle is closed when the last active run has ended while the host drains.
	idle chan struct{}
	// cleanups are those that go on beside.
	cleanups sync.WaitGroup
}

// NewRegistry is a host of the harness without any runtime. The incarnation names this process.
func NewRegistry(harness Harness, incarnation string, limits Limits) *Registry {
	return &Registry{
		incarnation: incarnation, harness: harness, limits: limits,
		memory: newMemory(limits.MaxBufferedBytes), channels: facade.NewChannels(),
		slots:     map[string]*slot{},
		highest:   newRemembered[string, generation](max(limits.Remembered, limits.MaxRuntimes)),
		cancelled: newRemembered[runKey, struct{}](limits.Remembered),
		active:    map[*run]struct{}{},
	}
}

// create makes the runtime of the fence; false if it is there. A higher generation ends the older runtime, a lower one is
// refused.
func (r *Registry) create(fence *commonv1.Fence, context *runtimev1.RuntimeContext) (bool, error) {
	if err := checkProtocol(fence); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false, contract.Stopping()
	}
	wanted := generationOf(fence)
	highest, _ := r.highest.get(fence.GetBindingId())
	if wanted.below(highest) { // I5, I27: what was replaced never comes back
		return false, contract.StaleLease("A younger runtime of this binding has been here.")
	}
	older := r.slots[fence.GetBindingId()]
	if older != nil && wanted == highest {
		older.touch()
		return false, nil
	}
	if older == nil && len(r.slots) >= r.limits.MaxRuntimes {
		if err := r.makeRoom(); err != nil {
			return false, err
		}
	}
	if older != nil {
		r.drop(fence.GetBindingId(), older)
	}
	r.highest.put(fence.GetBindingId(), wanted)
	r.slots[fence.GetBindingId()] = newSlot(r.harness.NewRuntime(context), context, r)
	return true, nil
}

// makeRoom drops the runtime that is idle for longest.
func (r *Registry) makeRoom() error {
	var oldest string
	var since time.Time
	for bindingID, slot := range r.slots {
		used := slot.lastUsed()
		if (oldest == "" || used.Before(since)) && slot.mayMakeRoom() {
			oldest, since = bindingID, used
		}
	}
	if oldest == "" {
		return contract.Capacity("All runtimes of this host are at work.")
	}
	r.drop(oldest, r.slots[oldest])
	return nil
}

// drop makes a runtime unreachable; its cleanup goes on beside.
func (r *Registry) drop(bindingID string, dropped *slot) {
	delete(r.slots, bindingID)
	r.cleanups.Add(1)
	go func() {
		defer r.cleanups.Done()
		dropped.cleanup(r.limits.CleanupBound, eventv1.CancelReason_CANCEL_REASON_SUPERSEDED)
	}()
}

// find is the runtime of the fence, or a refusal: STALE_LEASE for an older one, runtime_unknown if it never was here,
// runtime_gone if it is here no more.
func (r *Registry) find(fence *commonv1.Fence) (*slot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.findLocked(fence)
}

func (r *Registry) findLocked(fence *commonv1.Fence) (*slot, error) {
	if err := checkProtocol(fence); err != nil {
		return nil, err
	}
	highest, _ := r.highest.get(fence.GetBindingId())
	named := generationOf(fence)
	if named.below(highest) {
		return nil, contract.StaleLease("A younger runtime of this binding has been here.")
	}
	if named != highest {
		return nil, contract.RuntimeUnknown()
	}
	found := r.slots[fence.GetBindingId()]
	if found == nil {
		return nil, contract.RuntimeGone() // I11
	}
	return found, nil
}

// cleanup ends the runtime of the fence; one that is not here is clean (I20).
func (r *Registry) cleanup(fence *commonv1.Fence, bound time.Duration) error {
	r.mu.Lock()
	found, err := r.findLocked(fence)
	if err == nil {
		delete(r.slots, fence.GetBindingId())
	}
	r.mu.Unlock()
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	found.cleanup(bound, shutdown)
	return nil
}

// start is the run of the fence, started if it is not here yet (I6).
func (r *Registry) start(
	fence *commonv1.Fence, incarnation string, input *runtimev1.TurnInput, decision *runtimev1.ResumeDecision,
) (*run, error) {
	if err := r.checkRun(fence, incarnation); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slot, err := r.findLocked(fence)
	if err != nil {
		return nil, err
	}
	known, err := slot.find(fence)
	if known != nil || err != nil {
		return known, err
	}
	if _, cancelled := r.cancelled.get(keyOf(fence)); cancelled { // I12
		return nil, contract.RunCancelled()
	}
	if r.stopping {
		return nil, contract.Stopping()
	}
	if len(r.active) >= r.limits.MaxRuns {
		return nil, contract.Capacity("This host works on as many runs as it may already.")
	}
	admitted, err := slot.admit(fence, input, decision)
	if err != nil {
		return nil, err
	}
	r.active[admitted] = struct{}{}
	go func() {
		<-admitted.done
		r.release(admitted)
	}()
	return admitted, nil
}

func (r *Registry) release(ended *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, ended)
	if len(r.active) == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// attach is the run of the fence, which must be here.
func (r *Registry) attach(fence *commonv1.Fence, incarnation string) (*run, error) {
	if err := r.checkRun(fence, incarnation); err != nil {
		return nil, err
	}
	return r.known(fence)
}

// known is the run of the fence, for whoever needs no incarnation.
func (r *Registry) known(fence *commonv1.Fence) (*run, error) {
	if err := checkRun(fence); err != nil {
		return nil, err
	}
	slot, err := r.find(fence)
	if err != nil {
		return nil, err
	}
	found, err := slot.find(fence)
	if found == nil && err == nil {
		return nil, contract.RunUnknown()
	}
	return found, err
}

// toCancel is the run to stop, or nil: then a later start of it is refused, whether or not its runtime is here (I12).
func (r *Registry) toCancel(fence *commonv1.Fence) (*run, error) {
	if err := checkRun(fence); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slot, err := r.findLocked(fence)
	if err != nil {
		r.cancelled.put(keyOf(fence), struct{}{})
		return nil, err
	}
	found, err := slot.find(fence)
	if found == nil && err == nil {
		r.cancelled.put(keyOf(fence), struct{}{})
	}
	return found, err
}

// load is how many runs are worked on, of how many at most.
func (r *Registry) load() (active, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.active), r.limits.MaxRuns
}

// Sweep drops runtimes that have been idle for long, until the context ends.
func (r *Registry) Sweep(ctx context.Context) {
	ticker := time.NewTicker(max(r.limits.RuntimeIdle/4, time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.dropIdle(now.Add(-r.limits.RuntimeIdle))
		}
	}
}

func (r *Registry) dropIdle(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for bindingID, slot := range r.slots {
		if slot.isIdle(since) {
			r.drop(bindingID, slot)
		}
	}
}

// Drain takes no new work and waits for what is at work until the context ends; the rest is cancelled (I33).
func (r *Registry) Drain(ctx context.Context) {
	r.mu.Lock()
	r.stopping = true
	idle := make(chan struct{})
	if len(r.active) == 0 {
		close(idle)
	} else {
		r.idle = idle
	}
	r.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
		r.stopAll()
	}
}

func (r *Registry) stopAll() {
	r.mu.Lock()
	var stops sync.WaitGroup
	slog.Warn("runs_cut_off", "count", len(r.active))
	for active := range r.active {
		stops.Add(1)
		go func() {
			defer stops.Done()
			active.stop(shutdown, time.Second)
		}()
	}
	r.mu.Unlock()
	stops.Wait()
}

// Close gives up every runtime, within the bound of a cleanup (I20).
func (r *Registry) Close() {
	r.mu.Lock()
	r.stopping = true
	for bindingID, slot := range r.slots {
		r.drop(bindingID, slot)
	}
	r.mu.Unlock()
	r.cleanups.Wait()
	r.channels.Close()
}

func (r *Registry) checkRun(fence *commonv1.Fence, incarnation string) error {
	if err := checkRun(fence); err != nil {
		return err
	}
	if incarnation != r.incarnation { // I11: what was issued to a dead process is not started by its successor
		return contract.IncarnationMismatch()
	}
	return nil
}

func checkRun(fence *commonv1.Fence) error {
	if fence.GetRunId() == "" || fence.GetTurn() == 0 || fence.GetRunGeneration() == 0 {
		return contract.Invalid("The fence names no run: run_id, turn and run_generation are required here.")
	}
	return nil
}

func checkProtocol(fence *commonv1.Fence) error {
	if fence.GetProtocolVersion() != protocolVersion {
		return contract.Mismatch("This process speaks version 1 of the worker protocol only.")
	}
	return nil
}

func keyOf(fence *commonv1.Fence) runKey { return runKey{fence.GetBindingId(), fence.GetRunId()} }
