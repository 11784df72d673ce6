package host

import (
	"time"

	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
)

// Limits are the bounds of a host (I35).
type Limits struct {
	// MaxRuns are worked on at once; more are refused.
	MaxRuns int
	// MaxRuntimes are kept at once; the longest idle one makes room.
	MaxRuntimes int
	// MaxBufferedBytes of drafts that are not yet durable, over all runs.
	MaxBufferedBytes int
	// RuntimeIdle is after how long without a run a runtime is dropped.
	RuntimeIdle time.Duration
	// Remembered cancels of runs that never came, and bindings whose highest generation is known.
	Remembered int
	// RememberedRuns are ended runs kept per runtime, so that repeated calls of them are answered.
	RememberedRuns int
	// Kept is how long at least the drafts of an ended run are kept that its reader has left, however short its grace was.
	Kept time.Duration
	// CancelGrace is how long a provider may take to stop when the cancel does not say.
	CancelGrace time.Duration
	// StopBound is how long a provider is waited for at least before it is given up.
	StopBound time.Duration
	// CleanupBound ends a cleanup whose call has no earlier deadline.
	CleanupBound time.Duration
	// HealthBound ends a look at health whose call has no earlier deadline.
	HealthBound time.Duration
}

// DefaultLimits are good for one process on one machine.
func DefaultLimits() Limits {
	return Limits{
		MaxRuns:          1_000,
		MaxRuntimes:      5_000,
		MaxBufferedBytes: 256 << 20,
		RuntimeIdle:      10 * time.Minute,
		Remembered:       10_000,
		RememberedRuns:   8,
		Kept:             time.Minute,
		CancelGrace:      5 * time.Second,
		StopBound:        2 * time.Second,
		CleanupBound:     10 * time.Second,
		HealthBound:      5 * time.Second,
	}
}

// flow are the bounds of one runtime: the contract's values, zero meaning the default, none above this host's own.
type flow struct {
	maxEvents, maxBytes int
	detachGrace         time.Duration
}

func flowOf(limits *runtimev1.RuntimeLimits) flow {
	return flow{
		maxEvents:   int(pick(limits.GetMaxUnackedEvents(), 16_384, 65_536)),
		maxBytes:    int(pick(limits.GetMaxUnackedBytes(), 16<<20, 64<<20)),
		detachGrace: time.Duration(pick(limits.GetDetachGraceSeconds(), 60, 3_600)) * time.Second,
	}
}

func pick(given, usual, most uint32) uint32 {
	if given == 0 {
		return usual
	}
	return min(given, most)
}
