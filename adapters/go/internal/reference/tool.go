package reference

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/draft"
	"harness.internal/adapters/go/internal/facade"
)

const (
	// maxWaiting calls can be asked about by one interrupt.
	maxWaiting = 32
	// fragmentCharacters is the size of the pieces in which arguments stream.
	fragmentCharacters = 64
)

// call is what a `tool` step asks for. It is made again at resume, under the same id and with the same arguments.
type call struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
	Streams   bool           `json:"stream_arguments"`
}

// waitingCall has not started: a person is asked first.
type waitingCall struct {
	call     call
	approval *eventv1.ToolApproval
}

func playTool(ctx context.Context, stage *stage, step step) error {
	fields, err := object(step, "tool")
	if err != nil {
		return err
	}
	arguments, isObject := fields["arguments"].(map[string]any)
	name := textOf(fields["name"], "")
	if name == "" || (!isObject && fields["arguments"] != nil) {
		return stepInvalid("tool", "a name and, if any, arguments that are an object")
	}
	asked := call{
		ID:   textOf(fields["id"], ""),
		Name: name, Arguments: arguments, Streams: fields["stream_arguments"] == true,
	}
	if asked.ID == "" {
		// Unique in the conversation: there the broker knows calls by their ids.
		asked.ID = fmt.Sprintf("call-%d-%s", stage.turn.Number, stage.nextID(""))
	}
	return asked.make(ctx, stage)
}

// make calls the tool through the broker and tells it, or puts it among those that wait. A call that cannot wait is told
// before its outcome is there, one that may wait only once it is known that it does not (I25).
func (c call) make(ctx context.Context, stage *stage) error {
	tools := stage.turn.Tools
	if !tools.Connected() {
		return contract.Configuration("tools_unavailable", "This run has no access to portable tools.")
	}
	arguments, err := structpb.NewStruct(c.Arguments)
	if err != nil {
		return stepInvalid("tool", "arguments that are plain JSON")
	}
	tool := tools.Find(c.Name)
	if tool == nil {
		unknown := facade.Failed(c.ID, "tool_unknown", "The agent has no such tool.", false)
		return c.tell(stage, c.Name, arguments, unknown)
	}
	decided, shown := decidedOn(stage.turn.Decision, c.ID, arguments)
	first := decided || !tools.MayWait(tool)
	if first {
		if err := c.start(stage, tool.GetToolId(), shown); err != nil {
			return err
		}
	}
	// The arguments stay those of the first call: what a person put in their place is known to the broker.
	completed, approval, err := tools.Invoke(ctx, c.ID, tool.GetToolId(), arguments)
	if err != nil {
		return err
	}
	if approval != nil && !first {
		stage.waiting = append(stage.waiting, waitingCall{call: c, approval: approval})
		return nil
	}
	if approval != nil {
		message := "The call needs an approval now that it did not need before."
		completed = facade.Failed(c.ID, "approval_needed", message, false)
	}
	if first {
		return stage.emit(draft.ToolCompleted(completed))
	}
	return c.tell(stage, tool.GetToolId(), shown, completed)
}

// tell emits a whole call.
func (c call) tell(stage *stage, name string, arguments *structpb.Struct, completed *eventv1.ToolCompleted) error {
	if err := c.start(stage, name, arguments); err != nil {
		return err
	}
	return stage.emit(draft.ToolCompleted(completed))
}

// start emits the beginning of a call, with its arguments at once or in pieces.
func (c call) start(stage *stage, name string, arguments *structpb.Struct) error {
	if !c.Streams {
		return stage.emit(draft.ToolStarted(c.ID, name, arguments))
	}
	if err := stage.emit(draft.ToolStarted(c.ID, name, nil)); err != nil {
		return err
	}
	encoded, err := json.Marshal(arguments.AsMap())
	if err != nil {
		return err
	}
	for runes := []rune(string(encoded)); len(runes) > 0; {
		end := min(fragmentCharacters, len(runes))
		if err := stage.emit(draft.ToolArguments(c.ID, string(runes[:end]))); err != nil {
			return err
		}
		runes = runes[end:]
	}
	return nil
}

// decidedOn says whether a person has decided on the call, and with which arguments it is then shown.
func decidedOn(decision *runtimev1.ResumeDecision, id string, arguments *structpb.Struct) (bool, *structpb.Struct) {
	if decision.GetDismiss() {
		return true, arguments
	}
	one := decisionOn(decision.GetToolDecisions().GetDecisions(), id)
	if edit := one.GetEdit(); edit != nil {
		return true, edit
	}
	return one != nil, arguments
}

// ask interrupts the run with the calls that wait, exactly as the broker described them.
func (s *stage) ask(left []step) error {
	asked := &eventv1.InterruptRequested{
		InterruptId:   s.interruptID(),
		Revision:      1,
		InterruptType: eventv1.InterruptType_INTERRUPT_TYPE_TOOL_APPROVAL,
		Prompt:        "May these calls be made?",
	}
	paused := &errPaused{asked: asked, left: left}
	for _, waiting := range s.waiting {
		asked.ToolApprovals = append(asked.ToolApprovals, waiting.approval)
		paused.calls = append(paused.calls, waiting.call)
	}
	if err := s.emit(draft.InterruptRequested(asked)); err != nil {
		return err
	}
	return paused
}
