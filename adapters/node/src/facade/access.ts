/** How a run calls a facade of the control plane: with its own token, under its fence, and again where that is right. */

import { clone } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import { setTimeout as sleep } from "node:timers/promises";

import { type Fence, FenceSchema } from "../../gen/harness/common/v1/fence_pb.js";
import { errorInfo } from "../host/status.js";
import type { Target } from "./rpc.js";

/** How long a call waits for the executor that is taking the run over: three times a lease's default. */
const TAKEOVER = 15_000;
export type Audience = "state" | "tool";
/** How long a call is made again while the facade is away, as when it is restarted. */
const AWAY: Readonly<Record<Audience, number>> = { state: 10_000, tool: 30_000 };
const PAUSES = [20, 50, 100, 200, 500] as const;
const CALL = 30_000;

/** What the host knows of the run that calls. */
export interface RunView {
  readonly signal: AbortSignal;
  readonly deadline: number;
  readonly generation: number;
  waitForAnother(generation: number, milliseconds: number): Promise<boolean>;
}

/** One call under the fence as it stands; it may be made several times. */
export type FacadeCall<T> = (target: Target, fence: Fence) => Promise<T>;

/** A run's way to one facade. `clients` are the facade's replicas, each as good as the others. */
export class FacadeAccess {
  readonly #clients: readonly (() => grpc.Client)[];
  readonly #fence: Fence;
  readonly #token: string;
  readonly #run: RunView;
  readonly #audience: Audience;

  constructor(audience: Audience, clients: readonly (() => grpc.Client)[], fence: Fence, token: string, run: RunView) {
    this.#audience = audience;
    this.#clients = clients;
    this.#fence = fence;
    this.#token = token;
    this.#run = run;
  }

  get signal(): AbortSignal {
    return this.#run.signal;
  }

  /**
   * The answer. A call refused because the run is being taken over waits for the new executor and is made again: the work goes on
   * (I10). So does it where the facade is away, at another replica if there is one, within a bound (I34). Every facade call may be
   * repeated: its effect has a key. `most`: milliseconds that one attempt may take. Throws the grpc.ServiceError otherwise.
   */
  async call<T>(facadeCall: FacadeCall<T>, most: number = CALL): Promise<T> {
    let awaySince: number | undefined;
    for (let attempt = 0; ; attempt += 1) {
      this.signal.throwIfAborted();
      const fence = clone(FenceSchema, this.#fence);
      fence.runGeneration = this.#run.generation;
      const client = this.#clients[attempt % this.#clients.length]?.();
      if (client === undefined) throw new Error("a facade has no address");
      try {
        return await facadeCall(
          {
            client,
            metadata: this.#metadata(),
            deadline: Math.min(Date.now() + most, this.#run.deadline),
            signal: this.signal,
          },
          fence,
        );
      } catch (error) {
        this.signal.throwIfAborted();
        if (!isServiceError(error)) throw error;
        if (isAway(error)) {
          awaySince ??= performance.now();
          if (performance.now() - awaySince >= AWAY[this.#audience]) throw error;
          await sleep(PAUSES[Math.min(Math.floor(attempt / this.#clients.length), PAUSES.length - 1)], undefined, {
            signal: this.signal,
          });
        } else if (!isBeingTakenOver(error) || !(await this.#run.waitForAnother(fence.runGeneration, TAKEOVER))) {
          throw error;
        }
      }
    }
  }

  #metadata(): grpc.Metadata {
    const metadata = new grpc.Metadata();
    metadata.set("authorization", `Bearer ${this.#token}`);
    return metadata;
  }
}

export function isServiceError(error: unknown): error is grpc.ServiceError {
  return error instanceof Error && "code" in error && typeof error.code === "number" && "details" in error;
}

/** How a call ends whose server is gone, or goes. One that is there and refuses says why, and whether to come again. */
function isAway(error: grpc.ServiceError): boolean {
  if (error.code !== grpc.status.UNAVAILABLE && error.code !== grpc.status.CANCELLED) return false;
  const info = errorInfo(error);
  return info === undefined || info.metadata["retryable"] === "true";
}

/** Whether nothing but the run's generation was too old: the facade says that such a call is worth repeating. */
function isBeingTakenOver(error: grpc.ServiceError): boolean {
  const info = errorInfo(error);
  return info?.reason === "STALE_LEASE" && info.metadata["retryable"] === "true";
}
