/** A script: says exactly what the harness does, good or bad, and stops where a person is asked (reference harness). */

import type { EventDraft } from "../../gen/harness/event/v1/event_pb.js";
import type { ResumeDecision } from "../../gen/harness/runtime/v1/runtime_pb.js";
import { HarnessError } from "../errors.js";
import type { Turn } from "../host/contract.js";
import { callTool, type HeldCall } from "./calls.js";
import * as conversation from "./conversation.js";
import * as events from "./events.js";
import { objectOf, type Script, type Scripted } from "./message.js";
import { checkDecision, type Pause } from "./pause.js";
import { type Stage, stageOf } from "./stage.js";
import { innerScript, nameOf, play, type Play, UNAVAILABLE } from "./steps.js";

const FAULTS: ReadonlySet<string> = new Set(["emit", "raise", "exit", "hang", "spin"]);

/** What holds for all scripts of a runtime. */
export interface Setting {
  readonly allowFaults: boolean;
  readonly durable: boolean;
  /** Told of the pause a turn leaves behind, and of none when it leaves none. */
  readonly onPause: (pause: Pause | undefined) => void;
}

/** Plays the script of this turn, then completes or pauses. Nothing is played if any step of it is refused. */
export async function* stream(turn: Turn, asked: Scripted, setting: Setting): AsyncGenerator<EventDraft> {
  const needsMemory = asked.perTurn || touchesState(asked.scripts[0] ?? []);
  const memory = needsMemory && setting.durable ? await conversation.recall(turn) : conversation.NOTHING;
  const steps = asked.scripts[asked.perTurn ? memory.turns : 0] ?? [];
  check(steps, setting);
  yield* perform(turn, asked, memory, setting, steps, play(steps, stageOf(turn, setting.durable)));
}

/**
 * Goes on after a pause: with the calls that waited and what stood behind them, if there are any, then with the next script. `kept` is
 * the pause of a runtime without thread state.
 */
export async function* resume(
  turn: Turn,
  decision: ResumeDecision,
  setting: Setting,
  kept: Pause | undefined,
): AsyncGenerator<EventDraft> {
  const memory = setting.durable ? await conversation.recall(turn) : conversation.NOTHING;
  const pause = setting.durable ? memory.pause : kept;
  if (pause === undefined) {
    // Truthfully: nobody knows any more what was to be done, or it was done already (I24).
    throw new HarnessError("persistence", "What the conversation waited for is not known here any more.", {
      code: "interrupt_lost",
    });
  }
  checkDecision(pause, decision);
  setting.onPause(undefined);
  const steps = [...pause.rest, ...((pause.perTurn ? pause.scripts[memory.turns] : undefined) ?? [])];
  check(steps, setting);
  yield* perform(turn, pause, memory, setting, steps, goOn(pause, steps, stageOf(turn, setting.durable, decision)));
}

async function* goOn(pause: Pause, steps: Script, stage: Stage): Play {
  const held: HeldCall[] = [];
  // A person who dismissed the question decided on nothing: no call is made.
  const calls = stage.decision?.answer.case === "dismiss" ? [] : pause.waiting;
  for (const call of calls) {
    const approval = yield* callTool(call, false, stage);
    if (approval !== undefined) held.push({ call, approval });
  }
  return yield* play(steps, stage, held);
}

async function* perform(
  turn: Turn,
  { scripts, perTurn }: Pick<Scripted, "scripts" | "perTurn">,
  memory: conversation.Memory,
  setting: Setting,
  steps: Script,
  script: Play,
): AsyncGenerator<EventDraft> {
  const turns = memory.turns + (perTurn ? 1 : 0);
  const said = perTurn ? "a script" : memory.said;
  const halt = yield* script;
  if (halt !== undefined) {
    const pause: Pause = { ...halt, runId: turn.runId, scripts, perTurn };
    if (setting.durable) await conversation.remember(turn, { turns, said, pause });
    setting.onPause(pause);
    yield events.interrupted(halt.interruptId);
    return;
  }
  const changes = perTurn || memory.pause !== undefined || writesState(steps);
  if (setting.durable && changes) await conversation.remember(turn, { turns, said });
  yield events.completed();
}

/** Whether the script needs the conversation's state: it may stop for a person, or writes to it. */
function touchesState(steps: Script): boolean {
  return hasStep(steps, ["interrupt", "tool", "state"]);
}

/** The memory stands last in the state, so it is written again after anything else. */
function writesState(steps: Script): boolean {
  return hasStep(steps, ["state"]);
}

function hasStep(steps: Script, names: readonly string[]): boolean {
  return steps.some((step) => names.some((name) => step[name] !== undefined) || hasStep(innerScript(step), names));
}

/** Refuses the first step that is unknown, not available, or a fault that the operator's profile does not allow. */
function check(steps: Script, setting: Setting): void {
  for (const step of steps) {
    const name = nameOf(step);
    if (FAULTS.has(name) && !setting.allowFaults) {
      const message = `The step \`${name}\` is a fault, and the operator's profile does not allow faults.`;
      throw new HarnessError("configuration", message, { code: "faults_not_allowed" });
    }
    const missing =
      UNAVAILABLE[name] ??
      (name === "subagent" && objectOf(step, name)["delegate"] === true ? "delegation" : undefined);
    if (missing !== undefined) {
      const message = `The step \`${name}\` needs ${missing}, which this harness does not have.`;
      throw new HarnessError("configuration", message, { code: "step_unavailable" });
    }
    check(innerScript(step), setting);
  }
}
