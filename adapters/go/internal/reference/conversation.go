package reference

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"harness.internal/adapters/go/internal/draft"
	"harness.internal/adapters/go/internal/host"
)

var wordPattern = regexp.MustCompile(`\s*\S+\s*|\s+`)

// words cuts text before each word but the first; joined it is the text again.
func words(text string) []string { return wordPattern.FindAllString(text, -1) }

// converse is one plain turn: session, answer word by word, state, usage, end.
func (r *runtime) converse(ctx context.Context, turn *host.Turn, emit host.Emit) error {
	before, err := r.recall(ctx, turn)
	if err != nil {
		return err
	}
	message := turn.Input.GetMessage()
	if turn.Input.GetNativeSessionId() == "" {
		if err := emit(draft.SessionUpdated(sessionID(turn.RunID))); err != nil {
			return err
		}
	}
	answer := words(r.answer(before, message))
	for _, word := range answer {
		if err := emit(draft.Text("m1", word)); err != nil {
			return err
		}
	}
	left := memory{Turns: before.Turns + 1, Said: draft.Shortened(message, maxRemembered)}
	if err := r.remember(ctx, turn, left); err != nil {
		return err
	}
	if err := emit(draft.Usage(len(words(message)), len(answer))); err != nil {
		return err
	}
	return emit(draft.Completed(turn.State.Pending()))
}

func (r *runtime) answer(before memory, message string) string {
	var lines []string
	if r.greeting != "" {
		lines = append(lines, r.greeting)
	}
	number := before.Turns + 1
	if before.Turns > 0 {
		lines = append(lines, fmt.Sprintf(
			"This is turn %d of this conversation; before that you said: %s", number, before.Said,
		))
	} else {
		lines = append(lines, fmt.Sprintf("This is turn %d of this conversation; nothing was said before.", number))
	}
	lines = append(lines, "Now you say: "+draft.Shortened(message, maxRemembered))
	return strings.Join(lines, "\n")
}

// sessionID is a name as a provider would give it: the first turn decides it, and nothing can be read from it.
func sessionID(runID string) string {
	digest := sha256.Sum256([]byte("session " + runID))
	return "refgo-" + hex.EncodeToString(digest[:16])
}
