"""The judge sees what it is there to see: every kind of damage, done to the stores of a real mesh or to what was recorded, is named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.run.v1.run_service_pb2 import WatchRunResponse
from tests.chaos.judge import violations_of
from tests.chaos.recorded import Recorded, Seen
from tests.chaos.session import Means, mesh_of
from tests.chaos.stored import StoredMesh
from tests.e2e.turns import conversation, frames, save_agent, start, watch
from tests.support.mesh import poll_until


@dataclass(slots=True)
class Scene:
    """A copy of the stores of a mesh that had two turns and a cleared one, and what was recorded of them."""

    folder: Path
    journal: Path
    recorded: Recorded
    runs: list[str]

    def wrong(self) -> list[str]:
        return violations_of(StoredMesh(self.folder), self.recorded, self.journal)

    def sql(self, service: str, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.folder / "store" / f"{service}.sqlite3")) as connection:
            assert connection.execute(statement, values).rowcount == 1
            connection.commit()

    def change(self, service: str, collection: str, wanted: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Changes the one document that `wanted` (a value somewhere in it) finds."""
        with closing(sqlite3.connect(self.folder / "store" / f"{service}.sqlite3")) as connection:
            rows = connection.execute(f'SELECT id, document FROM "records_{collection}"').fetchall()
            ((row, document),) = [(row, json.loads(text)) for row, text in rows if wanted in _text(text)]
            change(document)
            connection.execute(
                f'UPDATE "records_{collection}" SET document = ?, f_status = ? WHERE id = ?'
                if collection == "runs"
                else f'UPDATE "records_{collection}" SET document = ? WHERE id = ?',
                (json.dumps(document), document["status"], row)
                if collection == "runs"
                else (json.dumps(document), row),
            )
            connection.commit()

    def seen(self) -> Seen:
        return self.recorded.watchers[0]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("judged")
    journal, recorded, talk = folder / "starts.jsonl", Recorded(), conversation()
    journal.touch()
    with mesh_of(journal, Means(folder, ttl=5.0, replicas=1), None) as mesh, mesh.client() as client:
        agent = save_agent(client)
        runs = [start(client, agent, {"n": 4, "rate": 20}, talk)]
        watch(client, runs[0])
        for said in ("hello", "and again"):
            runs.append(start(client, agent, said, talk))
            watch(client, runs[-1])
        seen = recorded.new_watcher(runs[0])
        with client.stream("GET", f"/api/v1/runs/{runs[0]}/events/stream") as response:
            for frame in frames(response):
                seen.take(frame.raw)
        cleared = client.post("/api/v1/sessions/clear", json={"agent_id": agent, "conversation_id": talk})
        recorded.cleared(talk, cleared.json()["data"])
        runs.append(start(client, agent, "anew", talk))
        watch(client, runs[-1])
        stored = StoredMesh(mesh.data_dir)
        poll_until(lambda: not stored.unsettled(), "everything to come to its end")
        recorded.cancelled(runs[0], None, stored)
    return Scene(folder / "mesh", journal, recorded, runs)


@pytest.fixture
def scene(played: Scene, tmp_path: Path) -> Scene:
    shutil.copytree(played.folder / "store", tmp_path / "store")
    journal = tmp_path / "starts.jsonl"
    shutil.copy(played.journal, journal)
    recorded = Recorded(ends=dict(played.recorded.ends), clears=dict(played.recorded.clears))
    (seen,) = played.recorded.watchers
    recorded.watchers.append(Seen(seen.run_id, seen.over, dict(seen.frames), seen.last, seen.last_type))
    return Scene(tmp_path, journal, recorded, played.runs)


def test_nothing_is_wrong_with_what_was_not_touched(scene: Scene) -> None:
    assert scene.wrong() == []


def _text(document: bytes | str) -> str:
    return document.decode() if isinstance(document, bytes) else document


def _last_index(scene: Scene) -> int:
    return StoredMesh(scene.folder).segments(scene.runs[0])[-1].index


def _again(scene: Scene, *, index: int, generation: int) -> None:
    """The last segment of the first run, once more."""
    columns = "run_id, first_sequence, last_sequence, nonce, state, events"
    scene.sql(
        "runs",
        f"INSERT INTO segments ({columns}, number, run_generation) SELECT {columns}, ?, ? FROM segments WHERE run_id = ? AND number = ?",
        index,
        generation,
        scene.runs[0],
        _last_index(scene),
    )


def _gap(scene: Scene) -> None:
    scene.sql("runs", "DELETE FROM segments WHERE run_id = ? AND number = 2", scene.runs[0])


def _second_terminal(scene: Scene) -> None:
    _again(scene, index=_last_index(scene) + 1, generation=1)


def _no_terminal(scene: Scene) -> None:
    scene.sql("runs", "DELETE FROM segments WHERE run_id = ? AND number = ?", scene.runs[0], _last_index(scene))


def _old_generation(scene: Scene) -> None:
    scene.sql("runs", "UPDATE segments SET run_generation = 2 WHERE run_id = ? AND number = 1", scene.runs[0])


def _no_seal(scene: Scene) -> None:
    index = _last_index(scene)
    scene.sql("runs", "UPDATE segments SET run_generation = 2 WHERE run_id = ? AND number = ?", scene.runs[0], index)


