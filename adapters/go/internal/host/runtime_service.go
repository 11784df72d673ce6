package host

import (
	"context"

	"google.golang.org/grpc"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/contract"
)

// RuntimeService is the lifecycle of the runtimes in a registry: translate, call, translate back.
type RuntimeService struct {
	runtimev1.UnimplementedRuntimeServiceServer
	Registry *Registry
}

// Initialize prepares the runtime.
func (s *RuntimeService) Initialize(
	ctx context.Context, request *runtimev1.InitializeRequest,
) (*runtimev1.InitializeResponse, error) {
	slot, err := s.Registry.find(request.GetFence())
	if err != nil {
		return nil, err
	}
	done, err := slot.initialize(ctx)
	if err != nil {
		return nil, contract.FromFailure(contract.Classify(err))
	}
	return &runtimev1.InitializeResponse{Initialized: done}, nil
}

// StartRun runs a turn, or joins it.
func (s *RuntimeService) StartRun(
	request *runtimev1.StartRunRequest, stream grpc.ServerStreamingServer[runtimev1.StartRunResponse],
) error {
	run, err := s.Registry.start(request.GetFence(), request.GetIncarnation(), request.GetTurn(), nil)
	if err != nil {
		return err
	}
	return run.follow(stream.Context(), run.firstUnacked(), func(batch *eventv1.EventBatch) error {
		return stream.Send(&runtimev1.StartRunResponse{Batch: batch})
	}, nothing)
}

// ResumeRun runs the turn that answers an interrupt, or joins it.
func (s *RuntimeService) ResumeRun(
	request *runtimev1.ResumeRunRequest, stream grpc.ServerStreamingServer[runtimev1.ResumeRunResponse],
) error {
	run, err := s.Registry.start(
		request.GetFence(), request.GetIncarnation(), request.GetTurn(), request.GetDecision(),
	)
	if err != nil {
		return err
	}
	return run.follow(stream.Context(), run.firstUnacked(), func(batch *eventv1.EventBatch) error {
		return stream.Send(&runtimev1.ResumeRunResponse{Batch: batch})
	}, nothing)
}

// AttachRun streams a run again. Its first response says that the stream stands, although there is nothing new.
func (s *RuntimeService) AttachRun(
	request *runtimev1.AttachRunRequest, stream grpc.ServerStreamingServer[runtimev1.AttachRunResponse],
) error {
	run, err := s.Registry.attach(request.GetFence(), request.GetIncarnation())
	if err != nil {
		return err
	}
	return run.follow(stream.Context(), request.GetAfterOffset(), func(batch *eventv1.EventBatch) error {
		return stream.Send(&runtimev1.AttachRunResponse{Batch: batch})
	}, func() error { return stream.Send(&runtimev1.AttachRunResponse{}) })
}

// AckRun forgets what is durable.
func (s *RuntimeService) AckRun(
	_ context.Context, request *runtimev1.AckRunRequest,
) (*runtimev1.AckRunResponse, error) {
	run, err := s.Registry.known(request.GetFence())
	if err == nil {
		err = run.acknowledge(request.GetThroughOffset())
	}
	if err != nil {
		return nil, err
	}
	return &runtimev1.AckRunResponse{}, nil
}

// CancelRun stops a run, or keeps it from starting.
func (s *RuntimeService) CancelRun(
	_ context.Context, request *runtimev1.CancelRunRequest,
) (*runtimev1.CancelRunResponse, error) {
	run, err := s.Registry.toCancel(request.GetFence())
	if err != nil {
		return nil, err
	}
	if run == nil {
		return &runtimev1.CancelRunResponse{SideEffectStatus: contract.NoSideEffects}, nil
	}
	grace := s.Registry.limits.CancelGrace
	if request.GetGrace() != nil {
		grace = request.GetGrace().AsDuration()
	}
	already, _ := run.ended()
	run.stop(request.GetReason(), grace)
	_, sideEffects := run.ended()
	return &runtimev1.CancelRunResponse{AlreadyEnded: already, SideEffectStatus: sideEffects}, nil
}

// GetPendingInterrupt is the pause of the binding.
func (s *RuntimeService) GetPendingInterrupt(
	_ context.Context, request *runtimev1.GetPendingInterruptRequest,
) (*runtimev1.GetPendingInterruptResponse, error) {
	slot, err := s.Registry.find(request.GetFence())
	if err != nil {
		return nil, err
	}
	return &runtimev1.GetPendingInterruptResponse{Interrupt: slot.runtime.PendingInterrupt()}, nil
}

// Restart gives up what the provider holds.
func (s *RuntimeService) Restart(
	_ context.Context, request *runtimev1.RestartRequest,
) (*runtimev1.RestartResponse, error) {
	slot, err := s.Registry.find(request.GetFence())
	if err == nil {
		err = slot.restart()
	}
	if err != nil {
		return nil, err
	}
	return &runtimev1.RestartResponse{}, nil
}

// Cleanup gives up everything.
func (s *RuntimeService) Cleanup(
	ctx context.Context, request *runtimev1.CleanupRequest,
) (*runtimev1.CleanupResponse, error) {
	if err := s.Registry.cleanup(request.GetFence(), within(ctx, s.Registry.limits.CleanupBound)); err != nil {
		return nil, err
	}
	return &runtimev1.CleanupResponse{}, nil
}

func nothing() error { return nil }
