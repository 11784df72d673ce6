package reference

import (
	"context"
	"testing"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/facade"
	"harness.internal/adapters/go/internal/host"
)

func ephemeral() *runtime {
	return newRuntime(&runtimev1.RuntimeContext{Blueprint: &commonv1.AgentBlueprint{
		Thread: &commonv1.ThreadSpec{Persistence: commonv1.ThreadPersistence_THREAD_PERSISTENCE_EPHEMERAL},
	}})
}

// playTurn runs one turn and returns its events.
func (r *runtime) playTurn(
	runID, message string, decision *runtimev1.ResumeDecision,
) (events []*eventv1.EventDraft, err error) {
	turn := &host.Turn{
		RunID: runID, Number: 1, Input: &runtimev1.TurnInput{Message: message}, Decision: decision,
		State: facade.NewThreadState(nil), Tools: facade.NewTools(nil, nil),
	}
	err = r.Play(context.Background(), turn, func(event *eventv1.EventDraft) error {
		events = append(events, event)
		return nil
	})
	return events, err
}

func TestADecisionIsConsumedOnceAlsoWhereTheStateStillNamesThePause(t *testing.T) {
	conversation := ephemeral()
	asked, err := conversation.playTurn("r1", `{"script": [{"interrupt": {"form": [{"name": "city"}]}}]}`, nil)
	if err != nil || len(asked) != 2 {
		t.Fatalf("got %v and %v", asked, err)
	}
	paused := conversation.pausedAt()
	decision := &runtimev1.ResumeDecision{
		InterruptId: "interrupt-1", Revision: 1, InterruptedRunId: "r1",
		Answer: &runtimev1.ResumeDecision_Dismiss{Dismiss: true},
	}
	if _, err := conversation.playTurn("r2", "", decision); err != nil {
		t.Fatal(err)
	}
	// As when the head of the run that went on with it is not committed yet.
	conversation.setWaiting(paused)
	_, err = conversation.playTurn("r3", "", decision)
	if err == nil || contract.Classify(err).Code != "interrupt_consumed" {
		t.Errorf("a second run with the decision: got %v", err)
	}
}

func TestAWrongInstructionIsRefusedBeforeAnythingIsPlayed(t *testing.T) {
	cases := map[string]string{
		`{"n": -1}`:       "message_invalid",
		`{"n": 1.5}`:      "message_invalid",
		`{"scripts": []}`: "message_invalid",
		`{"script": [1]}`: "message_invalid",
		`{"script": [{"text": "x"}, {"nope": 1}]}`:                "step_unknown",
		`{"script": [{"text": "x"}, {"hang": true}]}`:             "faults_not_allowed",
		`{"script": [{"text": "x"}, {"subagent": {}}]}`:           "subagent_unavailable",
		`{"script": [{"text": "x"}, {"text": "y", "usage": {}}]}`: "step_unknown",
		`{"script": [{"tool": {"name": "clock"}}]}`:               "tools_unavailable",
	}
	for message, code := range cases {
		events, err := ephemeral().playTurn("r1", message, nil)
		if err == nil || contract.Classify(err).Code != code || len(events) > 0 {
			t.Errorf("%s: got %v and %v", message, events, err)
		}
	}
}
