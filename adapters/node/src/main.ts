/** The process: settings, readiness, signals, and an orderly end. */

import { randomBytes } from "node:crypto";
import { closeSync, writeSync } from "node:fs";

import { ReferenceHarness } from "./harness/harness.js";
import { Registry } from "./host/registry.js";
import { describe, log, setLevel } from "./log.js";
import { AdapterServer } from "./server.js";
import { readSettings, SettingError, type Settings } from "./settings.js";

const EXIT_FAILURE = 1;
const EXIT_CONFIGURATION = 2;
const NAME = "adapters.node";
const PARENT_LOOK = 500;

async function main(): Promise<void> {
  const settings = readSettings(process.argv.slice(2), process.env);
  setLevel(settings.logLevel);
  endWithParent(settings.parent);
  const harness = new ReferenceHarness();
  const registry = new Registry(harness, randomBytes(16).toString("hex"), settings.limits);
  const server = new AdapterServer(harness, registry, settings.token);
  const address = await server.start(settings.listen, settings.socketMode);
  if (settings.anonymous && settings.token === "") log("warning", "anonymous_callers_allowed", { address });
  stopOnSignals(server, settings.shutdownGrace);
  announce(settings, { service: NAME, address, incarnation: registry.incarnation, worker: false });
}

/** One line of JSON once the process serves: on the descriptor of HARNESS_READY_FD, else on standard output. */
function announce(settings: Settings, facts: Readonly<Record<string, string | boolean>>): void {
  log("info", "ready", facts);
  const line = `${JSON.stringify({ pid: process.pid, ...facts })}\n`;
  if (settings.readyDescriptor === undefined) {
    process.stdout.write(line);
    return;
  }
  try {
    writeSync(settings.readyDescriptor, line);
    closeSync(settings.readyDescriptor);
  } catch (error) {
    log("warning", "nobody_waits_for_readiness", { error: describe(error) });
  }
}

/** Node cannot ask the kernel to end it with its parent, so it looks. */
function endWithParent(parent: number | undefined): void {
  if (parent === undefined) return;
  setInterval(() => {
    if (process.ppid !== parent) process.exit(EXIT_FAILURE);
  }, PARENT_LOOK).unref();
}

/** SIGTERM and SIGINT ask for a graceful stop; a second one for a stop at once (I33). */
function stopOnSignals(server: AdapterServer, grace: number): void {
  let asked = false;
  const onSignal = (signal: NodeJS.Signals): void => {
    log("info", "stop_requested", { signal });
    if (asked) process.exit(0);
    asked = true;
    server.stop(grace).then(
      () => process.exit(0),
      (error: unknown) => fail(error),
    );
  };
  process.on("SIGTERM", onSignal);
  process.on("SIGINT", onSignal);
}

function fail(error: unknown): never {
  if (error instanceof SettingError) {
    process.stderr.write(`configuration error: ${error.message}\n`);
    process.exit(EXIT_CONFIGURATION);
  }
  log("error", "process_failed", { error: describe(error) });
  process.stderr.write(`${NAME} stopped: unexpected error, see the log\n`);
  process.exit(EXIT_FAILURE);
}

main().catch(fail);
