"""Which invariants the stores, the answers, the streams and the journal of starts show to be broken."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from tests.chaos.recorded import Recorded
from tests.chaos.stored import OPEN, TERMINALS, LoggedEvent, StoredMesh, StoredSegment, events_of

Runs = dict[str, dict[str, Any]]
Logs = dict[str, list[LoggedEvent]]


def violations_of(stored: StoredMesh, recorded: Recorded, journal: Path | None = None) -> list[str]:
    """Every broken invariant, in words. To be asked of a mesh that has settled."""
    wrong: list[str] = []
    runs: Runs = {run["run_id"]: run for run in stored.runs()}
    segments = stored.logs()
    logs: Logs = {run_id: events_of(segments.get(run_id, [])) for run_id in runs}
    for run_id, run in runs.items():
        wrong += _log_violations(run, logs[run_id])
        wrong += _segment_violations(run_id, segments.get(run_id, []))
    wrong += _answer_violations(recorded, runs, logs)
    wrong += _subscriber_violations(recorded, logs)
    wrong += _overlaps(runs, logs)
    wrong += _binding_violations(stored, recorded, runs, logs)
    wrong += _version_violations(stored, recorded)
    for run_id, events in logs.items():
        wrong += _pause_violations(run_id, events)
    if journal is not None:
        starts = Counter[str](orjson.loads(line)["run_id"] for line in journal.read_bytes().splitlines())
        wrong += _start_violations(starts, runs, logs)
        wrong += _resume_violations(starts, runs)
    return wrong


def _log_violations(run: dict[str, Any], events: list[LoggedEvent]) -> list[str]:
    run_id, wrong = run["run_id"], list[str]()
    if run["status"] in OPEN:
        wrong.append(f"I9: {run_id} is {run['status']}")
    if [event.sequence for event in events] != list(range(1, len(events) + 1)):
        wrong.append(f"I7: {run_id} has {[event.sequence for event in events]}")
    terminals = [event.kind for event in events if event.kind in TERMINALS]
    if len(terminals) != 1 or events[-1].kind not in TERMINALS:
        wrong.append(f"I9: {run_id} ({run['status']}) has terminals {terminals}, ends with {_named(events[-1:])}")
    elif run["status"] not in OPEN and terminals[0] != f"run.{run['status']}":
        wrong.append(f"I9: {run_id} is {run['status']} and its log says {terminals[0]}")
    if events and events[0].kind != "run.started":
        wrong.append(f"{run_id} begins with {events[0].kind}")
    if run["status"] not in OPEN and run["last_sequence"] != len(events):
        wrong.append(f"{run_id} says {run['last_sequence']} events, its log has {len(events)}")
    return wrong


def _segment_violations(run_id: str, segments: list[StoredSegment]) -> list[str]:
    wrong: list[str] = []
    if [segment.index for segment in segments] != list(range(1, len(segments) + 1)):
        wrong.append(f"I7: {run_id} has segments {[segment.index for segment in segments]}")
    generation = 1
    for segment in segments:
        if segment.run_generation < generation:
            wrong.append(f"I10: {run_id} has a segment of generation {segment.run_generation} after {generation}")
        elif segment.run_generation > generation and not segment.is_seal:
            wrong.append(f"I10: generation {segment.run_generation} of {run_id} writes without having sealed the log")
        generation = max(generation, segment.run_generation)
    return wrong


def _answer_violations(recorded: Recorded, runs: Runs, logs: Logs) -> list[str]:
    wrong: list[str] = []
    for run_ids in recorded.by_request.values():
        wrong += [f"I33: {run_id} was answered and is not there" for run_id in run_ids if run_id not in runs]
    for run_id, length in recorded.ends.items():
        if len(logs.get(run_id, [])) != length:
            wrong.append(f"I12: {run_id} grew after its cancel, from {length} to {len(logs.get(run_id, []))}")
    return wrong


def _subscriber_violations(recorded: Recorded, logs: Logs) -> list[str]:
    """I7, I8: everybody saw the log, the whole log, in the same bytes."""
    wrong: list[str] = []
    known: dict[tuple[str, int], bytes] = {}
    for seen in recorded.watchers:
        wrong += [f"{seen.run_id}: {what}" for what in seen.wrong]
        events = logs.get(seen.run_id, [])
        if seen.ended and seen.last != len(events):
            wrong.append(f"I7: a watcher of {seen.run_id} saw {seen.last} events, the log has {len(events)}")
        if seen.last > len(events):
            wrong.append(f"I8: a watcher of {seen.run_id} saw {seen.last}, the log ends at {len(events)}")
            continue
        for sequence, content in seen.frames.items():
            expected = (
                events[sequence - 1].packed
                if seen.over == "grpc"
                else known.setdefault((seen.run_id, sequence), content)
            )
            if content != expected:
                wrong.append(f"I8: {seen.run_id} {sequence} over {seen.over}: {expected!r} and {content!r}")
    return wrong


def _overlaps(runs: Runs, logs: Logs) -> list[str]:
    """I6: the runs of a conversation follow each other, in the order of their turns."""
    wrong: list[str] = []
    for talk, of_talk in _by_conversation(runs).items():
        had_turn = [run for run in of_talk if run["turn"] and logs[run["run_id"]]]
        had_turn.sort(key=lambda run: (run["epoch"], run["turn"]))
        for before, after in pairwise(had_turn):
            if before["turn"] == after["turn"] and before["epoch"] == after["epoch"]:
                wrong.append(f"I6: turn {after['turn']} of {talk} is {before['run_id']} and {after['run_id']}")
            ended, began = logs[before["run_id"]][-1].at, logs[after["run_id"]][0].at
            if began < ended:
                ago = (ended - began) / 1e6
                wrong.append(f"I6: {after['run_id']} of {talk} began {ago:.1f} ms before {before['run_id']} ended")
    return wrong


def _binding_violations(stored: StoredMesh, recorded: Recorded, runs: Runs, logs: Logs) -> list[str]:
    """I3, I5, I9, I30: one binding each, epochs 1..n, nobody holds or awaits a slot for ever, heads are what runs completed with."""
    wrong: list[str] = []
    closed: dict[tuple[str, str], list[int]] = defaultdict(list)
    bindings, archived = stored.bindings(), stored.archived()
    for binding in archived:
        closed[binding["agent_id"], binding["conversation_id"]].append(binding["epoch"])
    owners = Counter((binding["owner_id"], binding["agent_id"], binding["conversation_id"]) for binding in bindings)
    wrong += [f"I3: {count} bindings of {talk}" for (_, *talk), count in owners.items() if count > 1]
    for binding in bindings:
        talk = binding["conversation_id"]
        epochs = sorted(closed[binding["agent_id"], talk])
        if epochs != list(range(1, binding["epoch"])):
            wrong.append(f"I5: {talk} is in epoch {binding['epoch']}, closed are {epochs}")
        for answer in recorded.clears.get(talk, []):
            if answer["next_epoch"] > binding["epoch"]:
                wrong.append(f"I5: clear of {talk} said {answer}, it is in {binding['epoch']}")
        if binding["active"] or binding["waiting"] or binding["status"] != "active":
            wrong.append(
                f"I9: {talk} is {binding['status']}, held by {binding['active']}, awaited by {binding['waiting']}"
            )
    for binding in (*bindings, *archived):
        wrong += _head_violations(binding, runs, logs)
    wrong += _revision_violations(runs, logs)
    return wrong


def _head_violations(binding: dict[str, Any], runs: Runs, logs: Logs) -> list[str]:
    head = binding["head"]
    if head is None or head["run_id"] not in runs:
        return []
    terminal = logs[head["run_id"]][-1]
    if terminal.kind == "run.completed" and terminal.revision != head["revision"]:
        return [f"I30: {head['run_id']} says it committed {terminal.revision}, the head is {head['revision']}"]
    return []


def _revision_violations(runs: Runs, logs: Logs) -> list[str]:
    """I30: every turn that completed with a head has one of its own, later than those of the turns before."""
    wrong: list[str] = []
    for talk, of_talk in _by_conversation(runs).items():
        epochs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for run in of_talk:
            terminal = logs[run["run_id"]][-1] if logs[run["run_id"]] else None
            if terminal is not None and terminal.revision:
                epochs[run["epoch"]].append((run["turn"], terminal.revision))
        for epoch, turns in epochs.items():
            turns.sort()
            if any(before >= after for (_, before), (_, after) in pairwise(turns)):
                wrong.append(f"I30: epoch {epoch} of {talk} has (turn, head) {turns}")
    return wrong


def _version_violations(stored: StoredMesh, recorded: Recorded) -> list[str]:
    """I15: versions are 1..n, the pointer at the last, and every save that was answered is there."""
    wrong: list[str] = []
    versions: dict[str, dict[int, str]] = defaultdict(dict)
    for version in stored.versions():
        versions[version["agent_id"]][version["version"]] = version["blueprint"]["prompt"]["system"]
    for agent in stored.agents():
        numbers = sorted(versions[agent["agent_id"]])
        # One more than the pointer is a save that died before it was published; readers never see it.
        if numbers[: agent["current_version"]] != list(range(1, agent["current_version"] + 1)):
            wrong.append(f"I15: {agent['agent_id']} points at {agent['current_version']}, versions are {numbers}")
    for (agent_id, number), prompt in recorded.saves.items():
        if versions[agent_id].get(number) != prompt:
            wrong.append(f"I15: version {number} of {agent_id} is not what was saved")
    return wrong


def _pause_violations(run_id: str, events: list[LoggedEvent]) -> list[str]:
    """I24: a run asks once, as the last thing before it ends as interrupted, and does not end so without having asked."""
    kinds = [event.kind for event in events]
    asked = kinds.count("interrupt.requested")
    if asked != kinds.count("run.interrupted") or asked > 1:
        return [f"I24: {run_id} asked {asked} times and ends with {kinds[-2:]}"]
    return []


def _resume_violations(starts: Counter[str], runs: Runs) -> list[str]:
    """I24: of all runs that answer an interrupt, one at most was started. (One that never was gives the interrupt back.)"""
    answers: dict[str, list[str]] = defaultdict(list)
    for run_id, run in runs.items():
        if run.get("resumed_from") and starts[run_id]:
            answers[run["resumed_from"]].append(run_id)
    return [f"I24: {asking} was answered by {started}" for asking, started in answers.items() if len(started) > 1]


def _start_violations(starts: Counter[str], runs: Runs, logs: Logs) -> list[str]:
    """I11: no run was started twice, whoever died; and none that was not started has anything to show."""
    wrong = [f"I11: {run_id} was started {count} times" for run_id, count in starts.items() if count > 1]
    for run_id, run in runs.items():
        shown = [event for event in logs[run_id][1:] if event.kind not in TERMINALS]
        if run["profile_id"] == "default" and run_id not in starts and shown:
            wrong.append(f"I11: {run_id} was never started, and its log has {_named(shown[:3])}")
    return wrong


def _by_conversation(runs: Runs) -> dict[tuple[str, str], list[dict[str, Any]]]:
    talks: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs.values():
        talks[run["agent_id"], run["conversation_id"]].append(run)
    return talks


def _named(events: list[LoggedEvent]) -> list[str]:
    return [f"{event.sequence} {event.kind}" for event in events]
