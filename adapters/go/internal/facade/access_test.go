package facade

import (
	"context"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
)

type alone struct{}

func (alone) Fence() *commonv1.Fence                           { return &commonv1.Fence{RunGeneration: 1} }
func (alone) WaitForExecutor(_ context.Context, _ uint32) bool { return false }

// written is a status that the facade itself wrote.
func written(t *testing.T, code codes.Code, retryable string) error {
	t.Helper()
	info := &errdetails.ErrorInfo{Reason: "unavailable", Domain: "harness", Metadata: map[string]string{"retryable": retryable}}
	detailed, err := status.New(code, "away").WithDetails(info)
	if err != nil {
		t.Fatal(err)
	}
	return detailed.Err()
}

func TestACallIsMadeAgainOnlyWhereTheFacadeIsAwayOrSaysSo(t *testing.T) {
	for name, one := range map[string]struct {
		err  error
		away bool
	}{
		"nobody there":          {status.Error(codes.Unavailable, "connection refused"), true},
		"gone in the middle":    {status.Error(codes.Canceled, "stopped"), true},
		"away, it says":         {written(t, codes.Unavailable, "true"), true},
		"refused for good":      {written(t, codes.Unavailable, "false"), false},
		"refused without a say": {written(t, codes.Unavailable, ""), false},
		"another status":        {status.Error(codes.Internal, "broken"), false},
	} {
		tries := 0
		access := &Access{channels: NewChannels(), executor: alone{}, addresses: []string{"unix:/nobody.sock"}, token: "t"}
		err := access.fenced(context.Background(), time.Hour, func(context.Context, grpc.ClientConnInterface, *commonv1.Fence) error {
			if tries++; tries > 1 {
				return nil
			}
			return one.err
		})
		if again := tries == 2; again != one.away || (err == nil) != one.away {
			t.Errorf("%s: made again: %v (%v), want %v", name, again, err, one.away)
		}
	}
}

func TestACallIsMadeAgainNoLongerThanItsBound(t *testing.T) {
	tries := 0
	access := &Access{channels: NewChannels(), executor: alone{}, addresses: []string{"unix:/nobody.sock"}, token: "t"}
	err := access.fenced(context.Background(), time.Nanosecond, func(context.Context, grpc.ClientConnInterface, *commonv1.Fence) error {
		tries++
		return status.Error(codes.Unavailable, "connection refused")
	})
	if status.Code(err) != codes.Unavailable || tries < 1 || tries > 2 {
		t.Errorf("%v after %d tries", err, tries)
	}
}

func TestTheBoundsAreThoseOfTheContract(t *testing.T) {
	if stateAwayBound != 10*time.Second || toolAwayBound != 30*time.Second {
		t.Error("the contract's comments say 10 and 30 seconds")
	}
}
