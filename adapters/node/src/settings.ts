/** How the process is run: the command line and the environment, checked at once (I32). */

import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { parseArgs } from "node:util";

import { DEFAULT_HOST_LIMITS, type HostLimits } from "./host/limits.js";
import { isLevel, type Level } from "./log.js";

const TOKEN = "HARNESS_ADAPTER_TOKEN";
const ALLOW_ANONYMOUS = "HARNESS_ADAPTER_ALLOW_ANONYMOUS";
export const USAGE = "usage: npm start -- --listen unix:/path | host:port [--socket-mode 0600]";

/** A setting that is wrong: which, and what to do. */
export class SettingError extends Error {}

export interface Settings {
  /** `unix:/path` or `host:port`. */
  readonly listen: string;
  readonly socketMode: number;
  readonly token: string;
  readonly anonymous: boolean;
  /** Milliseconds that running turns may take once the process is asked to stop. */
  readonly shutdownGrace: number;
  /** Descriptor that hears when the process serves; undefined: standard output does. */
  readonly readyDescriptor: number | undefined;
  /** The process whose death ends this one; undefined: none. */
  readonly parent: number | undefined;
  readonly limits: HostLimits;
  readonly logLevel: Level;
}

export function readSettings(args: string[], environment: NodeJS.ProcessEnv): Settings {
  const given = parsed(args);
  const text = (name: string): string => environment[name] ?? "";
  const number = (name: string, fallback: number, least: number, most: number): number =>
    numberOf(name, text(name), fallback, least, most);
  const listen = given.listen ?? text("HARNESS_LISTEN");
  if (listen === "")
    throw new SettingError(`--listen (or HARNESS_LISTEN) is missing: give unix:/path or host:port.\n${USAGE}`);
  const settings: Settings = {
    listen: checkedAddress(listen),
    socketMode: octal(given["socket-mode"] ?? "0600"),
    token: secret(TOKEN, environment),
    anonymous: isOn(ALLOW_ANONYMOUS, text(ALLOW_ANONYMOUS)),
    shutdownGrace: number("HARNESS_SHUTDOWN_GRACE_SECONDS", 10, 0, 3_600) * 1000,
    readyDescriptor: text("HARNESS_READY_FD") === "" ? undefined : number("HARNESS_READY_FD", 0, 1, 1_000_000),
    parent: parentOf(text("HARNESS_DIE_WITH_PARENT")),
    limits: {
      maxRuns: number("HARNESS_ADAPTER_MAX_RUNS", DEFAULT_HOST_LIMITS.maxRuns, 1, 100_000),
      maxRuntimes: number("HARNESS_ADAPTER_MAX_RUNTIMES", DEFAULT_HOST_LIMITS.maxRuntimes, 1, 1_000_000),
      maxBufferedBytes: number(
        "HARNESS_ADAPTER_MAX_BUFFERED_BYTES",
        DEFAULT_HOST_LIMITS.maxBufferedBytes,
        2 ** 20,
        2 ** 40,
      ),
    },
    logLevel: level(text("HARNESS_LOG_LEVEL") || "info"),
  };
  checkAccess(settings);
  return settings;
}

/** A unix socket has its mode; TCP needs a token, on loopback too: any user of the machine can connect there. */
function checkAccess({ listen, token, anonymous }: Settings): void {
  if (listen.startsWith("unix:") || token !== "") return;
  if (!isLoopback(listen))
    throw new SettingError(`--listen: ${TOKEN} is missing, and ${listen} can be reached from other machines.`);
  if (anonymous) return;
  throw new SettingError(
    `--listen: ${TOKEN} is missing: every TCP address needs it, or any user of this machine could start runs. Set it, listen on a unix ` +
      `socket, or, for development, set ${ALLOW_ANONYMOUS}=1.`,
  );
}

function parsed(args: string[]): { listen?: string | undefined; "socket-mode"?: string | undefined } {
  try {
    return parseArgs({
      args,
      options: { listen: { type: "string" }, "socket-mode": { type: "string" } },
      strict: true,
    }).values;
  } catch (error) {
    throw new SettingError(`${error instanceof Error ? error.message : "wrong arguments"}\n${USAGE}`);
  }
}

function checkedAddress(address: string): string {
  if (address.startsWith("unix:") ? address.length > "unix:".length : isHostAndPort(address)) return address;
  throw new SettingError(`--listen: '${address}' is neither unix:/path nor host:port.`);
}

function isHostAndPort(address: string): boolean {
  const [, host, port] = /^(.+):(\d{1,5})$/.exec(address) ?? [];
  return host !== undefined && Number(port) < 65_536;
}

function isLoopback(address: string): boolean {
  const host = address.slice(0, address.lastIndexOf(":")).replace(/^\[|\]$/g, "");
  return host === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}

function secret(name: string, environment: NodeJS.ProcessEnv): string {
  const path = environment[`${name}_FILE`] ?? "";
  if (path === "") return environment[name] ?? "";
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    throw new SettingError(`${name}_FILE: cannot be read: give a file that this process may read.`);
  }
}

function isOn(name: string, text: string): boolean {
  if (!["", "0", "1"].includes(text)) throw new SettingError(`${name}: '${text}' is neither 0 nor 1.`);
  return text === "1";
}

function octal(text: string): number {
  if (!/^[0-7]{1,4}$/.test(text) || parseInt(text, 8) > 0o777)
    throw new SettingError(`--socket-mode: '${text}' is not an octal mode such as 0600.`);
  return parseInt(text, 8);
}

function level(text: string): Level {
  const name = text.toLowerCase();
  if (isLevel(name)) return name;
  throw new SettingError("HARNESS_LOG_LEVEL: use debug, info, warning or error.");
}

function parentOf(text: string): number | undefined {
  if (text === "" || text === "0") return undefined;
  if (!/^\d+$/.test(text)) throw new SettingError(`HARNESS_DIE_WITH_PARENT: '${text}' is neither 1 nor a process id.`);
  return text === "1" ? process.ppid : Number(text);
}

function numberOf(name: string, text: string, fallback: number, least: number, most: number): number {
  if (text === "") return fallback;
  const value = Number(text);
  if (least <= value && value <= most) return value;
  throw new SettingError(`${name}: '${text}' is not a number from ${least} to ${most}.`);
}
