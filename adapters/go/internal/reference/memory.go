package reference

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc/status"

	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/facade"
)

const (
	// codec names the encoding of the parts: their first byte says what they are.
	codec      = "reference_go.v1"
	memoryPart = 'm'
	statePart  = 's'
	// uncertainBound is how long a run that could not save its state tries to say so.
	uncertainBound = 2 * time.Second
	maxRemembered  = 200
)

// memory is what is kept of a conversation: how many turns it had, what was said last, and what it waits for.
type memory struct {
	Turns int    `json:"turns"`
	Said  string `json:"said"`
	Pause *pause `json:"pause,omitempty"`
}

// recall reads the committed state; empty without one. State that is there and cannot be read is an error: a
// conversation never begins anew by itself (I30).
func recall(ctx context.Context, state *facade.ThreadState) (memory, error) {
	head, err := state.Load(ctx)
	if err != nil {
		return memory{}, err
	}
	if head == nil {
		return memory{}, contract.Persistence("state_missing", "The conversation's state is missing.", false)
	}
	if len(head.Parts) == 0 {
		return memory{}, nil // only turns that leave no state came before
	}
	if head.Codec != codec {
		return memory{}, contract.Persistence("state_codec", "The conversation's state has another encoding.", false)
	}
	for i := len(head.Parts) - 1; i >= 0; i-- {
		part := head.Parts[i]
		if len(part) == 0 || part[0] != memoryPart {
			continue
		}
		var found memory
		if json.Unmarshal(part[1:], &found) != nil {
			return memory{}, contract.Persistence("state_damaged", "The conversation's state is damaged.", false)
		}
		return found, nil
	}
	return memory{}, nil // only the bytes of `state` steps
}

// remember writes the state a turn leaves behind: one part that replaces the last, so that it does not grow. A run that
// showed output and cannot save says that its state is uncertain (events, rule 5).
func remember(ctx context.Context, state *facade.ThreadState, left memory) error {
	encoded, err := json.Marshal(left)
	if err != nil {
		return err
	}
	err = state.Write(ctx, append([]byte{memoryPart}, encoded...), codec, "memory", true)
	if err == nil || ctx.Err() != nil {
		return err
	}
	marking, cancel := context.WithTimeout(ctx, uncertainBound)
	defer cancel()
	_, marked := state.MarkUncertain(marking)
	failure := contract.Persistence(
		"thread_durability_uncertain", "The conversation's state could not be saved behind what was shown.", false,
	)
	failure.Diagnostic = contract.Classify(err).Diagnostic + ", marked: gRPC status " + status.Code(marked).String()
	return failure
}
