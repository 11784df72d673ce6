package reference

import (
	"context"
	"fmt"
	"strings"
	"time"

	"harness.internal/adapters/go/internal/draft"
	"harness.internal/adapters/go/internal/host"
)

// play emits the deltas at their moments of one schedule, so that a late one delays none after it. A burst leaves no
// thread state.
func (b *burst) play(ctx context.Context, emit host.Emit) error {
	body := strings.Repeat("x", b.size)
	if err := sleep(ctx, seconds(b.delay)); err != nil {
		return err
	}
	begun := time.Now()
	for index := range b.n {
		if b.rate > 0 {
			ahead := time.Until(begun.Add(seconds(float64(index) / b.rate)))
			if err := sleep(ctx, ahead); err != nil {
				return err
			}
		}
		text := body
		if b.stamp {
			text = fmt.Sprintf("ts=%.6f %s", float64(time.Now().UnixMicro())/1e6, body)
		}
		if err := emit(draft.Text("m1", text)); err != nil {
			return err
		}
	}
	return emit(draft.Completed(nil))
}

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

// sleep waits, or returns the context's error at once.
func sleep(ctx context.Context, duration time.Duration) error {
	if duration <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
