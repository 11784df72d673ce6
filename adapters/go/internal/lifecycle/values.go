package lifecycle

import (
	"encoding/json"
	"math"

	"google.golang.org/protobuf/types/known/structpb"

	"harness.internal/adapters/go/internal/contract"
)

// budget bounds one structured value: how deep it may be, and how many keys all its objects may have together.
type budget struct{ depth, keys int }

// checkStruct bounds arguments and metadata: depth, keys, bytes of JSON, finite numbers.
func checkStruct(value *structpb.Struct, maxBytes int) error {
	if value == nil {
		return nil
	}
	left := budget{depth: metadataDepth, keys: metadataKeys}
	if err := left.object(value, 1); err != nil {
		return err
	}
	return checkSize(value.AsMap(), maxBytes)
}

// checkResult bounds the result of a tool, whose keys only its size bounds.
func checkResult(value *structpb.Value) error {
	if value == nil {
		return nil
	}
	left := budget{depth: resultDepth, keys: math.MaxInt}
	if err := left.value(value, 0); err != nil {
		return err
	}
	return checkSize(value.AsInterface(), resultBytes)
}

// checkJoined makes sure that the fragments of a call's arguments are one JSON object within the bounds.
func checkJoined(text string) error {
	var members map[string]any
	if err := json.Unmarshal([]byte(text), &members); err != nil || members == nil {
		return contract.Protocol("arguments_not_json", "The joined arguments of a tool call are no JSON object.")
	}
	object, err := structpb.NewStruct(members)
	if err != nil {
		return contract.Protocol("arguments_not_json", "The joined arguments of a tool call are no JSON object.")
	}
	return checkStruct(object, argumentsBytes)
}

func checkSize(value any, maxBytes int) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return contract.Protocol("malformed", "A structured value of an event is no JSON.")
	}
	if len(encoded) > maxBytes {
		return contract.Protocol("too_large", "A structured value of an event is over its bound.")
	}
	return nil
}

func (b *budget) object(object *structpb.Struct, level int) error {
	if err := b.descend(level); err != nil {
		return err
	}
	if b.keys -= len(object.GetFields()); b.keys < 0 {
		return contract.Protocol("too_many_keys", "A structured value of an event has too many keys.")
	}
	for _, member := range object.GetFields() {
		if err := b.value(member, level); err != nil {
			return err
		}
	}
	return nil
}

func (b *budget) value(value *structpb.Value, level int) error {
	switch kind := value.GetKind().(type) {
	case nil:
		return contract.Protocol("malformed", "A structured value of an event has a member without a kind.")
	case *structpb.Value_StructValue:
		return b.object(kind.StructValue, level+1)
	case *structpb.Value_ListValue:
		if err := b.descend(level + 1); err != nil {
			return err
		}
		for _, item := range kind.ListValue.GetValues() {
			if err := b.value(item, level+1); err != nil {
				return err
			}
		}
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			return contract.Protocol("not_finite", "A structured value of an event holds NaN or infinity.")
		}
	}
	return nil
}

func (b *budget) descend(level int) error {
	if level > b.depth {
		return contract.Protocol("too_deep", "A structured value of an event is nested too deeply.")
	}
	return nil
}
