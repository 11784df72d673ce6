import type { EventDraft } from "../../gen/harness/event/v1/event_pb.js";
import type { ThreadState } from "../facade/thread.js";
import type { EventStream } from "./run.js";

/** The stream, its last draft naming the state that the turn wrote: head and log agree only if the executor commits it from there. */
export async function* withPendingHead(stream: EventStream, thread: ThreadState): AsyncGenerator<EventDraft> {
  for await (const draft of stream) {
    const kind = draft.payload?.kind.case;
    const pendingHead = kind === "runCompleted" || kind === "runInterrupted" ? thread.pendingHead() : undefined;
    yield pendingHead === undefined || draft.pendingHead !== undefined ? draft : { ...draft, pendingHead };
  }
}
