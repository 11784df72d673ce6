/** A conversation's native state, through the state facade (state service). */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";

import type { Fence } from "../../gen/harness/common/v1/fence_pb.js";
import { type PendingHead, PendingHeadSchema } from "../../gen/harness/event/v1/event_pb.js";
import {
  ThreadStateService,
  type WritePartsRequestSchema,
} from "../../gen/harness/state/v1/thread_state_service_pb.js";
import { HarnessError } from "../errors.js";
import { type FacadeAccess, isServiceError } from "./access.js";
import { receive, sendAll, type Target, unary } from "./rpc.js";

const CHUNK_BYTES = 1024 * 1024;
const MAX_PART_BYTES = 8 * 1024 * 1024;
const MAX_PARTS = 64;
/** What one load may bring into this process (I35). */
const MAX_HEAD_BYTES = 64 * 1024 * 1024;
const MAX_HEAD_PARTS = 4_096;

/** The committed state; a head that no run wrote parts for has an empty codec and none. */
export interface Head {
  readonly revision: number;
  readonly codec: string;
  readonly parts: readonly Buffer[];
}

/**
 * The thread state of one run. What it writes becomes the head when the executor commits the run's last draft, which names the
 * parts.
 */
export class ThreadState {
  readonly #access: FacadeAccess | undefined;
  readonly #written: string[] = [];
  #replaces = false;

  constructor(access: FacadeAccess | undefined) {
    this.#access = access;
  }

  /** The committed head; undefined: there is none. */
  async loadHead(): Promise<Head | undefined> {
    try {
      return await this.#required().call(load);
    } catch (error) {
      throw failed("load", error);
    }
  }

  /**
   * Writes one part under `key`; the same key again is the same part. With `replace` this run's parts become the whole head,
   * otherwise they are appended to it.
   */
  async writePart(bytes: Buffer, codec: string, key: string, replace: boolean): Promise<void> {
    if (bytes.length > MAX_PART_BYTES || this.#written.length >= MAX_PARTS) {
      throw new HarnessError("persistence", "A run may write 64 parts of 8 MiB each.", {
        code: "state_too_large",
      });
    }
    try {
      const { partRef } = await this.#required().call((target, fence) =>
        sendAll(target, ThreadStateService.method.writeParts, pieces(fence, bytes, codec, key)),
      );
      if (!this.#written.includes(partRef)) this.#written.push(partRef);
      this.#replaces ||= replace;
    } catch (error) {
      throw failed("save", error);
    }
  }

  /** Says that state behind visible output could not be saved: no later commit of this run passes. */
  async markUncertain(): Promise<void> {
    await this.#required().call((target, fence) => unary(target, ThreadStateService.method.markUncertain, { fence }));
  }

  /** What this run wrote, for its last draft; undefined: nothing. */
  pendingHead(): PendingHead | undefined {
    if (this.#written.length === 0) return undefined;
    return create(PendingHeadSchema, { partRefs: this.#written, replace: this.#replaces });
  }

  #required(): FacadeAccess {
    if (this.#access !== undefined) return this.#access;
    throw new HarnessError("persistence", "This run has no access to thread state.", {
      code: "state_facade_missing",
    });
  }
}

async function load(target: Target, fence: Fence): Promise<Head | undefined> {
  const parts: Uint8Array[][] = [];
  let head = { revision: 0, codec: "" };
  let bytes = 0;
  for await (const { revision, codec, partIndex, chunk } of receive(target, ThreadStateService.method.loadHead, {
    fence,
  })) {
    head = { revision, codec: codec || head.codec };
    // No head, or one that no run has written parts for.
    if (codec === "") break;
    bytes += chunk.length;
    if (bytes > MAX_HEAD_BYTES || partIndex >= MAX_HEAD_PARTS) {
      throw new HarnessError("persistence", "The conversation's state is too large to load.", {
        code: "state_too_large",
      });
    }
    while (parts.length <= partIndex) parts.push([]);
    parts[partIndex]?.push(chunk);
  }
  return head.revision === 0 ? undefined : { ...head, parts: parts.map((chunks) => Buffer.concat(chunks)) };
}

function* pieces(
  fence: Fence,
  bytes: Buffer,
  codec: string,
  idempotencyKey: string,
): Generator<MessageInitShape<typeof WritePartsRequestSchema>> {
  yield { fence, codec, idempotencyKey, chunk: bytes.subarray(0, CHUNK_BYTES) };
  for (let start = CHUNK_BYTES; start < bytes.length; start += CHUNK_BYTES) {
    yield { chunk: bytes.subarray(start, start + CHUNK_BYTES) };
  }
}

function failed(what: "load" | "save", error: unknown): unknown {
  if (!isServiceError(error)) return error;
  const retryable = error.code === status.UNAVAILABLE || error.code === status.DEADLINE_EXCEEDED;
  return new HarnessError(
    "persistence",
    `The conversation's state could not be ${what === "load" ? "loaded" : "saved"}.`,
    {
      code: `state_${what}_failed`,
      retryable,
    },
  );
}
