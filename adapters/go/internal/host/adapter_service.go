package host

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adapterv1 "harness.internal/adapters/go/gen/harness/adapter/v1"
	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
)

// AdapterService is the harness as the control plane sees it: translate, call, translate back.
type AdapterService struct {
	adapterv1.UnimplementedAdapterServiceServer
	Registry *Registry
}

// GetDescriptor says what the adapter is.
func (s *AdapterService) GetDescriptor(
	context.Context, *adapterv1.GetDescriptorRequest,
) (*adapterv1.GetDescriptorResponse, error) {
	return &adapterv1.GetDescriptorResponse{
		Descriptor_: s.Registry.harness.Descriptor(), Incarnation: s.Registry.incarnation,
	}, nil
}

// CheckHealth says how the adapter is, a little before the caller's deadline.
func (s *AdapterService) CheckHealth(
	ctx context.Context, _ *adapterv1.CheckHealthRequest,
) (*adapterv1.CheckHealthResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, within(ctx, s.Registry.limits.HealthBound))
	defer cancel()
	checks := s.Registry.harness.CheckHealth(ctx)
	active, limit := s.Registry.load()
	worst := commonv1.HealthStatus_HEALTH_STATUS_HEALTHY
	for _, check := range checks {
		worst = max(worst, check.GetStatus())
	}
	if active >= limit {
		worst = max(worst, commonv1.HealthStatus_HEALTH_STATUS_DEGRADED)
	}
	return &adapterv1.CheckHealthResponse{Report: &commonv1.HealthReport{
		Status:    worst,
		Checks:    checks,
		Capacity:  &commonv1.Capacity{Active: uint32(active), Limit: uint32(limit)},
		CheckedAt: timestamppb.Now(),
	}}, nil
}

// Evaluate says whether a blueprint can run.
func (s *AdapterService) Evaluate(
	_ context.Context, request *adapterv1.EvaluateRequest,
) (*adapterv1.EvaluateResponse, error) {
	return s.Registry.harness.Evaluate(request), nil
}

// CreateRuntime creates the runtime of a binding, or finds it.
func (s *AdapterService) CreateRuntime(
	_ context.Context, request *adapterv1.CreateRuntimeRequest,
) (*adapterv1.CreateRuntimeResponse, error) {
	created, err := s.Registry.create(request.GetFence(), request.GetContext())
	if err != nil {
		return nil, err
	}
	return &adapterv1.CreateRuntimeResponse{Incarnation: s.Registry.incarnation, Created: created}, nil
}

// OpenSession opens nothing: the harness names a session with its first turn.
func (s *AdapterService) OpenSession(
	context.Context, *adapterv1.OpenSessionRequest,
) (*adapterv1.OpenSessionResponse, error) {
	return &adapterv1.OpenSessionResponse{}, nil
}

// CloseSession has nothing to end: everything of a session is thread state.
func (s *AdapterService) CloseSession(
	context.Context, *adapterv1.CloseSessionRequest,
) (*adapterv1.CloseSessionResponse, error) {
	return &adapterv1.CloseSessionResponse{}, nil
}

// within is a bound that leaves the caller time to hear the answer.
func within(ctx context.Context, bound time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return bound
	}
	return min(bound, max(time.Until(deadline)*9/10, 50*time.Millisecond))
}