def _never_ended(scene: Scene) -> None:
    scene.change("runs", "runs", scene.runs[0], lambda run: run.update(status="running"))


def _other_end(scene: Scene) -> None:
    scene.change("runs", "runs", scene.runs[0], lambda run: run.update(status="failed"))


def _turned_around(scene: Scene) -> None:
    scene.change("runs", "runs", scene.runs[0], lambda run: run.update(turn=2))
    scene.change("runs", "runs", scene.runs[1], lambda run: run.update(turn=1))


def _same_turn(scene: Scene) -> None:
    scene.change("runs", "runs", scene.runs[1], lambda run: run.update(turn=1))


def _slot_held(scene: Scene) -> None:
    scene.change("sessions", "bindings", '"epoch":2', lambda binding: binding.update(active={"run_id": scene.runs[0]}))


def _epoch_skipped(scene: Scene) -> None:
    scene.change("sessions", "bindings", '"epoch":2', lambda binding: binding.update(epoch=3))


def _second_binding(scene: Scene) -> None:
    scene.sql(
        "sessions",
        "INSERT INTO records_bindings (key, rev, document, f_binding_id) SELECT 'another', rev, document, 'another' FROM records_bindings",
    )


def _lost_head(scene: Scene) -> None:
    scene.change("sessions", "bindings", '"epoch":2', lambda binding: binding["head"].update(revision=7))


def _lost_version(scene: Scene) -> None:
    scene.sql("catalog", "DELETE FROM records_agent_versions")


def _started_twice(scene: Scene) -> None:
    scene.journal.write_text(scene.journal.read_text("utf-8") * 2, "utf-8")


def _never_started(scene: Scene) -> None:
    scene.journal.write_text("", "utf-8")


def _answered_twice(scene: Scene) -> None:
    for run_id in scene.runs[:2]:
        scene.change("runs", "runs", run_id, lambda run: run.update(resumed_from=scene.runs[3]))


def _ended_as_if_asked(scene: Scene) -> None:
    asked = WatchRunResponse.FromString(_packed(scene))
    asked.events[-1].payload.run_interrupted.interrupt_id = "interrupt-1"
    scene.sql(
        "runs", "UPDATE segments SET events = ? WHERE run_id = ? AND number = ?",
        asked.SerializeToString(), scene.runs[0], _last_index(scene),
    )  # fmt: skip


def _packed(scene: Scene) -> bytes:
    with closing(sqlite3.connect(scene.folder / "store" / "runs.sqlite3")) as connection:
        statement = "SELECT events FROM segments WHERE run_id = ? AND number = ?"
        return connection.execute(statement, (scene.runs[0], _last_index(scene))).fetchone()[0]


def _unknown_run(scene: Scene) -> None:
    scene.recorded.run_of(("talk", "key"), "run_that_is_not_there")


def _grown(scene: Scene) -> None:
    scene.recorded.ends[scene.runs[0]] -= 1


def _other_bytes(scene: Scene) -> None:
    other = scene.recorded.new_watcher(scene.runs[0])
    other.frames = {2: scene.seen().frames[2] + b" "}


def _other_event(scene: Scene) -> None:
    other = scene.recorded.new_watcher(scene.runs[0], over="grpc")
    other.frames = {2: b"something else"}


def _more_than_the_log(scene: Scene) -> None:
    scene.seen().last += 1


def _skipped(scene: Scene) -> None:
    other = scene.recorded.new_watcher(scene.runs[0])
    for sequence in (1, 3):
        other.take(scene.seen().frames[sequence])


def _after_the_end(scene: Scene) -> None:
    frame = scene.seen().frames[1]
    scene.seen().take(frame.replace(b"id: 1\n", b"id: %d\n" % (scene.seen().last + 1)))


DAMAGE = [
    (_gap, "I7"), (_second_terminal, "I9"), (_no_terminal, "I9"), (_old_generation, "I10"), (_no_seal, "I10"), (_never_ended, "I9"),
    (_other_end, "I9"), (_turned_around, "I6"), (_same_turn, "I6"), (_slot_held, "I9"), (_epoch_skipped, "I5"), (_second_binding, "I3"),
    (_lost_head, "I30"), (_lost_version, "I15"), (_started_twice, "I11"), (_answered_twice, "I24"), (_ended_as_if_asked, "I24"),
    (_never_started, "I11"), (_unknown_run, "I33"), (_grown, "I12"),
    (_other_bytes, "I8"), (_other_event, "I8"), (_more_than_the_log, "I8"), (_skipped, "I7"), (_after_the_end, "I9"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "invariant"), DAMAGE, ids=[damage.__name__.strip("_") for damage, _ in DAMAGE])
def test_damage_is_named(scene: Scene, damage: Callable[[Scene], None], invariant: str) -> None:
    damage(scene)
    wrong = scene.wrong()
    assert any(f"{invariant}:" in each for each in wrong), wrong


def test_i6_i12_i15_i24_wrong_answers_are_named() -> None:
    recorded = Recorded(point=4)
    for run_id in ("run_a", "run_b"):
        recorded.run_of(("talk", "key"), run_id)
        recorded.saved("agent", 1, run_id)
        recorded.resumed("run_0", "yes", run_id)
    assert [wrong.split(":")[0] for wrong in recorded.wrong] == ["I6", "I15", "I24"]
    assert all("after point 4" in wrong for wrong in recorded.wrong)
