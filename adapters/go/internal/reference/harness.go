// Package reference is the reference harness in Go: no model, deterministic, it does what the message says.
package reference

import (
	"context"

	"google.golang.org/protobuf/types/known/structpb"

	adapterv1 "harness.internal/adapters/go/gen/harness/adapter/v1"
	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/host"
)

// Harness is the reference harness.
type Harness struct{ descriptor *adapterv1.Descriptor }

// New is the harness with its descriptor.
func New() (*Harness, error) {
	descriptor, err := describe()
	if err != nil {
		return nil, err
	}
	return &Harness{descriptor: descriptor}, nil
}

// Descriptor says what it is.
func (h *Harness) Descriptor() *adapterv1.Descriptor { return h.descriptor }

// Evaluate takes any blueprint; the greeting's default is written out.
func (h *Harness) Evaluate(request *adapterv1.EvaluateRequest) *adapterv1.EvaluateResponse {
	options := &structpb.Struct{Fields: map[string]*structpb.Value{"greeting": structpb.NewStringValue("")}}
	for name, value := range request.GetBlueprint().GetHarness().GetOptions().GetFields() {
		options.Fields[name] = value
	}
	return &adapterv1.EvaluateResponse{NormalizedOptions: options}
}

// CheckHealth looks at nothing: what the harness needs is in its process.
func (h *Harness) CheckHealth(context.Context) []*commonv1.HealthCheck {
	healthy := commonv1.HealthStatus_HEALTH_STATUS_HEALTHY
	return []*commonv1.HealthCheck{{Name: "dependency", Status: healthy}, {Name: "configuration", Status: healthy}}
}

// NewRuntime holds the operator's and the author's settings, nothing else.
func (h *Harness) NewRuntime(context *runtimev1.RuntimeContext) host.Runtime {
	return newRuntime(context)
}
