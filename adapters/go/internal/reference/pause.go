package reference

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	runtimev1 "harness.internal/adapters/go/gen/harness/runtime/v1"
	"harness.internal/adapters/go/internal/contract"
)

// pause is what a turn leaves behind that waits for a person: its run, what it asked, and how it goes on.
type pause struct {
	RunID string `json:"run_id"`
	// Asked is the interrupt.requested event, as JSON.
	Asked   json.RawMessage `json:"asked"`
	Scripts [][]step        `json:"scripts"`
	PerTurn bool            `json:"per_turn"`
	// Turns that the conversation had with the one that paused.
	Turns int `json:"turns"`
	// Calls of portable tools that wait for approval, and what is left of the script after them.
	Calls []call `json:"calls,omitempty"`
	Left  []step `json:"left,omitempty"`
}

// errPaused ends a script: a person is asked.
type errPaused struct {
	asked *eventv1.InterruptRequested
	calls []call
	left  []step
}

func (*errPaused) Error() string { return "the script waits for a decision" }

func (p *pause) requested() (*eventv1.InterruptRequested, error) {
	asked := &eventv1.InterruptRequested{}
	if err := protojson.Unmarshal(p.Asked, asked); err != nil {
		return nil, contract.Persistence("state_damaged", "The conversation's state is damaged.", false)
	}
	return asked, nil
}

// check refuses a decision on anything else than what was asked, and one that was not allowed (I25).
func (p *pause) check(decision *runtimev1.ResumeDecision) error {
	asked, err := p.requested()
	if err != nil {
		return err
	}
	if decision.GetInterruptedRunId() != p.RunID || decision.GetInterruptId() != asked.GetInterruptId() {
		return contract.Configuration(
			"interrupt_unknown", "The decision is on another interrupt than the conversation's.",
		)
	}
	if decision.GetRevision() < asked.GetRevision() {
		return contract.Configuration("decision_invalid", "The decision is on an older revision of the interrupt.")
	}
	form := asked.GetInterruptType() == eventv1.InterruptType_INTERRUPT_TYPE_FORM_INPUT
	switch decision.GetAnswer().(type) {
	case *runtimev1.ResumeDecision_FormValues:
		if !form {
			return contract.Configuration("decision_invalid", "The interrupt asks about calls, not for a form.")
		}
	case *runtimev1.ResumeDecision_ToolDecisions:
		if form {
			return contract.Configuration("decision_invalid", "The interrupt asks for a form, not about calls.")
		}
		return checkDecisions(asked.GetToolApprovals(), decision.GetToolDecisions().GetDecisions())
	}
	return nil
}

func checkDecisions(asked []*eventv1.ToolApproval, decided []*runtimev1.ToolDecision) error {
	if len(asked) != len(decided) {
		return contract.Configuration("decision_invalid", "The decision does not answer every call, once each.")
	}
	for _, approval := range asked {
		decision := decisionOn(decided, approval.GetToolCallId())
		if decision == nil {
			return contract.Configuration("decision_invalid", "The decision leaves out a call.")
		}
		allowed := false
		for _, kind := range approval.GetAllowed() {
			allowed = allowed || kind == kindOf(decision)
		}
		if !allowed {
			return contract.Configuration("decision_invalid", "The decision on a call is not one of those allowed.")
		}
	}
	return nil
}

func decisionOn(decided []*runtimev1.ToolDecision, callID string) *runtimev1.ToolDecision {
	for _, decision := range decided {
		if decision.GetToolCallId() == callID {
			return decision
		}
	}
	return nil
}

func kindOf(decision *runtimev1.ToolDecision) eventv1.ApprovalDecisionKind {
	switch decision.GetDecision().(type) {
	case *runtimev1.ToolDecision_Approve:
		return eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_APPROVE
	case *runtimev1.ToolDecision_Reject:
		return eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_REJECT
	case *runtimev1.ToolDecision_Edit:
		return eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_EDIT
	}
	return eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_UNSPECIFIED
}

// told is the decision as the `decision` step tells it: one line of JSON.
func told(decision *runtimev1.ResumeDecision) (string, error) {
	var plain any
	switch answer := decision.GetAnswer().(type) {
	case nil:
	case *runtimev1.ResumeDecision_FormValues:
		plain = map[string]any{"form": answer.FormValues.AsMap()}
	case *runtimev1.ResumeDecision_ToolDecisions:
		calls := map[string]any{}
		for _, call := range answer.ToolDecisions.GetDecisions() {
			switch decided := call.GetDecision().(type) {
			case *runtimev1.ToolDecision_Edit:
				calls[call.GetToolCallId()] = map[string]any{"edit": decided.Edit.AsMap()}
			case *runtimev1.ToolDecision_Reject:
				calls[call.GetToolCallId()] = map[string]any{"reject": decided.Reject}
			default:
				calls[call.GetToolCallId()] = "approve"
			}
		}
		plain = map[string]any{"calls": calls}
	default:
		plain = map[string]any{"dismiss": true}
	}
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(plain); err != nil {
		return "", err
	}
	return string(bytes.TrimSuffix(line.Bytes(), []byte("\n"))), nil
}

