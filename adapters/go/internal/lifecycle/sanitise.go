package lifecycle

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
)

// sanitise returns a copy of the event with clean text in every field and without the text of a delta, which is
// returned beside it: that text is bounded by splitting, not by refusing.
func sanitise(event *eventv1.EventDraft) (*eventv1.EventDraft, string) {
	event = proto.CloneOf(event)
	discardUnknown(event.ProtoReflect())
	clean(event.ProtoReflect())
	var text string
	switch kind := event.GetPayload().GetKind().(type) {
	case *eventv1.EventPayload_ContentDelta:
		text, kind.ContentDelta.Text = kind.ContentDelta.GetText(), ""
	case *eventv1.EventPayload_ReasoningDelta:
		text, kind.ReasoningDelta.Text = kind.ReasoningDelta.GetText(), ""
	case *eventv1.EventPayload_ToolArgumentsDelta:
		text, kind.ToolArgumentsDelta.Delta = kind.ToolArgumentsDelta.GetDelta(), ""
	}
	return event, text
}

// pieces are copies of a delta with the text, none without any (rule 8).
func pieces(
	event *eventv1.EventDraft, text string, set func(*eventv1.EventPayload, string),
) []*eventv1.EventDraft {
	if text == "" {
		return nil
	}
	var events []*eventv1.EventDraft
	for _, piece := range split(text, deltaBytes) {
		part := proto.CloneOf(event)
		set(part.GetPayload(), piece)
		events = append(events, part)
	}
	return events
}

// discardUnknown drops fields this version does not know: content that nobody checked.
func discardUnknown(message protoreflect.Message) {
	message.SetUnknown(nil)
	eachMessage(message, discardUnknown)
}

// clean replaces control characters in every text of the message.
func clean(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			cleanKeys(field, value.Map())
		case field.Kind() != protoreflect.StringKind:
		case field.IsList():
			for i := range value.List().Len() {
				value.List().Set(i, protoreflect.ValueOfString(Clean(value.List().Get(i).String())))
			}
		default:
			message.Set(field, protoreflect.ValueOfString(Clean(value.String())))
		}
		return true
	})
	eachMessage(message, clean)
}

// cleanKeys cleans the names of a Struct's members: the only maps inside events.
func cleanKeys(field protoreflect.FieldDescriptor, members protoreflect.Map) {
	if field.MapKey().Kind() != protoreflect.StringKind {
		return
	}
	var unclean []protoreflect.MapKey
	members.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		if Clean(key.String()) != key.String() {
			unclean = append(unclean, key)
		}
		return true
	})
	for _, key := range unclean {
		value := members.Get(key)
		members.Clear(key)
		members.Set(protoreflect.ValueOfString(Clean(key.String())).MapKey(), value)
	}
}

// eachMessage calls visit for every message directly inside this one.
func eachMessage(message protoreflect.Message, visit func(protoreflect.Message)) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				value.Map().Range(func(_ protoreflect.MapKey, member protoreflect.Value) bool {
					visit(member.Message())
					return true
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				visit(value.List().Get(i).Message())
			}
		default:
			visit(value.Message())
		}
		return true
	})
}
