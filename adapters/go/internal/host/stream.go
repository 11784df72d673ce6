package host

import (
	"context"
	"log/slog"
	"time"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	"harness.internal/adapters/go/internal/contract"
)

const (
	// linger is how long a batch gathers after the one before it, and largeBatch from how many drafts it goes at once.
	linger     = 2 * time.Millisecond
	largeBatch = 64
)

// follow sends the drafts after an offset, in batches, to the terminal. A younger stream ends this one; leaving it does
// not end the run, but starts its detach grace. Before the first batch it calls stands, if there is nothing new.
func (r *run) follow(ctx context.Context, after uint32, send func(*eventv1.EventBatch) error, stands func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after > r.buffer.last {
		return contract.OffsetAhead(r.buffer.last)
	}
	if after < r.buffer.forgotten {
		return contract.OffsetForgotten(r.buffer.forgotten + 1)
	}
	r.reader++
	me := r.reader
	r.sent = after
	r.memory.withdraw(r)
	r.detach.Stop()
	r.wake()
	defer func() {
		if me == r.reader {
			r.awaitReader()
			r.offer()
		}
	}()
	if after == r.buffer.last {
		if err := r.outside(stands); err != nil {
			return err
		}
	}
	return r.sendAll(ctx, me, after, send)
}

func (r *run) sendAll(ctx context.Context, me uint64, position uint32, send func(*eventv1.EventBatch) error) error {
	atOnce := true
	for me == r.reader {
		// An acknowledgement may have come by another stream of this run.
		position = max(position, r.buffer.forgotten)
		fresh := r.buffer.last - position
		switch {
		case fresh > 0 && (atOnce || fresh >= largeBatch || r.lifecycle.Ended()):
			batch := &eventv1.EventBatch{FirstOffset: position + 1, Drafts: r.buffer.read(position)}
			position += uint32(len(batch.GetDrafts()))
			r.sent = max(r.sent, position)
			if err := r.outside(func() error { return send(batch) }); err != nil {
				return err
			}
			atOnce = false
		case fresh > 0:
			if err := r.gather(ctx, me, position); err != nil {
				return err
			}
			atOnce = true
		case r.lifecycle.Ended():
			return nil
		default:
			if err := r.wait(ctx, nil, 0); err != nil {
				return err
			}
		}
	}
	return contract.StreamSuperseded()
}

// gather waits a moment for more drafts after an offset.
func (r *run) gather(ctx context.Context, me uint64, position uint32) error {
	end := time.Now().Add(linger)
	for me == r.reader && r.buffer.last-position < largeBatch && !r.lifecycle.Ended() {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if err := r.wait(ctx, nil, left); err != nil {
			return err
		}
	}
	return nil
}

// outside does something slow without holding mu.
func (r *run) outside(work func() error) error {
	r.mu.Unlock()
	defer r.mu.Lock()
	return work()
}

// acknowledge forgets drafts that are durable. A lower offset than before changes nothing.
func (r *run) acknowledge(through uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if through > r.buffer.last {
		return contract.OffsetAhead(r.buffer.last)
	}
	r.acked = max(r.acked, through)
	r.memory.free(r.buffer.forget(through))
	r.wake()
	r.offer()
	return nil
}

// firstUnacked is where a repeated StartRun goes on.
func (r *run) firstUnacked() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked
}

// awaitReader begins the detach grace.
func (r *run) awaitReader() {
	if r.detach != nil {
		r.detach.Stop()
	}
	r.keepUntil = time.Now().Add(r.limits.Kept)
	r.detach = time.AfterFunc(r.flow.detachGrace, r.onDetached)
}

// keptLonger says whether it is too early to give up what nobody has come for; then it looks again in time.
func (r *run) keptLonger() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := time.Until(r.keepUntil)
	if left > 0 {
		r.detach = time.AfterFunc(left, r.onDetached)
	}
	return left > 0
}

func (r *run) onDetached() {
	if ended, _ := r.ended(); ended {
		// The run may have ended a moment ago, when the grace of a run that works was all but over.
		if !r.keptLonger() {
			// Nobody came for the rest in all that time.
			r.giveUp()
		}
		return
	}
	slog.Warn("run_detached_too_long", "run_id", r.id)
	r.stop(shutdown, r.limits.CancelGrace)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitReader()
}

// settled says whether nothing works here and whoever read the run was given all of it. Acknowledgements may come late.
func (r *run) settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.working() && r.handedOver()
}

func (r *run) handedOver() bool {
	return r.lifecycle.Ended() && max(r.sent, r.buffer.forgotten) >= r.buffer.last
}

// quiet says whether nothing works here and no draft is left that somebody may ask for.
func (r *run) quiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.working() && r.lifecycle.Ended() && r.buffer.len() == 0
}

// offer lets others have this run's memory when it is over in every respect.
func (r *run) offer() {
	if r.lifecycle.Ended() && r.buffer.len() == 0 {
		r.memory.withdraw(r)
		r.detach.Stop()
	} else if r.handedOver() {
		r.memory.offer(r)
	}
}

// giveUp forgets drafts of an ended run although nobody has said that they are durable; who asks for them is refused.
func (r *run) giveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buffer.len() == 0 {
		return
	}
	slog.Warn("drafts_given_up", "run_id", r.id, "after", r.buffer.forgotten, "through", r.buffer.last)
	r.memory.free(r.buffer.forget(r.buffer.last))
	r.offer()
}
