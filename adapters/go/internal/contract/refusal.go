package contract

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// domain of every ErrorInfo of the contract.
const domain = "harness"

// Refusal is a call that is answered with a google.rpc.Status before any run. gRPC asks it for that status.
type Refusal struct {
	Code       codes.Code
	Reason     string
	Message    string
	Category   string
	Retryable  bool
	RetryAfter time.Duration // zero: unknown
	Issues     []*errdetails.BadRequest_FieldViolation
}

// Error is the safe sentence.
func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Message) }

// GRPCStatus is the refusal on the wire: its sentence and its details.
func (r *Refusal) GRPCStatus() *status.Status {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason:   r.Reason,
		Domain:   domain,
		Metadata: map[string]string{"category": r.Category, "retryable": strconv.FormatBool(r.Retryable)},
	}}
	if r.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	if len(r.Issues) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: r.Issues})
	}
	plain := status.New(r.Code, r.Message)
	detailed, err := plain.WithDetails(details...)
	if err != nil { // only for code OK, which no refusal has
		return plain
	}
	return detailed
}

// StaleLease refuses a fence that is older than what this process has seen.
func StaleLease(message string) *Refusal {
	return &Refusal{Code: codes.FailedPrecondition, Reason: "STALE_LEASE", Message: message, Category: "authorization"}
}

// RuntimeUnknown refuses a fence whose runtime never was here: a run issued to it may be started here.
func RuntimeUnknown() *Refusal {
	message := "No runtime of this binding, epoch and generation is here; create it first."
	return &Refusal{Code: codes.NotFound, Reason: "runtime_unknown", Message: message, Category: "unavailable"}
}

// RuntimeGone refuses a fence whose runtime was here: a run issued to it is never started again (I11).
func RuntimeGone() *Refusal {
	message := "The runtime of this binding, epoch and generation was here and is no more."
	return &Refusal{Code: codes.NotFound, Reason: "runtime_gone", Message: message, Category: "unavailable"}
}

// RunUnknown refuses a run this incarnation never heard of, or has forgotten.
func RunUnknown() *Refusal {
	message := "This runtime knows nothing of the run."
	return &Refusal{Code: codes.NotFound, Reason: "run_unknown", Message: message, Category: "unavailable"}
}

// RunCancelled refuses to start a run that was cancelled before it came (I12).
func RunCancelled() *Refusal {
	message := "The run was cancelled before it started."
	return &Refusal{Code: codes.FailedPrecondition, Reason: "run_cancelled", Message: message, Category: "cancelled"}
}

// IncarnationMismatch refuses a call that was meant for another process.
func IncarnationMismatch() *Refusal {
	message := "The run was issued to another incarnation of this process."
	return &Refusal{
		Code: codes.FailedPrecondition, Reason: "incarnation_mismatch", Message: message, Category: "unavailable",
	}
}

// Capacity refuses what is over a bound of this host (I35).
func Capacity(message string) *Refusal {
	return &Refusal{
		Code: codes.ResourceExhausted, Reason: "capacity", Message: message, Category: "capacity",
		Retryable: true, RetryAfter: time.Second,
	}
}

// Busy refuses an operation while another of those that exclude each other is at work.
func Busy(message string) *Refusal {
	return &Refusal{
		Code: codes.Aborted, Reason: "operation_in_progress", Message: message, Category: "capacity", Retryable: true,
	}
}

// Stopping refuses new work while the process ends (I33).
func Stopping() *Refusal {
	message := "This host is stopping."
	return &Refusal{
		Code: codes.Unavailable, Reason: "unavailable", Message: message, Category: "unavailable", Retryable: true,
	}
}

// OffsetForgotten refuses to stream drafts again that were acknowledged.
func OffsetForgotten(oldest uint32) *Refusal {
	message := fmt.Sprintf("Drafts before offset %d were acknowledged and are forgotten.", oldest)
	return &Refusal{Code: codes.OutOfRange, Reason: "offset_forgotten", Message: message, Category: "protocol"}
}

// OffsetAhead refuses a caller that speaks of drafts which do not exist.
func OffsetAhead(last uint32) *Refusal {
	message := fmt.Sprintf("The run has no draft after offset %d.", last)
	return &Refusal{Code: codes.OutOfRange, Reason: "offset_ahead", Message: message, Category: "protocol"}
}

// StreamSuperseded ends a stream whose run is followed by a younger one. It is not the end of the run.
func StreamSuperseded() *Refusal {
	message := "A younger stream of this run took over."
	return &Refusal{Code: codes.Aborted, Reason: "stream_superseded", Message: message, Category: "unavailable"}
}

// Mismatch refuses a protocol version this process does not speak.
func Mismatch(message string) *Refusal {
	return &Refusal{
		Code: codes.FailedPrecondition, Reason: "WORKER_MISMATCH", Message: message, Category: "configuration",
	}
}

// Invalid refuses a request that breaks the contract's constraints; the issues name fields, never values.
func Invalid(message string, issues ...*errdetails.BadRequest_FieldViolation) *Refusal {
	return &Refusal{
		Code: codes.InvalidArgument, Reason: "invalid_request", Message: message, Category: "configuration",
		Issues: issues,
	}
}

// Unauthenticated refuses a caller without the token.
func Unauthenticated() *Refusal {
	message := "A valid bearer token is needed."
	return &Refusal{
		Code: codes.Unauthenticated, Reason: "unauthenticated", Message: message, Category: "authentication",
	}
}

// Defect answers a call that failed in a way nobody foresaw; nothing of its text leaves the process (I22).
func Defect() *Refusal {
	return &Refusal{
		Code: codes.Internal, Reason: "adapter_defect", Message: "The harness failed unexpectedly.", Category: "internal",
	}
}

// statusCodes are the statuses of failures before a run, by category (errors, the table of categories).
var statusCodes = map[string]codes.Code{
	"configuration":  codes.FailedPrecondition,
	"authentication": codes.Unauthenticated,
	"authorization":  codes.PermissionDenied,
	"capacity":       codes.ResourceExhausted,
	"throttled":      codes.ResourceExhausted,
	"unavailable":    codes.Unavailable,
	"timeout":        codes.DeadlineExceeded,
	"protocol":       codes.Internal,
	"persistence":    codes.Unavailable,
	"cancelled":      codes.Canceled,
	"internal":       codes.Internal,
}

// FromFailure is a classified failure outside a run: its safe projection alone (I22).
func FromFailure(failure *Failure) *Refusal {
	name := failure.CategoryName()
	return &Refusal{
		Code: statusCodes[name], Reason: failure.Code, Message: failure.Message, Category: name,
		Retryable: failure.Retryable, RetryAfter: failure.RetryAfter,
	}
}
