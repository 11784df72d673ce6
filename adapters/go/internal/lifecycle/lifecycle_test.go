package lifecycle

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/draft"
)

func succeeded(id string) *eventv1.EventDraft {
	return draft.ToolCompleted(&eventv1.ToolCompleted{
		ToolCallId: id, Outcome: eventv1.ToolOutcome_TOOL_OUTCOME_SUCCESS,
	})
}

func asking(calls ...string) *eventv1.EventDraft {
	asked := &eventv1.InterruptRequested{
		InterruptId: "i", Revision: 1, InterruptType: eventv1.InterruptType_INTERRUPT_TYPE_TOOL_APPROVAL,
	}
	for _, id := range calls {
		asked.ToolApprovals = append(asked.ToolApprovals, &eventv1.ToolApproval{
			ToolCallId: id, ToolName: "t",
			Allowed: []eventv1.ApprovalDecisionKind{eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_APPROVE},
		})
	}
	return draft.InterruptRequested(asked)
}

func deep(levels int) *structpb.Struct {
	object := &structpb.Struct{}
	for range levels - 1 {
		object = &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewStructValue(object)}}
	}
	return object
}

func TestRulesAreKept(t *testing.T) {
	infinite := &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNumberValue(math.Inf(1))}}
	foreign := draft.Text("m1", "x")
	foreign.Namespace = []string{"agent"}
	private := draft.Text("m1", "x")
	private.NativeSessionId = "secret"
	started := &eventv1.EventPayload{Kind: &eventv1.EventPayload_RunStarted{
		RunStarted: &eventv1.RunStarted{HarnessId: "reference_go", AgentVersion: 1, BindingId: "b"},
	}}
	// The last event of each must be refused, for this reason.
	cases := map[string][]*eventv1.EventDraft{
		"after_terminal":          {draft.Completed(nil), draft.Text("m1", "x")},
		"run_started":             {draft.Of(started)},
		"call_not_open":           {succeeded("c")},
		"call_started_twice":      {draft.ToolStarted("c", "t", nil), succeeded("c"), draft.ToolStarted("c", "t", nil)},
		"arguments_given":         {draft.ToolStarted("c", "t", deep(1)), draft.ToolArguments("c", "{}")},
		"arguments_not_json":      {draft.ToolStarted("c", "t", nil), draft.ToolArguments("c", "{"), succeeded("c")},
		"namespace_not_open":      {foreign},
		"private_field":           {private},
		"malformed":               {draft.Text("not an id", "x")},
		"too_deep":                {draft.ToolStarted("c", "t", deep(9))},
		"not_finite":              {draft.Metadata(infinite)},
		"too_large":               {draft.Metadata(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewStringValue(strings.Repeat("x", 256<<10))}})},
		"interrupt_not_requested": {draft.Interrupted("i", nil)},
		"other_interrupt":         {asking("c"), draft.Interrupted("j", nil)},
		"after_interrupt":         {asking("c"), draft.Text("m1", "x")},
		"approval_started":        {draft.ToolStarted("c", "t", nil), asking("c")},
	}
	for reason, events := range cases {
		t.Run(reason, func(t *testing.T) {
			machine := New()
			for i, event := range events {
				_, err := machine.Accept(event)
				if i < len(events)-1 {
					if err != nil {
						t.Fatalf("event %d was refused: %v", i+1, err)
					}
					continue
				}
				if err == nil || contract.Classify(err).Diagnostic != reason {
					t.Fatalf("the last event: got %v, want %s", err, reason)
				}
			}
		})
	}
}

func TestAnOpenCallIsCompletedBeforeTheTerminalAndNeverAsASuccess(t *testing.T) {
	machine := New()
	for _, id := range []string{"c1", "c2"} {
		if _, err := machine.Accept(draft.ToolStarted(id, "t", nil)); err != nil {
			t.Fatal(err)
		}
	}
	events, err := machine.Accept(draft.Completed(nil))
	if err != nil || len(events) != 3 {
		t.Fatalf("got %d events and %v", len(events), err)
	}
	for i, id := range []string{"c2", "c1"} {
		completed := events[i].GetPayload().GetToolCompleted()
		cancelled := eventv1.ToolOutcome_TOOL_OUTCOME_CANCELLED
		if completed.GetToolCallId() != id || completed.GetOutcome() != cancelled {
			t.Errorf("event %d is %v", i+1, completed)
		}
	}
	if !machine.Ended() {
		t.Error("the run has not ended")
	}
}

func TestTextIsSplitBetweenCharactersCleanedAndNeverEmpty(t *testing.T) {
	machine, text := New(), strings.Repeat("é", deltaBytes/2+1)+"\x00\tend\xff"
	events, err := machine.Accept(draft.Text("m1", text))
	if err != nil || len(events) != 2 {
		t.Fatalf("got %d events and %v", len(events), err)
	}
	var joined strings.Builder
	for _, event := range events {
		joined.WriteString(event.GetPayload().GetContentDelta().GetText())
	}
	if want := strings.Repeat("é", deltaBytes/2+1) + "\uFFFD\tend\uFFFD"; joined.String() != want {
		t.Error("the text is another one")
	}
	for _, text := range []string{"", "\x01"} {
		events, err = machine.Accept(draft.Text("m1", text))
		if err != nil || len(events) != len(text) {
			t.Errorf("%q: got %d events and %v", text, len(events), err)
		}
	}
}
