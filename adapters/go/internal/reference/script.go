package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/draft"
	"harness.internal/adapters/go/internal/host"
)

// stage is where a script plays.
type stage struct {
	turn *host.Turn
	emit host.Emit
	// begun counts what needed an id of its own.
	begun int
	// waiting are calls that a person is to be asked about.
	waiting []waitingCall
}

type player func(context.Context, *stage, step) error

// players are the steps this harness knows.
var players = map[string]player{
	"text":        playText,
	"reasoning":   playReasoning,
	"tool":        playTool,
	"tool_result": playToolResult,
	"interrupt":   playInterrupt,
	"decision":    playDecision,
	"usage":       playUsage,
	"warning":     playWarning,
	"metadata":    playMetadata,
	"state":       playState,
	"sleep":       playSleep,
	"fail":        playFail,
	"emit":        playEmit,
	"raise":       playRaise,
	"exit":        playExit,
	"hang":        playHang,
	"spin":        playSpin,
}

// faults are refused unless the operator's profile allows them.
var faults = []string{"emit", "raise", "exit", "hang", "spin"}

// unavailable are steps of the reference language that this harness does not have.
var unavailable = map[string]string{
	"memory":   "long-term memory",
	"subagent": "subagents",
	"probe":    "a look around its sandbox",
}

// perform plays the script of this turn.
func (r *runtime) perform(ctx context.Context, turn *host.Turn, emit host.Emit, asked *scripted) error {
	var before memory
	if asked.perTurn || pauses(asked.scripts[0]) {
		var err error
		if before, err = r.recall(ctx, turn); err != nil {
			return err
		}
	}
	// A plain message answers no pause: what waited is forgotten with this turn's state.
	return r.run(ctx, turn, emit, before, asked, nil, scriptOf(asked, before.Turns))
}

// goOn plays what follows a pause: the calls that waited, the rest of their script, and the next script, if there is one.
func (r *runtime) goOn(ctx context.Context, turn *host.Turn, emit host.Emit, before memory) error {
	asked := &scripted{scripts: before.Pause.Scripts, perTurn: before.Pause.PerTurn}
	steps := before.Pause.Left
	if asked.perTurn {
		steps = append(slices.Clone(steps), scriptOf(asked, before.Pause.Turns)...)
	}
	return r.run(ctx, turn, emit, before, asked, before.Pause.Calls, steps)
}

// run plays steps, then completes or pauses. Nothing is played if any step is refused.
func (r *runtime) run(
	ctx context.Context, turn *host.Turn, emit host.Emit, before memory, asked *scripted, decided []call,
	steps []step,
) error {
	if err := r.check(steps); err != nil {
		return err
	}
	left := memory{Turns: before.Turns, Said: before.Said}
	if asked.perTurn {
		left.Turns, left.Said = before.Turns+1, "a script"
	}
	err := play(ctx, &stage{turn: turn, emit: emit}, decided, steps)
	var paused *errPaused
	if errors.As(err, &paused) {
		return r.wait(ctx, turn, emit, left, asked, paused)
	}
	if err != nil {
		return err
	}
	if asked.perTurn || before.Pause != nil {
		if err := r.remember(ctx, turn, left); err != nil {
			return err
		}
	}
	return emit(draft.Completed(turn.State.Pending()))
}

// wait leaves the pause behind. The state is written before the last event names it (I24).
func (r *runtime) wait(
	ctx context.Context, turn *host.Turn, emit host.Emit, left memory, asked *scripted, paused *errPaused,
) error {
	encoded, err := protojson.Marshal(paused.asked)
	if err != nil {
		return err
	}
	left.Pause = &pause{
		RunID: turn.RunID, Asked: encoded, Scripts: asked.scripts, PerTurn: asked.perTurn,
		Turns: left.Turns, Calls: paused.calls, Left: paused.left,
	}
	if err := r.remember(ctx, turn, left); err != nil {
		return err
	}
	r.setWaiting(left.Pause)
	return emit(draft.Interrupted(paused.asked.GetInterruptId(), turn.State.Pending()))
}

// play makes the calls that were decided on, then the steps. Calls that follow one another and have to wait are asked
// about together.
func play(ctx context.Context, stage *stage, decided []call, steps []step) error {
	for _, call := range decided {
		if err := call.make(ctx, stage); err != nil {
			return err
		}
	}
	for i, step := range steps {
		name := nameOf(step)
		if len(stage.waiting) > 0 && (name != "tool" || len(stage.waiting) == maxWaiting) {
			return stage.ask(steps[i:])
		}
		if err := players[name](ctx, stage, step); err != nil {
			return err
		}
	}
	if len(stage.waiting) > 0 {
		return stage.ask(nil)
	}
	return nil
}

// check refuses the first step that is unknown, not available, or a fault that is not allowed.
func (r *runtime) check(steps []step) error {
	for _, step := range steps {
		name := nameOf(step)
		if what, ok := unavailable[name]; ok {
			message := fmt.Sprintf("The step `%s` needs %s, which this harness does not have.", name, what)
			return contract.Configuration(name+"_unavailable", message)
		}
		if name == "" {
			known := append(sortedKeys(players), sortedKeys(unavailable)...)
			message := "A step must have exactly one of: " + strings.Join(known, ", ") + "."
			return contract.Configuration("step_unknown", message)
		}
		if slices.Contains(faults, name) && !r.faults {
			message := fmt.Sprintf("The step `%s` is a fault, and the operator's profile does not allow faults.", name)
			return contract.Configuration("faults_not_allowed", message)
		}
	}
	return nil
}

// nameOf is the one known step in an object; empty if there is none, or more than one.
func nameOf(step step) string {
	found := ""
	for name := range step {
		_, known := players[name]
		_, named := unavailable[name]
		if !known && !named {
			continue
		}
		if found != "" {
			return ""
		}
		found = name
	}
	return found
}

func sortedKeys[V any](of map[string]V) []string {
	var names []string
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func pauses(steps []step) bool {
	return slices.ContainsFunc(steps, func(step step) bool {
		_, interrupt := step["interrupt"]
		_, tool := step["tool"] // it may have to wait for approval
		return interrupt || tool
	})
}

func scriptOf(asked *scripted, turns int) []step {
	if !asked.perTurn {
		return asked.scripts[0]
	}
	if turns < len(asked.scripts) {
		return asked.scripts[turns]
	}
	return nil
}

// nextID names what needs an id of its own in this run.
func (s *stage) nextID(prefix string) string {
	s.begun++
	return fmt.Sprintf("%s%d", prefix, s.begun)
}

// interruptID names the turn's interrupt, if it is given no name.
func (s *stage) interruptID() string { return fmt.Sprintf("interrupt-%d", s.turn.Number) }

// object is the value of a step that must be an object.
func object(step step, name string) (map[string]any, error) {
	fields, ok := step[name].(map[string]any)
	if !ok {
		return nil, stepInvalid(name, "an object")
	}
	return fields, nil
}

// decode reads a JSON value into a message by the names of its fields.
func decode(value any, into proto.Message, name string) error {
	encoded, err := json.Marshal(value)
	if err != nil || protojson.Unmarshal(encoded, into) != nil {
		return stepInvalid(name, "fields as the vocabulary has them")
	}
	return nil
}
