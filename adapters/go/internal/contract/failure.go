// Package contract holds what crosses the adapter's boundary besides messages: classified failures and refusals.
package contract

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
)

// The statuses of side effects, under shorter names.
const (
	NoSideEffects       = commonv1.SideEffectStatus_SIDE_EFFECT_STATUS_NONE
	PossibleSideEffects = commonv1.SideEffectStatus_SIDE_EFFECT_STATUS_POSSIBLE
)

// Failure is an error in one of the contract's eleven categories. Message is public and must be a safe sentence;
// Diagnostic goes to this process's log alone.
type Failure struct {
	Category     commonv1.ErrorCategory
	Code         string
	Message      string
	Retryable    bool
	RetryAfter   time.Duration // zero: unknown
	SideEffects  commonv1.SideEffectStatus
	ProviderCode string
	Diagnostic   string
}

// Error is the public sentence.
func (f *Failure) Error() string { return f.Message }

type category struct {
	value     commonv1.ErrorCategory
	code      string
	retryable bool
	// The provider refused before it did anything.
	refuses bool
}

var categories = map[string]category{
	"configuration":  {commonv1.ErrorCategory_ERROR_CATEGORY_CONFIGURATION, "configuration_invalid", false, true},
	"authentication": {commonv1.ErrorCategory_ERROR_CATEGORY_AUTHENTICATION, "provider_authentication", false, true},
	"authorization":  {commonv1.ErrorCategory_ERROR_CATEGORY_AUTHORIZATION, "permission_denied", false, true},
	"capacity":       {commonv1.ErrorCategory_ERROR_CATEGORY_CAPACITY, "capacity", true, true},
	"throttled":      {commonv1.ErrorCategory_ERROR_CATEGORY_THROTTLED, "rate_limited", true, true},
	"unavailable":    {commonv1.ErrorCategory_ERROR_CATEGORY_UNAVAILABLE, "unavailable", true, false},
	"timeout":        {commonv1.ErrorCategory_ERROR_CATEGORY_TIMEOUT, "deadline_exceeded", false, false},
	"protocol":       {commonv1.ErrorCategory_ERROR_CATEGORY_PROTOCOL, "protocol_violation", false, false},
	"persistence":    {commonv1.ErrorCategory_ERROR_CATEGORY_PERSISTENCE, "persistence_failed", false, false},
	"cancelled":      {commonv1.ErrorCategory_ERROR_CATEGORY_CANCELLED, "cancelled", false, false},
	"internal":       {commonv1.ErrorCategory_ERROR_CATEGORY_INTERNAL, "internal", false, false},
}

// NewFailure classifies a failure; an empty code is the category's own. It reports false for a category that the
// contract does not have.
func NewFailure(name, code, message string) (*Failure, bool) {
	known, ok := categories[name]
	if !ok {
		return nil, false
	}
	if !isCode(code) {
		code = known.code
	}
	return &Failure{Category: known.value, Code: code, Message: message, Retryable: known.retryable}, true
}

// Configuration is a failure that lies in what was asked for.
func Configuration(code, message string) *Failure {
	failure, _ := NewFailure("configuration", code, message)
	return failure
}

// Persistence is a failure to load or save native state.
func Persistence(code, message string, retryable bool) *Failure {
	failure, _ := NewFailure("persistence", code, message)
	failure.Retryable = retryable
	return failure
}

// Protocol is a broken rule of the event stream; the code says which and is for the log.
func Protocol(code, message string) *Failure {
	failure, _ := NewFailure("protocol", "protocol_violation", "The harness broke the event contract: "+message)
	failure.Diagnostic = code
	return failure
}

// Unavailable is a failure to reach something that may be there again later.
func Unavailable(code, message string) *Failure {
	failure, _ := NewFailure("unavailable", code, message)
	return failure
}

// Classify returns the failure in err, or one of category internal that says nothing of it.
func Classify(err error) *Failure {
	var failure *Failure
	if errors.As(err, &failure) {
		return failure
	}
	failure, _ = NewFailure("internal", "adapter_defect", "The harness failed unexpectedly.")
	failure.SideEffects = PossibleSideEffects
	failure.Diagnostic = fmt.Sprintf("%T", err) // its text may hold anything
	return failure
}

// SideEffectsAfter says what may have happened outside, given whether the run already showed output.
func (f *Failure) SideEffectsAfter(showedOutput bool) commonv1.SideEffectStatus {
	if f.SideEffects != commonv1.SideEffectStatus_SIDE_EFFECT_STATUS_UNSPECIFIED {
		return f.SideEffects
	}
	for _, known := range categories {
		if known.value == f.Category && known.refuses && !showedOutput {
			return NoSideEffects
		}
	}
	return PossibleSideEffects
}

var codePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

func isCode(code string) bool { return codePattern.MatchString(code) }

// CategoryName is the category as clients see it, for example `unavailable`.
func (f *Failure) CategoryName() string {
	return strings.ToLower(strings.TrimPrefix(f.Category.String(), "ERROR_CATEGORY_"))
}
