/** Connections to the control plane's facades: one per address, shared by all runs of the process. */

import * as grpc from "@grpc/grpc-js";

const MAX_CHANNELS = 16;
const OPTIONS: grpc.ClientOptions = {
  "grpc.default_authority": "localhost",
  "grpc.max_receive_message_length": 4 * 1024 * 1024,
  "grpc.initial_reconnect_backoff_ms": 50,
  "grpc.min_reconnect_backoff_ms": 5_000,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.use_local_subchannel_pool": 1,
};

/** At most 16 connections; the longest unused one is closed. */
export class FacadeChannels {
  readonly #clients = new Map<string, grpc.Client>();

  /** The client of the facade at `unix:/path` or `host:port`. */
  client(address: string): grpc.Client {
    const client = this.#clients.get(address) ?? new grpc.Client(address, grpc.credentials.createInsecure(), OPTIONS);
    this.#clients.delete(address);
    this.#clients.set(address, client);
    for (const [oldest, other] of this.#clients) {
      if (this.#clients.size <= MAX_CHANNELS) break;
      this.#clients.delete(oldest);
      other.close();
    }
    return client;
  }

  close(): void {
    for (const client of this.#clients.values()) client.close();
    this.#clients.clear();
  }
}
