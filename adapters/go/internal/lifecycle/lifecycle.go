// Package lifecycle checks the drafts of one run before anything of them leaves the process (events, Lifecycle rules).
package lifecycle

import (
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	"harness.internal/adapters/go/internal/contract"
	"harness.internal/adapters/go/internal/draft"
)

// Bounds of events (events, Bounds). Sizes are bytes.
const (
	deltaBytes      = 64 << 10
	eventBytes      = 256 << 10
	argumentsBytes  = 128 << 10
	resultBytes     = 256 << 10
	metadataDepth   = 8
	metadataKeys    = 256
	resultDepth     = 32
	maxOpenCalls    = 128
	rememberedCalls = 512
)

// Lifecycle is the state machine of one run's drafts. This adapter opens no namespace, so it accepts none. It is not
// safe for concurrent use.
type Lifecycle struct {
	open        []*call
	ended       map[string]bool
	endedOrder  []string
	interruptID string
	terminal    bool
	// Id of the content message that is open, or empty: all that the common case needs.
	message string
}

// call is a tool call that has started and not completed.
type call struct {
	id string
	// Arguments came with tool.started; then no fragment may follow.
	given  bool
	joined strings.Builder
}

// New is the lifecycle of a run that has just begun.
func New() *Lifecycle { return &Lifecycle{ended: map[string]bool{}} }

// Ended says whether a terminal was accepted.
func (l *Lifecycle) Ended() bool { return l.terminal }

// Accept checks the next draft and returns what is sent for it, in order: nothing, the draft, its pieces, or
// completions of what is open and a terminal. A failure of category protocol changes nothing.
func (l *Lifecycle) Accept(event *eventv1.EventDraft) ([]*eventv1.EventDraft, error) {
	if l.terminal {
		return nil, contract.Protocol("after_terminal", "An event came after the terminal event.") // rule 1
	}
	if l.isMoreText(event) {
		return []*eventv1.EventDraft{event}, nil
	}
	l.message = ""
	clean, text := sanitise(event)
	if err := checkForm(clean); err != nil {
		return nil, err
	}
	if err := l.checkPlace(clean); err != nil {
		return nil, err
	}
	switch kind := clean.GetPayload().GetKind().(type) {
	case *eventv1.EventPayload_ContentDelta:
		l.message = kind.ContentDelta.GetMessageId()
		return pieces(clean, text, func(p *eventv1.EventPayload, s string) { p.GetContentDelta().Text = s }), nil
	case *eventv1.EventPayload_ReasoningDelta:
		return pieces(clean, text, func(p *eventv1.EventPayload, s string) { p.GetReasoningDelta().Text = s }), nil
	case *eventv1.EventPayload_ToolArgumentsDelta:
		if err := l.extend(kind.ToolArgumentsDelta.GetToolCallId(), text); err != nil {
			return nil, err
		}
		return pieces(clean, text, func(p *eventv1.EventPayload, s string) { p.GetToolArgumentsDelta().Delta = s }), nil
	case *eventv1.EventPayload_ToolStarted:
		return []*eventv1.EventDraft{clean}, l.start(kind.ToolStarted)
	case *eventv1.EventPayload_ToolCompleted:
		return []*eventv1.EventDraft{clean}, l.complete(kind.ToolCompleted)
	case *eventv1.EventPayload_InterruptRequested:
		return []*eventv1.EventDraft{clean}, l.interrupt(kind.InterruptRequested)
	}
	if isTerminal(clean) {
		return l.end(clean), nil
	}
	return []*eventv1.EventDraft{clean}, nil
}

// isMoreText recognises the common case: short and clean text for the message that is open, and nothing else.
func (l *Lifecycle) isMoreText(event *eventv1.EventDraft) bool {
	delta := event.GetPayload().GetContentDelta()
	bare := len(event.GetNamespace()) == 0 && event.GetNativeSessionId() == "" && event.GetPendingHead() == nil
	return delta != nil && bare && l.message != "" && delta.GetMessageId() == l.message &&
		delta.GetText() != "" && len(delta.GetText()) <= deltaBytes && Clean(delta.GetText()) == delta.GetText()
}

