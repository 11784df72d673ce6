package facade

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
)

const (
	// takeoverBound is how long a call waits for the executor that takes the run over: three times a lease's default.
	takeoverBound = 15 * time.Second
	// stateAwayBound and toolAwayBound are how long a call is made again while the facade is away, as when it is restarted.
	stateAwayBound = 10 * time.Second
	toolAwayBound  = 30 * time.Second
	pause          = 100 * time.Millisecond
	// staleLease is the reason of a call whose fence is older than what is committed.
	staleLease = "STALE_LEASE"
)

// Executor is who the run works for now.
type Executor interface {
	// Fence is the envelope of a call made now.
	Fence() *commonv1.Fence
	// WaitForExecutor says whether an executor of another generation came before the context ended.
	WaitForExecutor(ctx context.Context, generation uint32) bool
}

// Access is what a run needs to reach one facade: where it is, its token, and the run's fence.
type Access struct {
	channels  *Channels
	executor  Executor
	addresses []string
	token     string
}

// NewAccess finds the audience's addresses and token; nil if the run was given none.
func NewAccess(
	channels *Channels, executor Executor, audience string,
	endpoints []*commonv1.FacadeEndpoint, tokens []*commonv1.CapabilityToken,
) *Access {
	access := &Access{channels: channels, executor: executor}
	for _, endpoint := range endpoints {
		if endpoint.GetAudience() == audience {
			access.addresses = append(access.addresses, endpoint.GetAddress())
		}
	}
	for _, token := range tokens {
		if token.GetAudience() == audience {
			access.token = token.GetValue()
			break
		}
	}
	if len(access.addresses) == 0 || access.token == "" {
		return nil
	}
	return access
}

// fenced makes a call that may be repeated. One refused because the run is being taken over waits for the new executor
// and is made again (I10); one to a facade that is away is made again, at the next replica if there is one, until the
// bound has passed since it was found away first (I34).
func (a *Access) fenced(
	ctx context.Context, bound time.Duration, call func(context.Context, grpc.ClientConnInterface, *commonv1.Fence) error,
) error {
	authorised := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+a.token)
	var awaySince time.Time
	for try := 0; ; try++ {
		fence := a.executor.Fence()
		conn, err := a.channels.to(a.addresses[try%len(a.addresses)])
		if err == nil {
			err = call(authorised, conn, fence)
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case isAway(err):
			if awaySince.IsZero() {
				awaySince = time.Now()
			}
			if time.Since(awaySince) > bound {
				return err
			}
			if err := sleep(ctx, pause); err != nil {
				return err
			}
		case isBeingTakenOver(err):
			waiting, cancel := context.WithTimeout(ctx, takeoverBound)
			came := a.executor.WaitForExecutor(waiting, fence.GetRunGeneration())
			cancel()
			if !came {
				return err
			}
		default:
			return err
		}
	}
}

// isAway says whether a call ended as those do whose server is gone, or goes. One that is there and refuses says why, and
// whether to come again.
func isAway(err error) bool {
	if code := status.Code(err); code != codes.Unavailable && code != codes.Canceled {
		return false
	}
	info := infoOf(err)
	return info.GetReason() == "" || info.GetMetadata()["retryable"] == "true"
}

// isBeingTakenOver says whether nothing but the run's generation was too old: then the facade calls it retryable.
func isBeingTakenOver(err error) bool {
	info := infoOf(err)
	return info.GetReason() == staleLease && info.GetMetadata()["retryable"] == "true"
}

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
