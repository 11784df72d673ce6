/** The gRPC server: the adapter's services, health and reflection, at one address. */

import { chmodSync, lstatSync, unlinkSync } from "node:fs";
import { connect } from "node:net";

import { toBinary } from "@bufbuild/protobuf";
import { type FileDescriptorProto, FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import * as grpc from "@grpc/grpc-js";
import { ReflectionService } from "@grpc/reflection";
import { HealthImplementation } from "grpc-health-check";

import { AdapterService } from "../gen/harness/adapter/v1/adapter_service_pb.js";
import { RuntimeService } from "../gen/harness/runtime/v1/runtime_service_pb.js";
import { adapterHandlers } from "./host/adapter_service.js";
import type { Harness } from "./host/contract.js";
import type { Registry } from "./host/registry.js";
import { runtimeHandlers } from "./host/runtime_service.js";
import { addService, Guard } from "./host/service.js";
import { SettingError } from "./settings.js";

const SERVICES = [AdapterService, RuntimeService];
const OPTIONS: grpc.ServerOptions = {
  "grpc.max_receive_message_length": 8 * 1024 * 1024,
  "grpc.max_send_message_length": 8 * 1024 * 1024,
  "grpc.max_concurrent_streams": 4_096,
  // A peer that died without a word is noticed, and its streams end, within a minute and a half.
  "grpc.keepalive_time_ms": 60_000,
  "grpc.keepalive_timeout_ms": 10_000,
};
/** How long streams may take to hand over what is left once the runs have ended. */
const FLUSH = 2_000;

/** A served adapter. Health and reflection are open to whoever can connect: they say nothing of any run. */
export class AdapterServer {
  readonly #server = new grpc.Server(OPTIONS);
  readonly #health = new HealthImplementation();
  readonly #registry: Registry;

  constructor(harness: Harness, registry: Registry, token: string) {
    this.#registry = registry;
    const guard = new Guard(token);
    addService(this.#server, AdapterService, adapterHandlers(harness, registry), guard);
    addService(this.#server, RuntimeService, runtimeHandlers(registry), guard);
    this.#health.addToServer(this.#server);
    reflection().addToServer(this.#server);
    this.#setHealth("NOT_SERVING");
  }

  /** Takes the address and serves; where it listens, with the real port. */
  async start(listen: string, socketMode: number): Promise<string> {
    const address = listen.startsWith("unix:")
      ? await this.#bindSocket(listen, socketMode)
      : await this.#bindPort(listen);
    this.#setHealth("SERVING");
    return address;
  }

  /** Takes no new runs, gives those at work their time, cancels the rest, releases everything (I20, I33). */
  async stop(grace: number): Promise<void> {
    this.#registry.stopping = true;
    this.#setHealth("NOT_SERVING");
    await this.#registry.drain(grace);
    await new Promise<void>((resolve) => {
      const cutOff = setTimeout(() => {
        this.#server.forceShutdown();
        resolve();
      }, FLUSH);
      this.#server.tryShutdown(() => {
        clearTimeout(cutOff);
        resolve();
      });
    });
    await this.#registry.close();
  }

  async #bindSocket(listen: string, mode: number): Promise<string> {
    const path = listen.slice("unix:".length);
    await removeDeadSocket(path);
    // Never open to others between bind and chmod.
    const before = process.umask(0o177);
    try {
      await this.#bind(listen);
    } finally {
      process.umask(before);
    }
    chmodSync(path, mode);
    return listen;
  }

  async #bindPort(listen: string): Promise<string> {
    const port = await this.#bind(listen);
    return `${listen.slice(0, listen.lastIndexOf(":"))}:${port}`;
  }

  #bind(listen: string): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#server.bindAsync(listen, grpc.ServerCredentials.createInsecure(), (error, port) => {
        if (error === null) resolve(port);
        else reject(new SettingError(`--listen: cannot listen on ${listen}: is it in use, or not of this machine?`));
      });
    });
  }

  #setHealth(status: "SERVING" | "NOT_SERVING"): void {
    for (const name of ["", ...SERVICES.map((service) => service.typeName)]) this.#health.setStatus(name, status);
  }
}

/** Removes the socket a dead process left; refuses a path where something else is, or where somebody listens. */
async function removeDeadSocket(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket())
    throw new SettingError(`--listen: ${path} exists and is not a socket: remove it or choose another path.`);
  if (await somebodyListens(path))
    throw new SettingError(`--listen: another process listens on ${path}: stop it or choose another path.`);
  unlinkSync(path);
}

function somebodyListens(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = connect(path);
    probe.once("connect", () => {
      probe.destroy();
      resolve(true);
    });
    probe.once("error", (error: NodeJS.ErrnoException) =>
      resolve(error.code !== "ECONNREFUSED" && error.code !== "ENOENT"),
    );
  });
}

function reflection(): ReflectionService {
  const files = new Map<string, FileDescriptorProto>();
  const collect = (file: (typeof SERVICES)[number]["file"]): void => {
    if (files.has(file.proto.name)) return;
    files.set(file.proto.name, file.proto);
    file.dependencies.forEach(collect);
  };
  for (const service of SERVICES) collect(service.file);
  const fileDescriptorProtos = [...files.values()].map((file) =>
    Buffer.from(toBinary(FileDescriptorProtoSchema, file)),
  );
  // The package reads nothing of a definition but its files.
  const definition = { format: "Protocol Buffer 3 EnumDescriptorProto" as const, type: {}, fileDescriptorProtos };
  return new ReflectionService({ contracts: definition }, { services: SERVICES.map((service) => service.typeName) });
}