// checkPlace refuses what may not come now (rules 1, 3 and 4).
func (l *Lifecycle) checkPlace(event *eventv1.EventDraft) error {
	payload := event.GetPayload()
	switch payload.GetKind().(type) {
	case *eventv1.EventPayload_RunStarted:
		return contract.Protocol("run_started", "The event run.started is written by the engine alone.")
	case *eventv1.EventPayload_SubagentStarted, *eventv1.EventPayload_SubagentCompleted:
		return contract.Protocol("namespace_not_open", "This harness opens no namespaces.")
	}
	if len(event.GetNamespace()) > 0 {
		return contract.Protocol("namespace_not_open", "An event is outside every open namespace.")
	}
	interrupted := payload.GetRunInterrupted()
	if l.interruptID == "" {
		if interrupted != nil {
			return contract.Protocol("interrupt_not_requested", "run.interrupted came without interrupt.requested.")
		}
		return nil
	}
	if interrupted != nil && interrupted.GetInterruptId() != l.interruptID {
		return contract.Protocol("other_interrupt", "run.interrupted names another interrupt.")
	}
	closing := payload.GetToolCompleted() != nil || payload.GetProviderMetadata() != nil
	ending := isTerminal(event) && payload.GetRunCompleted() == nil
	if !closing && !ending {
		return contract.Protocol("after_interrupt", "An event came after interrupt.requested that may not.")
	}
	return nil
}

func (l *Lifecycle) start(started *eventv1.ToolStarted) error {
	id := started.GetToolCallId()
	if l.find(id) != nil || l.ended[id] {
		return contract.Protocol("call_started_twice", "A tool call started twice.") // rule 2
	}
	if len(l.open) >= maxOpenCalls {
		return contract.Protocol("too_many_calls", "Too many tool calls are open.")
	}
	l.open = append(l.open, &call{id: id, given: started.GetArguments() != nil})
	return nil
}

func (l *Lifecycle) extend(id, fragment string) error {
	open := l.find(id)
	switch {
	case open == nil:
		return contract.Protocol("call_not_open", "Arguments came for a tool call that is not open.")
	case open.given:
		return contract.Protocol("arguments_given", "Arguments came for a tool call that started with them.")
	case open.joined.Len()+len(fragment) > argumentsBytes:
		return contract.Protocol("too_large", "The joined arguments of a tool call are over their bound.")
	}
	open.joined.WriteString(fragment)
	return nil
}

func (l *Lifecycle) complete(completed *eventv1.ToolCompleted) error {
	id := completed.GetToolCallId()
	open := l.find(id)
	if open == nil {
		return contract.Protocol("call_not_open", "A tool call completed that is not open.") // rule 2
	}
	if open.joined.Len() > 0 && completed.GetOutcome() == eventv1.ToolOutcome_TOOL_OUTCOME_SUCCESS {
		if err := checkJoined(open.joined.String()); err != nil {
			return err
		}
	}
	for i, other := range l.open {
		if other == open {
			l.open = append(l.open[:i], l.open[i+1:]...)
			break
		}
	}
	l.ended[id] = true
	if l.endedOrder = append(l.endedOrder, id); len(l.endedOrder) > rememberedCalls {
		delete(l.ended, l.endedOrder[0])
		l.endedOrder = l.endedOrder[1:]
	}
	return nil
}

func (l *Lifecycle) interrupt(requested *eventv1.InterruptRequested) error {
	for _, approval := range requested.GetToolApprovals() {
		if id := approval.GetToolCallId(); l.find(id) != nil || l.ended[id] {
			// I25: a call that waits for approval has not started.
			return contract.Protocol("approval_started", "interrupt.requested asks about a call that has started.")
		}
	}
	l.interruptID = requested.GetInterruptId()
	return nil
}

// end completes what is open before the terminal, youngest first and never as a success (rule 2).
func (l *Lifecycle) end(terminal *eventv1.EventDraft) []*eventv1.EventDraft {
	var drafts []*eventv1.EventDraft
	failed := terminal.GetPayload().GetRunFailed() != nil
	for i := len(l.open) - 1; i >= 0; i-- {
		completed := &eventv1.ToolCompleted{
			ToolCallId: l.open[i].id,
			Outcome:    eventv1.ToolOutcome_TOOL_OUTCOME_CANCELLED,
		}
		if failed {
			completed.Outcome = eventv1.ToolOutcome_TOOL_OUTCOME_ERROR
			completed.Error = &eventv1.ToolError{
				Code: "run_failed", Message: "The run failed before the tool call completed.",
			}
		}
		drafts = append(drafts, draft.ToolCompleted(completed))
	}
	l.open, l.terminal = nil, true
	return append(drafts, terminal)
}