// requested is the event of an `interrupt` step: a form, or calls to be approved.
func requested(fields map[string]any, interruptID string) (*eventv1.InterruptRequested, error) {
	asked := &eventv1.InterruptRequested{
		InterruptId: textOf(fields["id"], interruptID), Revision: 1, Prompt: textOf(fields["prompt"], ""),
	}
	form, _ := fields["form"].([]any)
	calls, _ := fields["approve"].([]any)
	if (len(form) > 0) == (len(calls) > 0) {
		return nil, stepInvalid("interrupt", "either `form`, a list of fields, or `approve`, a list of calls")
	}
	asked.InterruptType = eventv1.InterruptType_INTERRUPT_TYPE_FORM_INPUT
	for _, item := range form {
		field := &eventv1.FormField{}
		if err := formField(item, field); err != nil {
			return nil, err
		}
		asked.Fields = append(asked.Fields, field)
	}
	for _, item := range calls {
		approval, err := toolApproval(item)
		if err != nil {
			return nil, err
		}
		asked.InterruptType = eventv1.InterruptType_INTERRUPT_TYPE_TOOL_APPROVAL
		asked.ToolApprovals = append(asked.ToolApprovals, approval)
	}
	return asked, nil
}

var fieldTypes = map[string]eventv1.FormFieldType{
	"string":  eventv1.FormFieldType_FORM_FIELD_TYPE_STRING,
	"number":  eventv1.FormFieldType_FORM_FIELD_TYPE_NUMBER,
	"boolean": eventv1.FormFieldType_FORM_FIELD_TYPE_BOOLEAN,
	"choice":  eventv1.FormFieldType_FORM_FIELD_TYPE_CHOICE,
}

func formField(item any, field *eventv1.FormField) error {
	given, _ := item.(map[string]any)
	kind, known := fieldTypes[textOf(given["type"], "string")]
	if !known {
		return stepInvalid("interrupt", "fields of type string, number, boolean or choice")
	}
	document := map[string]any{}
	for name, value := range given {
		document[name] = value
	}
	document["type"] = kind.String()
	encoded, err := json.Marshal(document)
	if err != nil || protojson.Unmarshal(encoded, field) != nil {
		return stepInvalid("interrupt", "fields as the vocabulary has them")
	}
	return nil
}

var decisionKinds = map[string]eventv1.ApprovalDecisionKind{
	"approve": eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_APPROVE,
	"reject":  eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_REJECT,
	"edit":    eventv1.ApprovalDecisionKind_APPROVAL_DECISION_KIND_EDIT,
}

func toolApproval(item any) (*eventv1.ToolApproval, error) {
	given, _ := item.(map[string]any)
	arguments, err := objectOf(given["arguments"])
	if err != nil {
		return nil, stepInvalid("interrupt", "calls whose arguments are objects")
	}
	approval := &eventv1.ToolApproval{
		ToolCallId: textOf(given["id"], ""), ToolName: textOf(given["name"], ""), Arguments: arguments,
	}
	allowed, chosen := given["allowed"].([]any)
	if !chosen {
		allowed = []any{"approve", "reject"}
	}
	for _, name := range allowed {
		kind, known := decisionKinds[textOf(name, "")]
		if !known {
			return nil, stepInvalid("interrupt", "calls that allow approve, reject or edit")
		}
		approval.Allowed = append(approval.Allowed, kind)
	}
	return approval, nil
}

// textOf is a value as text, or the usual one if it is none.
func textOf(value any, usual string) string {
	if text, ok := value.(string); ok && text != "" {
		return text
	}
	return usual
}

// objectOf is a JSON object as a message; absent ones are empty.
func objectOf(value any) (*structpb.Struct, error) {
	if value == nil {
		return &structpb.Struct{}, nil
	}
	members, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("no object")
	}
	return structpb.NewStruct(members)
}

func stepInvalid(name, expected string) error {
	return contract.Configuration("step_invalid", fmt.Sprintf("The step `%s` needs %s.", name, expected))
}
