// Package server serves a host over gRPC: who may call, what is well formed, and how a failure looks on the wire.
package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"harness.internal/adapters/go/internal/contract"
)

// They travel in a trailer, and clients refuse a call whose trailers are over 8 KiB.
const maxIssues = 16

// boundary checks the bearer token, if one is set, and every request against its contract, and lets nothing of an
// unforeseen failure out (I22).
type boundary struct {
	expected [sha256.Size]byte
	open     bool
}

func newBoundary(token string) *boundary {
	return &boundary{expected: sha256.Sum256([]byte("Bearer " + token)), open: token == ""}
}

func (b *boundary) unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (response any, err error) {
	if isOpen(info.FullMethod) {
		return handler(ctx, request)
	}
	defer recovered(info.FullMethod, &err)
	if err := b.authorise(ctx); err != nil {
		return nil, err
	}
	if err := check(request); err != nil {
		return nil, err
	}
	response, err = handler(ctx, request)
	return response, sealed(err)
}

func (b *boundary) stream(
	server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) (err error) {
	if isOpen(info.FullMethod) {
		return handler(server, stream)
	}
	defer recovered(info.FullMethod, &err)
	if err := b.authorise(stream.Context()); err != nil {
		return err
	}
	return sealed(handler(server, &checkedStream{stream}))
}

// authorise compares digests, so that neither text nor length of the token shows in the time it takes.
func (b *boundary) authorise(ctx context.Context) error {
	if b.open {
		return nil
	}
	given := ""
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		given = values[0]
	}
	digest := sha256.Sum256([]byte(given))
	if subtle.ConstantTimeCompare(digest[:], b.expected[:]) != 1 {
		return contract.Unauthenticated()
	}
	return nil
}

// isOpen says whether a method is served to whoever can connect: it says nothing of any run.
func isOpen(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.") || strings.HasPrefix(method, "/grpc.reflection.")
}

// checkedStream checks what comes in.
type checkedStream struct{ grpc.ServerStream }

// RecvMsg refuses a message that breaks the constraints of its contract.
func (s *checkedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return check(message)
}

// check names every malformed field of a request, and none of the values.
func check(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return contract.Defect()
	}
	if isUnreadable(message) {
		return contract.Invalid("The request cannot be read: the bytes are no message of its type.")
	}
	err := protovalidate.Validate(message)
	if err == nil {
		return nil
	}
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) {
		slog.Error("validation_failed", "error", err.Error())
		return contract.Defect()
	}
	var issues []*errdetails.BadRequest_FieldViolation
	for _, violation := range invalid.Violations[:min(maxIssues, len(invalid.Violations))] {
		issues = append(issues, &errdetails.BadRequest_FieldViolation{
			Field:       protovalidate.FieldPathString(violation.Proto.GetField()),
			Reason:      violation.Proto.GetRuleId(),
			Description: violation.Proto.GetMessage(),
		})
	}
	where := "its root"
	if len(issues) > 0 && issues[0].GetField() != "" {
		where = issues[0].GetField()
	}
	return contract.Invalid(fmt.Sprintf("The request is malformed at %s.", where), issues...)
}

// sealed passes on statuses and nothing else.
func sealed(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	slog.Error("call_failed", "type", fmt.Sprintf("%T", err))
	return contract.Defect()
}

func recovered(method string, err *error) {
	if caught := recover(); caught != nil {
		slog.Error("call_panicked", "method", method, "type", fmt.Sprintf("%T", caught), "stack", string(debug.Stack()))
		*err = contract.Defect()
	}
}
