/** Calls to the methods of a contract on a plain grpc-js client, ended when the run that makes them is stopped. */

import {
  create,
  type DescMessage,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";

/** Where a call goes and with what. `deadline` is a moment of the system's clock, in milliseconds. */
export interface Target {
  readonly client: grpc.Client;
  readonly metadata: grpc.Metadata;
  readonly deadline: number;
  readonly signal: AbortSignal;
}

export function unary<I extends DescMessage, O extends DescMessage>(
  { client, metadata, deadline, signal }: Target,
  method: DescMethodUnary<I, O>,
  request: MessageInitShape<I>,
): Promise<MessageShape<O>> {
  return new Promise((resolve, reject) => {
    const message = create(method.input, request);
    const done = answer(resolve, reject, () => release());
    const call = client.makeUnaryRequest(
      pathOf(method),
      encoder(method.input),
      decoder(method.output),
      message,
      metadata,
      { deadline },
      done,
    );
    const release = cancelWith(call, signal);
  });
}

/** Sends all `requests`, which together must be few enough to be held in memory. */
export function sendAll<I extends DescMessage, O extends DescMessage>(
  { client, metadata, deadline, signal }: Target,
  method: DescMethodClientStreaming<I, O>,
  requests: Iterable<MessageInitShape<I>>,
): Promise<MessageShape<O>> {
  return new Promise((resolve, reject) => {
    const done = answer(resolve, reject, () => release());
    const call = client.makeClientStreamRequest(
      pathOf(method),
      encoder(method.input),
      decoder(method.output),
      metadata,
      { deadline },
      done,
    );
    const release = cancelWith(call, signal);
    for (const request of requests) call.write(create(method.input, request));
    call.end();
  });
}

/** The responses, until the server or whoever reads them ends it. */
export async function* receive<I extends DescMessage, O extends DescMessage>(
  { client, metadata, deadline, signal }: Target,
  method: DescMethodServerStreaming<I, O>,
  request: MessageInitShape<I>,
): AsyncGenerator<MessageShape<O>> {
  const message = create(method.input, request);
  const call = client.makeServerStreamRequest(
    pathOf(method),
    encoder(method.input),
    decoder(method.output),
    message,
    metadata,
    { deadline },
  );
  const release = cancelWith(call, signal);
  try {
    yield* call as AsyncIterable<MessageShape<O>>;
  } finally {
    release();
    call.cancel();
  }
}

function pathOf(method: DescMethodUnary | DescMethodClientStreaming | DescMethodServerStreaming): string {
  return `/${method.parent.typeName}/${method.name}`;
}

function encoder<D extends DescMessage>(schema: D): (message: MessageShape<D>) => Buffer {
  return (message) => Buffer.from(toBinary(schema, message));
}

function decoder<D extends DescMessage>(schema: D): (bytes: Buffer) => MessageShape<D> {
  return (bytes) => fromBinary(schema, bytes);
}

function answer<T>(
  resolve: (value: T) => void,
  reject: (error: Error) => void,
  release: () => void,
): grpc.requestCallback<T> {
  return (error, response) => {
    release();
    if (error !== null) reject(error);
    else if (response === undefined) reject(new Error("a call was answered with nothing"));
    else resolve(response);
  };
}

/** Ends `call` when the run is stopped; call what it returns once the call is over. */
function cancelWith(call: { cancel(): void }, signal: AbortSignal): () => void {
  const cancel = (): void => call.cancel();
  signal.addEventListener("abort", cancel, { once: true });
  return () => signal.removeEventListener("abort", cancel);
}
