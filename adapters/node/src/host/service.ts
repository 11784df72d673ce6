/** A contract's service on grpc-js: typed handlers, the token, the request's constraints, and refusals as google.rpc.Status. */

import { createHash, timingSafeEqual } from "node:crypto";
import { once } from "node:events";

import {
  create,
  type DescMessage,
  type DescMethod,
  type DescService,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import type { GenService } from "@bufbuild/protobuf/codegenv2";
import * as grpc from "@grpc/grpc-js";

import { classified, HarnessError } from "../errors.js";
import { describe, log } from "../log.js";
import * as refusal from "./refusal.js";
import { statusOf } from "./status.js";
import { violations } from "./validation.js";

/** What a handler knows of its call. */
export interface Call {
  /** Aborted when the caller is gone. */
  readonly signal: AbortSignal;
  /** Milliseconds until the caller stops waiting; undefined: it did not say. */
  remaining(): number | undefined;
}

type MethodsOf<S> = S extends GenService<infer M> ? M : never;
interface MethodShape {
  methodKind: string;
  input: DescMessage;
  output: DescMessage;
}

/** One function per method of the service. */
export type Handlers<S> = {
  [K in keyof MethodsOf<S>]: MethodsOf<S>[K] extends infer M extends MethodShape
    ? M["methodKind"] extends "server_streaming"
      ? (request: MessageShape<M["input"]>, call: Call) => AsyncIterable<MessageInitShape<M["output"]>>
      : (request: MessageShape<M["input"]>, call: Call) => Promise<MessageInitShape<M["output"]>>
    : never;
};

type AnyHandler = (request: unknown, call: Call) => unknown;
/** What arrived when the bytes are no message of the request's type. */
const UNREADABLE = Symbol("unreadable");

/** Decides who may call: with an empty token, everybody who can connect. */
export class Guard {
  readonly #expected: Buffer | undefined;

  constructor(token: string) {
    this.#expected = token === "" ? undefined : digest(`Bearer ${token}`);
  }

  admit(metadata: grpc.Metadata): void {
    if (this.#expected === undefined) return;
    const given = metadata.get("authorization")[0] ?? "";
    // Digests have one length, so that the comparison tells nothing of the token's.
    if (!timingSafeEqual(digest(String(given)), this.#expected)) throw refusal.unauthenticated();
  }
}

function digest(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}

/** The service as grpc-js wants it. */
export function definitionOf(service: DescService): grpc.ServiceDefinition {
  return Object.fromEntries(service.methods.map((method) => [method.name, methodDefinition(method)]));
}

function methodDefinition(method: DescMethod): grpc.MethodDefinition<unknown, unknown> {
  const encode = (schema: DescMessage) => (message: unknown) =>
    Buffer.from(toBinary(schema, message as MessageShape<DescMessage>));
  const decode = (schema: DescMessage) => (bytes: Buffer) => {
    try {
      return fromBinary(schema, bytes);
    } catch {
      // Thrown here, the library's own text would reach the caller.
      return UNREADABLE;
    }
  };
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming",
    responseStream: method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming",
    requestSerialize: encode(method.input),
    requestDeserialize: decode(method.input),
    responseSerialize: encode(method.output),
    responseDeserialize: decode(method.output),
  };
}

/** Serves `service`, of unary and server-streaming methods, with `handlers`. */
export function addService<S extends DescService>(
  server: grpc.Server,
  service: S,
  handlers: Handlers<S>,
  guard: Guard,
): void {
  const named = handlers as unknown as Record<string, AnyHandler>;
  const implementation = service.methods.map((method) => {
    const handler = named[method.localName];
    if (handler === undefined) throw new Error(`${method.name} has no handler`);
    return [
      method.name,
      method.methodKind === "server_streaming" ? streaming(method, handler, guard) : unary(method, handler, guard),
    ];
  });
  server.addService(definitionOf(service), Object.fromEntries(implementation) as grpc.UntypedServiceImplementation);
}

function unary(method: DescMethod, handler: AnyHandler, guard: Guard): grpc.handleUnaryCall<unknown, unknown> {
  return (call, callback) => {
    const answer = async (): Promise<unknown> => {
      guard.admit(call.metadata);
      return create(
        method.output,
        (await handler(checked(method, call.request), contextOf(call))) as MessageInitShape<DescMessage>,
      );
    };
    answer().then(
      (response) => callback(null, response),
      (error: unknown) => callback(statusOf(refused(error))),
    );
  };
}

function streaming(
  method: DescMethod,
  handler: AnyHandler,
  guard: Guard,
): grpc.handleServerStreamingCall<unknown, unknown> {
  return (call) => {
    const context = contextOf(call);
    const answer = async (): Promise<void> => {
      guard.admit(call.metadata);
      const responses = handler(checked(method, call.request), context) as AsyncIterable<MessageInitShape<DescMessage>>;
      for await (const response of responses) {
        if (context.signal.aborted) return;
        if (!call.write(create(method.output, response))) await drained(call, context.signal);
      }
    };
    answer().then(
      () => call.end(),
      (error: unknown) => {
        // Whoever is gone hears nothing any more.
        if (!context.signal.aborted) call.emit("error", statusOf(refused(error)));
      },
    );
  };
}

async function drained(call: grpc.ServerWritableStream<unknown, unknown>, signal: AbortSignal): Promise<void> {
  try {
    await once(call, "drain", { signal });
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

function contextOf(call: grpc.ServerUnaryCall<unknown, unknown> | grpc.ServerWritableStream<unknown, unknown>): Call {
  const gone = new AbortController();
  call.on("cancelled", () => gone.abort());
  if (call.cancelled) gone.abort();
  return {
    signal: gone.signal,
    remaining() {
      const deadline = call.getDeadline();
      const at = deadline instanceof Date ? deadline.getTime() : deadline;
      return Number.isFinite(at) ? Math.max(0, at - Date.now()) : undefined;
    },
  };
}

/** The request; a refusal that names every malformed field of it, and none of the values. */
function checked(method: DescMethod, request: unknown): MessageShape<DescMessage> {
  if (request === UNREADABLE) {
    const issue = {
      path: "",
      code: "malformed_message",
      message: "The bytes are no message of the request's type.",
    };
    throw refusal.invalid("The request cannot be read.", [issue]);
  }
  const issues = violations(method.input, request as MessageShape<DescMessage>);
  const [first] = issues;
  if (first !== undefined) throw refusal.invalid(`The request is malformed at ${first.path || "its root"}.`, issues);
  return request as MessageShape<DescMessage>;
}

/** Everything becomes a refusal, and nothing of an unexpected error's text leaves (I22). */
function refused(error: unknown): refusal.Refusal {
  if (error instanceof refusal.Refusal) return error;
  if (!(error instanceof HarnessError)) log("error", "call_failed", { error: describe(error) });
  return refusal.fromError(classified(error));
}
