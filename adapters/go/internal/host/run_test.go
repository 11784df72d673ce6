package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	"harness.internal/adapters/go/internal/draft"
)

const clientRequest = eventv1.CancelReason_CANCEL_REASON_CLIENT_REQUEST

// begin starts a run of its own whose provider is play.
func begin(t *testing.T, most *memory, maxEvents int, play func(context.Context, Emit) error) *run {
	t.Helper()
	limits := DefaultLimits()
	fence := &commonv1.Fence{RunId: t.Name(), Turn: 1, RunGeneration: 1}
	made := newRun(fence, &limits, flow{maxEvents: maxEvents, maxBytes: 1 << 20, detachGrace: time.Hour}, most)
	made.start(time.Now().Add(time.Hour), func(context.Context) error { return nil }, play)
	t.Cleanup(func() { made.stop(clientRequest, 0) })
	return made
}

// counting emits n texts, then ends.
func counting(n int) func(context.Context, Emit) error {
	return func(_ context.Context, emit Emit) error {
		for range n {
			if err := emit(draft.Text("m1", "x")); err != nil {
				return err
			}
		}
		return emit(draft.Completed(nil))
	}
}

// read follows a run to its end and acknowledges what it gets; how many drafts came, in order.
func read(t *testing.T, from *run, after uint32) int {
	t.Helper()
	next, count := after+1, 0
	err := from.follow(context.Background(), after, func(batch *eventv1.EventBatch) error {
		if batch.GetFirstOffset() != next {
			t.Errorf("offset %d follows %d", batch.GetFirstOffset(), next-1)
		}
		count += len(batch.GetDrafts())
		next += uint32(len(batch.GetDrafts()))
		return from.acknowledge(next - 1)
	}, nothing)
	if err != nil {
		t.Errorf("the stream ended with %v", err)
	}
	return count
}

func TestNothingIsLostWhileTheProviderWaitsForAcknowledgements(t *testing.T) {
	counted := begin(t, newMemory(1<<20), 8, counting(5_000))
	if got := read(t, counted, 0); got != 5_001 {
		t.Errorf("got %d drafts", got)
	}
}

func TestAHostAtItsBoundTakesTheDraftsOfRunsThatWereReadToTheirEnd(t *testing.T) {
	shared := newMemory(100)
	first := begin(t, shared, 1_000, counting(2))
	count := 0
	// Read, and never acknowledged.
	err := first.follow(context.Background(), 0, func(batch *eventv1.EventBatch) error {
		count += len(batch.GetDrafts())
		return nil
	}, nothing)
	if err != nil || count != 3 {
		t.Fatalf("got %d drafts and %v", count, err)
	}
	second := begin(t, shared, 1_000, counting(200))
	if got := read(t, second, 0); got != 201 {
		t.Errorf("got %d drafts", got)
	}
	err = first.follow(context.Background(), 0, nil, nothing)
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("drafts that were given up: got %v", err)
	}
}

func TestAStopIsIdempotentAndNothingFollowsIt(t *testing.T) {
	begun := make(chan struct{})
	stopped := begin(t, newMemory(1<<20), 8, func(ctx context.Context, emit Emit) error {
		close(begun)
		<-ctx.Done()
		return errors.Join(emit(draft.Text("m1", "late")), ctx.Err())
	})
	<-begun
	for range 4 {
		go stopped.stop(clientRequest, 0)
	}
	stopped.stop(clientRequest, 0)
	ended, _ := stopped.ended()
	if drafts := stopped.buffer.read(0); !ended || len(drafts) != 1 || drafts[0].GetPayload().GetRunCancelled() == nil {
		t.Errorf("ended: %v, drafts: %v", ended, drafts)
	}
	<-stopped.done
	if stopped.buffer.last != 1 || stopped.discarded != 1 {
		t.Errorf("%d drafts, %d discarded", stopped.buffer.last, stopped.discarded)
	}
}

func TestAYoungerStreamEndsTheOlderOne(t *testing.T) {
	followed := begin(t, newMemory(1<<20), 8, func(ctx context.Context, _ Emit) error {
		<-ctx.Done()
		return ctx.Err()
	})
	older, stands := make(chan error, 1), make(chan struct{})
	go func() {
		older <- followed.follow(context.Background(), 0, nil, func() error {
			close(stands)
			return nil
		})
	}()
	<-stands
	ctx, leave := context.WithCancel(context.Background())
	err := followed.follow(ctx, 0, nil, func() error {
		leave()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the younger stream ended with %v", err)
	}
	if err := <-older; status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ended with %v", err)
	}
}

func TestAProviderThatPanicsEndsItsRunAlone(t *testing.T) {
	broken := begin(t, newMemory(1<<20), 8, func(context.Context, Emit) error { panic("secret") })
	<-broken.done
	failed := broken.buffer.read(0)[0].GetPayload().GetRunFailed()
	if failed.GetCategory() != commonv1.ErrorCategory_ERROR_CATEGORY_INTERNAL {
		t.Errorf("got %v", failed)
	}
}

func TestABrokenRuleFailsTheRunWhateverTheProviderMakesOfIt(t *testing.T) {
	broken := begin(t, newMemory(1<<20), 8, func(_ context.Context, emit Emit) error {
		if emit(draft.Text("not an id", "x")) == nil || emit(draft.Completed(nil)) == nil {
			t.Error("a broken rule went unnoticed")
		}
		return errors.New("another error")
	})
	<-broken.done
	drafts := broken.buffer.read(0)
	failed := drafts[0].GetPayload().GetRunFailed()
	if len(drafts) != 1 || failed.GetCategory() != commonv1.ErrorCategory_ERROR_CATEGORY_PROTOCOL {
		t.Errorf("got %v", drafts)
	}
}

func TestCallsToFacadesCarryTheGenerationOfTheYoungestExecutor(t *testing.T) {
	taken := begin(t, newMemory(1<<20), 8, func(ctx context.Context, _ Emit) error {
		<-ctx.Done()
		return ctx.Err()
	})
	waited := make(chan bool)
	go func() { waited <- taken.WaitForExecutor(context.Background(), 1) }()
	if err := taken.takeOver(3); err != nil {
		t.Fatal(err)
	}
	if !<-waited || taken.Fence().GetRunGeneration() != 3 {
		t.Errorf("the fence is %v", taken.Fence())
	}
	if err := taken.takeOver(2); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an older executor: got %v", err)
	}
}

func TestDraftsOfAnEndedRunOutlastAShortGrace(t *testing.T) {
	for kept, left := range map[time.Duration]int{time.Hour: 3, -time.Second: 0} {
		made := begin(t, newMemory(1<<20), 64, counting(2))
		<-made.done
		made.mu.Lock()
		made.limits.Kept = kept
		made.awaitReader()
		made.mu.Unlock()
		made.onDetached()
		made.mu.Lock()
		if made.buffer.len() != left {
			t.Errorf("kept for %s, %d drafts are left, not %d", kept, made.buffer.len(), left)
		}
		made.mu.Unlock()
	}
}
