package reference

import (
	"context"
	"os"
	"strings"
	"time"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
)

// maxSpin is the longest a `spin` step may burn a processor, in seconds.
const maxSpin = 60

// playEmit emits any event as given, also an illegal one.
func playEmit(_ context.Context, stage *stage, step step) error {
	given, err := object(step, "emit")
	if err != nil {
		return err
	}
	if _, whole := given["payload"]; !whole {
		if kind, short := given["type"].(string); short {
			data := given["data"]
			if data == nil {
				data = map[string]any{}
			}
			payload := map[string]any{strings.ReplaceAll(kind, ".", "_"): data}
			given = map[string]any{"payload": payload, "namespace": given["namespace"]}
		} else {
			given = map[string]any{"payload": given}
		}
	}
	event := &eventv1.EventDraft{}
	if err := decode(given, event, "emit"); err != nil {
		return err
	}
	return stage.emit(event)
}

// playRaise is an exception that nobody classified.
func playRaise(_ context.Context, _ *stage, step step) error {
	panic(textOf(step["raise"], "raised"))
}

// playExit ends the process at once.
func playExit(_ context.Context, _ *stage, step step) error {
	read := reader{fields: step}
	code := int(read.whole("exit", 0, 255))
	if read.err != nil {
		return read.err
	}
	os.Exit(code)
	return nil
}

// playHang waits until it is cancelled.
func playHang(ctx context.Context, _ *stage, _ step) error {
	<-ctx.Done()
	return ctx.Err()
}

// playSpin burns a processor and does not listen to a cancel.
func playSpin(_ context.Context, _ *stage, step step) error {
	read := reader{fields: step}
	end := time.Now().Add(seconds(read.number("spin", 0, maxSpin)))
	if read.err != nil {
		return read.err
	}
	for time.Now().Before(end) {
	}
	return nil
}
