package host

import (
	"google.golang.org/protobuf/proto"

	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
)

const (
	maxBatchEvents = 512
	maxBatchBytes  = 512 << 10
)

// buffer numbers the drafts of a run from 1 and keeps them until they are durable. It drops nothing by itself; whoever
// appends looks at its size first.
type buffer struct {
	drafts []*eventv1.EventDraft
	sizes  []int
	bytes  int
	// last is the offset of the newest draft, forgotten through which they are gone.
	last, forgotten uint32
}

func (b *buffer) len() int { return len(b.drafts) }

// append takes the next offset for the draft and returns its size.
func (b *buffer) append(event *eventv1.EventDraft) int {
	size := proto.Size(event)
	b.drafts = append(b.drafts, event)
	b.sizes = append(b.sizes, size)
	b.bytes += size
	b.last++
	return size
}

// forget drops drafts up to an offset and returns how many bytes that frees. A lower offset than before changes nothing.
func (b *buffer) forget(through uint32) int {
	freed := 0
	for b.forgotten < through && len(b.drafts) > 0 {
		freed += b.sizes[0]
		b.drafts[0] = nil
		b.drafts, b.sizes = b.drafts[1:], b.sizes[1:]
		b.forgotten++
	}
	if len(b.drafts) == 0 {
		b.drafts, b.sizes = nil, nil
	}
	b.bytes -= freed
	return freed
}

// read returns the drafts after an offset, as many as fit into one batch. The offset must not be forgotten.
func (b *buffer) read(after uint32) []*eventv1.EventDraft {
	start := int(after - b.forgotten)
	end, size := start, 0
	for end < len(b.drafts) && end-start < maxBatchEvents {
		if size += b.sizes[end]; size > maxBatchBytes && end > start {
			break
		}
		end++
	}
	return append([]*eventv1.EventDraft(nil), b.drafts[start:end]...)
}