func (l *Lifecycle) find(id string) *call {
	for _, open := range l.open {
		if open.id == id {
			return open
		}
	}
	return nil
}

// checkForm refuses a draft that is malformed whatever came before it (rule 7).
func checkForm(event *eventv1.EventDraft) error {
	if proto.Size(event) > eventBytes {
		return contract.Protocol("too_large", "An event is over its bound.")
	}
	if err := checkStructures(event.GetPayload()); err != nil {
		return err
	}
	if err := protovalidate.Validate(event); err != nil {
		return contract.Protocol("malformed", "An event is malformed.")
	}
	payload := event.GetPayload()
	if (event.GetNativeSessionId() != "") != (payload.GetSessionUpdated() != nil) {
		return contract.Protocol("private_field", "A native session id belongs to session.updated, and only there.")
	}
	ends := payload.GetRunCompleted() != nil || payload.GetRunInterrupted() != nil
	if event.GetPendingHead() != nil && !ends {
		return contract.Protocol("private_field", "A pending state belongs to the last event of a run.")
	}
	if completed := payload.GetToolCompleted(); completed != nil {
		return checkCompleted(completed)
	}
	if requested := payload.GetInterruptRequested(); requested != nil {
		return checkInterrupt(requested)
	}
	return nil
}

func checkStructures(payload *eventv1.EventPayload) error {
	switch kind := payload.GetKind().(type) {
	case *eventv1.EventPayload_ToolStarted:
		return checkStruct(kind.ToolStarted.GetArguments(), argumentsBytes)
	case *eventv1.EventPayload_ToolCompleted:
		return checkResult(kind.ToolCompleted.GetResult())
	case *eventv1.EventPayload_Warning:
		return checkStruct(kind.Warning.GetDetails(), eventBytes)
	case *eventv1.EventPayload_ProviderMetadata:
		return checkStruct(kind.ProviderMetadata.GetMetadata(), eventBytes)
	case *eventv1.EventPayload_InterruptRequested:
		for _, approval := range kind.InterruptRequested.GetToolApprovals() {
			if err := checkStruct(approval.GetArguments(), argumentsBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkCompleted(completed *eventv1.ToolCompleted) error {
	failed := completed.GetOutcome() == eventv1.ToolOutcome_TOOL_OUTCOME_ERROR
	if failed != (completed.GetError() != nil) {
		return contract.Protocol("malformed", "tool.completed has an error exactly if its outcome is one.")
	}
	if completed.GetResult() != nil && completed.GetResultRef() != "" {
		return contract.Protocol("malformed", "tool.completed has both a result and a reference to one.")
	}
	return nil
}

func checkInterrupt(requested *eventv1.InterruptRequested) error {
	form := requested.GetInterruptType() == eventv1.InterruptType_INTERRUPT_TYPE_FORM_INPUT
	if form != (len(requested.GetFields()) > 0) || form == (len(requested.GetToolApprovals()) > 0) {
		return contract.Protocol("malformed", "interrupt.requested has either fields or calls, by its type.")
	}
	seen := map[string]bool{}
	for _, field := range requested.GetFields() {
		choice := field.GetType() == eventv1.FormFieldType_FORM_FIELD_TYPE_CHOICE
		if seen[field.GetName()] || (choice && len(field.GetOptions()) == 0) {
			return contract.Protocol("malformed", "interrupt.requested has a field twice, or a choice of nothing.")
		}
		seen[field.GetName()] = true
	}
	for _, approval := range requested.GetToolApprovals() {
		if seen[approval.GetToolCallId()] {
			return contract.Protocol("malformed", "interrupt.requested asks about a call twice.")
		}
		seen[approval.GetToolCallId()] = true
	}
	return nil
}

func isTerminal(event *eventv1.EventDraft) bool {
	switch event.GetPayload().GetKind().(type) {
	case *eventv1.EventPayload_RunCompleted, *eventv1.EventPayload_RunInterrupted,
		*eventv1.EventPayload_RunCancelled, *eventv1.EventPayload_RunFailed:
		return true
	}
	return false
}
