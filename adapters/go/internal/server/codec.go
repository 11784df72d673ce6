package server

import (
	"bytes"
	"log/slog"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// unreadable stands in the unknown fields of a message whose bytes could not be parsed; no parser leaves it there, for
// there is no wire type 7.
var unreadable = []byte{0x0f}

// lenientCodec lets a message through that cannot be parsed, so that the boundary refuses it in the contract's form:
// gRPC's own answer would have no details.
type lenientCodec struct{ encoding.CodecV2 }

// Unmarshal parses the bytes, or marks the message as unreadable.
func (c lenientCodec) Unmarshal(data mem.BufferSlice, into any) error {
	err := c.CodecV2.Unmarshal(data, into)
	message, ok := into.(proto.Message)
	if err == nil || !ok {
		return err
	}
	slog.Warn("request_unreadable", "type", string(message.ProtoReflect().Descriptor().FullName()))
	proto.Reset(message)
	message.ProtoReflect().SetUnknown(unreadable)
	return nil
}

func isUnreadable(message proto.Message) bool {
	return bytes.Equal(message.ProtoReflect().GetUnknown(), unreadable)
}
