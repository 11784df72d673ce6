package server

import (
	"context"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protobuf "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	adapterv1 "harness.internal/adapters/go/gen/harness/adapter/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/host"
)

const (
	maxMessageBytes = 8 << 20
	maxStreams      = 4_096
	// flushBound is how long streams may take to hand over what is left once the runs have ended.
	flushBound = 5 * time.Second
)

// Server is a host that is served.
type Server struct {
	registry *host.Registry
	grpc     *grpc.Server
	health   *health.Server
}

// New serves the registry's runtimes to callers with the token; an empty one lets everybody in who can connect.
func New(registry *host.Registry, token string) *Server {
	edge := newBoundary(token)
	server := &Server{
		registry: registry,
		health:   health.NewServer(),
		grpc: grpc.NewServer(
			grpc.ForceServerCodecV2(lenientCodec{encoding.GetCodecV2(protobuf.Name)}),
			grpc.ChainUnaryInterceptor(edge.unary),
			grpc.ChainStreamInterceptor(edge.stream),
			grpc.MaxRecvMsgSize(maxMessageBytes),
			grpc.MaxSendMsgSize(maxMessageBytes),
			grpc.MaxConcurrentStreams(maxStreams),
			// A peer that died without a word is noticed, and its streams end.
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 10 * time.Second}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
				MinTime: 5 * time.Second, PermitWithoutStream: true,
			}),
		),
	}
	adapterv1.RegisterAdapterServiceServer(server.grpc, &host.AdapterService{Registry: registry})
	runtimev1.RegisterRuntimeServiceServer(server.grpc, &host.RuntimeService{Registry: registry})
	healthv1.RegisterHealthServer(server.grpc, server.health)
	reflection.Register(server.grpc)
	for name := range server.grpc.GetServiceInfo() {
		server.health.SetServingStatus(name, healthv1.HealthCheckResponse_SERVING)
	}
	return server
}

// Serve takes calls until the context ends. Then it takes no new runs, gives those at work the grace (less, if hurry
// ends), cancels the rest and gives everything up (I20, I33).
func (s *Server) Serve(ctx, hurry context.Context, listener net.Listener, grace time.Duration) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.grpc.Serve(listener) })
	group.Go(func() error {
		s.registry.Sweep(ctx)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		s.stop(hurry, grace)
		return nil
	})
	return group.Wait()
}

func (s *Server) stop(hurry context.Context, grace time.Duration) {
	s.health.Shutdown()
	draining, cancel := context.WithTimeout(hurry, grace)
	s.registry.Drain(draining)
	cancel()
	flushed := time.AfterFunc(flushBound, s.grpc.Stop)
	s.grpc.GracefulStop()
	flushed.Stop()
	s.registry.Close()
}
