package facade

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "harness.internal/adapters/go/gen/harness/common/v1"
	eventv1 "harness.internal/adapters/go/gen/harness/event/v1"
	statev1 "harness.internal/adapters/go/gen/harness/state/v1"
	"harness.internal/adapters/go/internal/contract"
)

const (
	chunkBytes   = 1 << 20
	maxPartBytes = 8 << 20
	maxParts     = 64
	// maxHeadBytes is what one load may bring into this process.
	maxHeadBytes = 64 << 20
	stateBound   = 30 * time.Second
)

// Head is the committed state: its revision, from 1, the codec it was written with, and its parts in order. A head no
// run wrote parts for has an empty codec and none.
type Head struct {
	Revision uint32
	Codec    string
	Parts    [][]byte
}

// ThreadState is the native state of one run's conversation. It reads the last committed head; what it writes is visible
// to nobody until the executor commits it, which it does from the references in the run's last draft.
type ThreadState struct {
	access  *Access
	written []string
	replace bool
}

// NewThreadState reaches the state with the given access; nil: the run has none, and every use fails.
func NewThreadState(access *Access) *ThreadState { return &ThreadState{access: access} }

// Load is the committed head, nil if there is none.
func (t *ThreadState) Load(ctx context.Context) (*Head, error) {
	if t.access == nil {
		return nil, noAccess()
	}
	ctx, cancel := context.WithTimeout(ctx, stateBound)
	defer cancel()
	var head *Head
	err := t.access.fenced(ctx, stateAwayBound, func(ctx context.Context, conn grpc.ClientConnInterface, fence *commonv1.Fence) (err error) {
		head, err = load(ctx, conn, fence)
		return err
	})
	return head, stateFailure(err, "state_load_failed", "The conversation's state could not be loaded.")
}

func load(ctx context.Context, conn grpc.ClientConnInterface, fence *commonv1.Fence) (*Head, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := statev1.NewThreadStateServiceClient(conn).LoadHead(ctx, &statev1.LoadHeadRequest{Fence: fence})
	if err != nil {
		return nil, err
	}
	head, size := &Head{}, 0
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		head.Revision = response.GetRevision()
		if response.GetCodec() == "" {
			break // no head, or one that no run wrote parts for
		}
		head.Codec = response.GetCodec()
		size += len(response.GetChunk())
		index := int(response.GetPartIndex())
		if size > maxHeadBytes || index > len(head.Parts) {
			return nil, contract.Persistence("state_too_large", "The conversation's state cannot be loaded.", false)
		}
		if index == len(head.Parts) {
			head.Parts = append(head.Parts, nil)
		}
		head.Parts[index] = append(head.Parts[index], response.GetChunk()...)
	}
	if head.Revision == 0 {
		return nil, nil
	}
	return head, nil
}

// Write writes one part of at most 8 MiB, 64 of them a run. The codec names and versions the encoding, the key the part
// within the run: the same key again has the same reference. With replace this run's parts become the whole head,
// otherwise they are appended to it.
func (t *ThreadState) Write(ctx context.Context, data []byte, codec, key string, replace bool) error {
	if t.access == nil {
		return noAccess()
	}
	if len(data) > maxPartBytes || len(t.written) >= maxParts {
		return contract.Persistence("state_too_large", "A run may write 64 parts of 8 MiB each.", false)
	}
	ctx, cancel := context.WithTimeout(ctx, stateBound)
	defer cancel()
	var reference string
	err := t.access.fenced(ctx, stateAwayBound, func(ctx context.Context, conn grpc.ClientConnInterface, fence *commonv1.Fence) (err error) {
		reference, err = write(ctx, conn, &statev1.WritePartsRequest{Fence: fence, Codec: codec, IdempotencyKey: key}, data)
		return err
	})
	if err != nil {
		return stateFailure(err, "state_save_failed", "The conversation's state could not be saved.")
	}
	t.replace = t.replace || replace
	for _, known := range t.written {
		if known == reference {
			return nil
		}
	}
	t.written = append(t.written, reference)
	return nil
}

func write(
	ctx context.Context, conn grpc.ClientConnInterface, first *statev1.WritePartsRequest, data []byte,
) (string, error) {
	stream, err := statev1.NewThreadStateServiceClient(conn).WriteParts(ctx)
	if err != nil {
		return "", err
	}
	request := first
	for {
		request.Chunk = data[:min(chunkBytes, len(data))]
		data = data[len(request.Chunk):]
		if err := stream.Send(request); err != nil {
			break // the status is what CloseAndRecv returns
		}
		if len(data) == 0 {
			break
		}
		request = &statev1.WritePartsRequest{}
	}
	response, err := stream.CloseAndRecv()
	return response.GetPartRef(), err
}

// MarkUncertain says that state behind visible output could not be saved, so that no later commit of this run passes. It
// reports whether the head names this run already: then it was committed.
func (t *ThreadState) MarkUncertain(ctx context.Context) (committed bool, err error) {
	if t.access == nil {
		return false, noAccess()
	}
	ctx, cancel := context.WithTimeout(ctx, stateBound)
	defer cancel()
	err = t.access.fenced(ctx, stateAwayBound, func(ctx context.Context, conn grpc.ClientConnInterface, fence *commonv1.Fence) error {
		request := &statev1.MarkUncertainRequest{Fence: fence}
		response, err := statev1.NewThreadStateServiceClient(conn).MarkUncertain(ctx, request)
		committed = response.GetAlreadyCommitted()
		return err
	})
	return committed, err
}

// Pending is what this run wrote, for its last draft; nil if nothing.
func (t *ThreadState) Pending() *eventv1.PendingHead {
	if len(t.written) == 0 {
		return nil
	}
	return &eventv1.PendingHead{PartRefs: t.written, Replace: t.replace}
}

func noAccess() error {
	return contract.Persistence("state_facade_missing", "This run has no access to thread state.", false)
}

// stateFailure is the safe form of a call's error: nil stays nil, a failure stays what it is.
func stateFailure(err error, code, message string) error {
	if err == nil {
		return nil
	}
	var failure *contract.Failure
	if errors.As(err, &failure) {
		return failure
	}
	found := status.Code(err)
	failure = contract.Persistence(code, message, found == codes.Unavailable || found == codes.DeadlineExceeded)
	failure.Diagnostic = "gRPC status " + found.String()
	return failure
}
