"""Saves that race, crash and meet each other: pointer and versions never diverge (I15), a stale save writes nothing (I16)."""

import asyncio
import itertools
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.catalog.publish import Content, Published, Publisher
from services.catalog.store import COLLECTIONS, CatalogStore
from services.common.errors import HarnessError, Reason
from services.common.store import open_record_store
from tests.catalog.conftest import Host, Start
from tests.catalog.processes import AVAILABLE, Catalog, Client, blueprint, operator, refused, until

STEPS = ("agent", "version", "insert_agent", "replace_agent", "insert_version", "replace_version")


def content(name: str) -> Content:
    return Content("writer", name, "toy", {"id": "writer", "name": name}, f"fp-{name}", "cat_1")


class Stepped:
    """The real store, each of whose calls waits until the scheduler lets it go."""

    def __init__(self, store: CatalogStore, gate: Callable[[], Any]) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        assert name in STEPS
        inner = getattr(self._store, name)

        async def call(*args: Any) -> Any:
            await self._gate()
            return await inner(*args)

        return call


class Actor:
    """One save or disable of one process, advanced by one store call at a time."""

    def __init__(self, store: CatalogStore, number: int, act: Callable[[Publisher], Any]) -> None:
        self.waiting: asyncio.Future[None] | None = None
        self.arrived = asyncio.Event()
        publisher = Publisher(cast(CatalogStore, Stepped(store, self._gate)), lambda: 1000, lambda: f"nonce-{number}")
        self.task = asyncio.create_task(act(publisher))
        self.task.add_done_callback(lambda _: self.arrived.set())

    async def _gate(self) -> None:
        self.waiting = asyncio.get_running_loop().create_future()
        self.arrived.set()
        await self.waiting

    async def advance(self) -> None:
        """Lets the next store call happen, and returns when the one after it is wanted or all is done."""
        await self.arrived.wait()
        if self.task.done():
            return
        self.arrived.clear()
        assert self.waiting is not None
        self.waiting.set_result(None)
        await self.arrived.wait()

    async def die(self) -> None:
        """Ends it between two store calls, as a killed process would."""
        self.task.cancel()
        await asyncio.wait([self.task])


async def check(store: CatalogStore) -> list[dict[str, Any]]:
    """I15 as any reader at this moment sees it; the versions."""
    agent = await store.agent("writer")
    if agent is None:
        return []
    versions = [await store.version("writer", number) for number in range(1, agent["current_version"] + 1)]
    assert all(version is not None for version in versions), "a gap"
    complete = [version for version in versions if version is not None]
    assert [version["version"] for version in complete] == list(range(1, len(complete) + 1))
    for version in complete:
        # Complete, and of one save: nothing of one mixed with another.
        assert version["config_fingerprint"] == f"fp-{version['name']}" == f"fp-{version['blueprint']['name']}"
    assert agent["name"] == complete[-1]["name"], "the pointer tells of another version"
    nonces = [version["nonce"] for version in complete]
    assert len(set(nonces)) == len(nonces), "one save made two versions"
    return complete


async def save_first(folder: Path) -> tuple[Any, CatalogStore]:
    records = await open_record_store(f"sqlite://{folder}/s.sqlite3", COLLECTIONS)
    store = CatalogStore(records)
    await Publisher(store, lambda: 1, lambda: "nonce-first").save(content("first"), None)
    return records, store


def saving(name: str, expected: int | None = None) -> Callable[[Publisher], Any]:
    return lambda publisher: publisher.save(content(name), expected)


async def finish(store: CatalogStore, *actors: Actor) -> list[str]:
    for actor in actors:
        while not actor.task.done():
            await actor.advance()
            await check(store)
    return [version["name"] for version in await check(store)]


async def test_i15_a_half_made_for_a_later_revision_is_not_taken_over(tmp_path: Path) -> None:
    records, store = await save_first(tmp_path)
    late = Actor(store, 1, saving("late"))
    for _ in range(2):  # has read the pointer and the current version
        await late.advance()
    await finish(store, Actor(store, 2, lambda publisher: publisher.disable("writer")))
    ahead = Actor(store, 3, saving("ahead"))
    for _ in range(4):  # its version is in the slot, made for the revision after the disable; the pointer is next
        await ahead.advance()
    await late.advance()  # reads the slot, with a pointer that is out of date
    await late.advance()
    assert await finish(store, ahead, late) == ["first", "ahead", "late"]
    assert ahead.task.result().version["name"] == "ahead"
    assert late.task.result().version["version"] == 3
    await records.close()


async def test_i15_a_half_whose_pointer_moved_on_is_taken_over(tmp_path: Path) -> None:
    records, store = await save_first(tmp_path)
    dead = Actor(store, 1, saving("dead"))
    for _ in range(4):
        await dead.advance()
    await finish(store, Actor(store, 2, lambda publisher: publisher.disable("writer")))
    await dead.die()
    assert await finish(store, Actor(store, 3, saving("next"))) == ["first", "next"]
    await records.close()


async def test_i15_a_save_that_another_finished_is_answered_as_its_own(tmp_path: Path) -> None:
    records, store = await save_first(tmp_path)
    slow = Actor(store, 1, saving("slow", 1))
    for _ in range(4):  # all but the pointer
        await slow.advance()
    quick = Actor(store, 2, saving("quick"))
    assert await finish(store, quick, slow) == ["first", "slow", "quick"]
    assert slow.task.result().version["version"] == 2
    assert quick.task.result().version["version"] == 3
    await records.close()


ACTS = st.one_of(
    st.tuples(st.just("save"), st.sampled_from("abc"), st.sampled_from([None, 0, 1, 2])),
    st.tuples(st.just("disable"), st.just(""), st.none()),
)


@settings(max_examples=100)
@given(
    acts=st.lists(ACTS, min_size=2, max_size=4),
    schedule=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    deaths=st.sets(st.integers(0, 3), max_size=2),
)
def test_i15_any_interleaving_and_any_death_keeps_pointer_and_versions_together(
    acts: list[tuple[str, str, int | None]], schedule: list[tuple[int, bool]], deaths: set[int]
) -> None:
    asyncio.run(interleave(acts, schedule, deaths))


async def interleave(
    acts: list[tuple[str, str, int | None]], schedule: list[tuple[int, bool]], deaths: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = await open_record_store(f"sqlite://{folder}/s.sqlite3", COLLECTIONS)
        store = CatalogStore(records)
        seen: dict[int, dict[str, Any]] = {}
        await Publisher(store, lambda: 1, lambda: "nonce-first").save(content("first"), None)

        def act_of(kind: str, name: str, expected: int | None) -> Callable[[Publisher], Any]:
            return lambda publisher: (
                publisher.save(content(name), expected) if kind == "save" else publisher.disable("writer")
            )

        actors = [Actor(store, number, act_of(*act)) for number, act in enumerate(acts)]

        async def look() -> None:
            for version in await check(store):
                # I15: what a reader saw once, it sees for ever.
                assert seen.setdefault(version["version"], version) == version

        for number, dies in schedule:
            actor = actors[number % len(actors)]
            if dies and number in deaths:
                await actor.die()
            else:
                await actor.advance()
            await look()
        for actor in actors:
            while not actor.task.done():
                await actor.advance()
            await look()
        # Whatever is left half done, the next save goes through and is the next version, or already is the current one.
        before = await check(store)
        last = await Publisher(store, lambda: 2000, lambda: "nonce-last").save(content("z"), None)
        await look()
        assert last.version["name"] == "z"
        assert last.version["version"] >= len(before) + 1
        # A save that was answered is a version, with its own content, and nobody else's answer.
        answered: dict[int, str] = {}
        for (kind, name, _), actor in zip(acts, actors, strict=True):
            if kind == "save" and not actor.task.cancelled() and actor.task.exception() is None:
                published: Published = actor.task.result()
                assert published.version["name"] == name
                assert seen[published.version["version"]] == published.version | {
                    "rev": seen[published.version["version"]]["rev"]
                }
                assert answered.setdefault(published.version["version"], name) == name
            elif kind == "save" and not actor.task.cancelled():
                error = actor.task.exception()
                assert isinstance(error, HarnessError)
                assert error.reason is Reason.REVISION_CONFLICT
        await records.close()


@pytest.mark.parametrize(
    ("step", "existing"),
    [
        ("insert_version:before", False),
        ("insert_version:after", False),
        ("insert_agent:before", False),
        ("insert_agent:after", False),
        ("insert_version:before", True),
        ("insert_version:after", True),
        ("replace_agent:before", True),
        ("replace_agent:after", True),
    ],
)
async def test_i15_a_process_killed_at_any_step_of_a_save_leaves_a_whole_agent(
    host: Host, start: Start, folder: Path, step: str, existing: bool
) -> None:
    await host()
    client = await start()
    await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    if existing:
        await client.save(blueprint(name="First"))
    dying = Catalog(folder, "dying", {"HARNESS_TEST_KILL": step}, module="tests.catalog.crashing_catalog")
    await dying.start()
    doomed = Client(dying.address)
    try:
        await refused(Reason.UNAVAILABLE, doomed.save(blueprint(name="Second")))
    finally:
        await doomed.close()
    assert await dying.stop() == -9
    arrived = step in ("insert_agent:after", "replace_agent:after")
    base = int(existing)
    versions = base + arrived
    # Another replica, which was there all the time, and one that starts now see the same, whole agent.
    for reader in (client, await start(name="b")):
        if versions == 0:
            await refused(Reason.NOT_FOUND, reader.get())
            await refused(Reason.NOT_FOUND, reader.resolve_agent())
            assert not (await reader.list_agents()).agents
        else:
            found = await reader.get()
            assert found.record.current_version == found.version.version == versions
            assert found.record.name == found.version.blueprint.name == ("Second" if arrived else "First")
            assert [version.version for version in (await reader.versions()).versions] == list(range(versions, 0, -1))
            await refused(Reason.NOT_FOUND, reader.version(versions + 1))
            await refused(Reason.NOT_FOUND, reader.resolve_agent(version=versions + 1))
    # The client that got no answer tries the same again: there is exactly one such version.
    again = await client.save(blueprint(name="Second"), **({} if arrived else {"expected_revision": base}))
    assert again.record.current_version == again.version.version == base + 1
    third = await client.save(blueprint(name="Third"))
    assert third.version.version == base + 2
    names = [version.blueprint.name for version in (await client.versions()).versions]
    assert names == ["Third", "Second", "First"][: base + 2]


async def test_i15_another_save_finishes_a_half_and_then_takes_its_own_turn(
    host: Host, start: Start, folder: Path
) -> None:
    await host()
    client = await start()
    await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    dying = Catalog(
        folder, "dying", {"HARNESS_TEST_KILL": "insert_version:after"}, module="tests.catalog.crashing_catalog"
    )
    await dying.start()
    doomed = Client(dying.address)
    await refused(Reason.UNAVAILABLE, doomed.save(blueprint(name="Half")))
    await doomed.close()
    await dying.stop()
    saved = await client.save(blueprint(name="Other"))
    assert saved.version.version == 2
    assert [version.blueprint.name for version in (await client.versions()).versions] == ["Other", "Half"]


async def test_i15_raced_saves_on_two_replicas_give_one_version_each(host: Host, start: Start) -> None:
    await host()
    clients = [await start(name="a"), await start(name="b")]
    for client in clients:
        await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    names = [f"Name {number}" for number in range(12)]
    saved = await asyncio.gather(
        *(client.save(blueprint(name=name)) for name, client in zip(names, itertools.cycle(clients), strict=False))
    )
    assert sorted(one.version.version for one in saved) == list(range(1, 13))
    for name, one in zip(names, saved, strict=True):
        assert one.version.blueprint.name == name
        assert (await clients[0].version(one.version.version)).version == one.version
    found = await clients[1].get()
    assert found.record.current_version == 12
    assert found.record.name == found.version.blueprint.name


async def test_i15_raced_saves_based_on_one_revision_give_one_version_and_conflicts(host: Host, start: Start) -> None:
    await host()
    clients = [await start(name="a"), await start(name="b")]
    for client in clients:
        await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    answers = await asyncio.gather(
        *(
            client.save(blueprint(name=f"Name {number}"), expected_revision=0)
            for number, client in zip(range(10), itertools.cycle(clients), strict=False)
        ),
        return_exceptions=True,
    )
    refusals = [answer for answer in answers if isinstance(answer, HarnessError)]
    assert len(refusals) == 9
    assert {error.reason for error in refusals} == {Reason.REVISION_CONFLICT}
    assert (await clients[0].get()).record.current_version == 1


def stored(folder: Path) -> list[Any]:
    """Everything the catalog keeps but descriptors, as it is in the file."""
    with sqlite3.connect(f"file:{folder}/catalog.sqlite3?mode=ro", uri=True) as database:
        names = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        tables = [name for name in names if "agent" in name]
        assert tables
        return [database.execute(f"select * from {name} order by 1, 2").fetchall() for name in tables]


async def test_i16_a_stale_save_is_a_conflict_with_a_fresh_report_and_writes_nothing(
    client: Client, folder: Path
) -> None:
    report = await client.validate(blueprint())
    await client.save(blueprint(), expected_revision=0)
    before = stored(folder)
    edit = blueprint(name="Edited")
    fresh = await client.validate(edit)
    for claims, reason, field in (
        ({"expected_revision": 0}, Reason.REVISION_CONFLICT, "expected_revision"),
        ({"expected_revision": 7}, Reason.REVISION_CONFLICT, "expected_revision"),
        ({"catalog_revision": "cat_old"}, Reason.HARNESS_VALIDATION_STALE, "catalog_revision"),
        ({"config_fingerprint": report.config_fingerprint}, Reason.HARNESS_VALIDATION_STALE, "config_fingerprint"),
        (
            {"config_fingerprint": "sha256:00", "expected_revision": 1},
            Reason.HARNESS_VALIDATION_STALE,
            "config_fingerprint",
        ),
    ):
        error = await refused(reason, client.save(edit, **claims))
        assert error.details[0].path == field
        assert error.metadata["config_fingerprint"] == fresh.config_fingerprint
        assert error.metadata["catalog_revision"] == fresh.catalog_revision
        assert error.metadata["valid"] == "true"
        assert stored(folder) == before
    saved = await client.save(
        edit,
        expected_revision=1,
        catalog_revision=fresh.catalog_revision,
        config_fingerprint=fresh.config_fingerprint,
    )
    assert (saved.version.version, saved.record.revision) == (2, 2)


async def test_i16_the_servers_own_verdict_decides_whatever_the_client_claims(client: Client, folder: Path) -> None:
    bad = blueprint(harness={"id": "toy", "options": {"max_turns": 1000}})
    report = await client.validate(bad)
    claims = {"catalog_revision": report.catalog_revision, "config_fingerprint": report.config_fingerprint}
    error = await refused(Reason.INVALID_REQUEST, client.save(bad, expected_revision=0, **claims))
    assert [(issue.path, issue.code) for issue in error.details] == [
        ("blueprint.harness.options.max_turns", "out_of_range")
    ]
    assert not any(stored(folder))
    error = await refused(Reason.INVALID_REQUEST, client.save(bad | {"id": "other"} | {"id": "x/y"}))
    assert not any(stored(folder))


async def test_i16_a_catalog_that_changed_since_makes_a_save_stale(host: Host, start: Start) -> None:
    await host()
    first = await start(operator())
    await until(first.harness, lambda harness: harness.availability == AVAILABLE)
    report = await first.validate(blueprint())
    await first.catalog.stop()
    second = await start(operator(retention_profiles=["standard", "long"]), name="b")
    await until(second.harness, lambda harness: harness.availability == AVAILABLE)
    error = await refused(
        Reason.HARNESS_VALIDATION_STALE, second.save(blueprint(), catalog_revision=report.catalog_revision)
    )
    assert error.metadata["catalog_revision"] != report.catalog_revision
    await refused(Reason.NOT_FOUND, second.get())


async def test_an_error_with_many_issues_still_arrives(client: Client) -> None:
    document = blueprint(prompt={"system": "", "variables": {f"variable_{number}": "" for number in range(90)}})
    error = await refused(Reason.INVALID_REQUEST, client.save(document))
    assert 5 < len(error.details) < 90
    assert error.details[-1].code == "too_many_issues"
    error = await refused(Reason.HARNESS_VALIDATION_STALE, client.save(document, catalog_revision="cat_old"))
    assert error.details[0].path == "catalog_revision"
    assert error.details[-1].code == "too_many_issues"


async def test_a_store_that_is_away_is_a_clear_retryable_error(tmp_path: Path) -> None:
    records = await open_record_store(f"sqlite://{tmp_path}/s.sqlite3", COLLECTIONS)
    store = CatalogStore(records)
    await records.close()
    error = await refused(Reason.STORE_UNAVAILABLE, store.agent("writer"))
    assert error.retryable
    await refused(Reason.STORE_UNAVAILABLE, Publisher(store, lambda: 1, lambda: "n").save(content("a"), None))


async def test_an_error_with_many_shape_problems_arrives_too(client: Client) -> None:
    document = blueprint(tools={"bindings": [{"tool_id": " "} for _ in range(120)]})
    error = await refused(Reason.INVALID_REQUEST, client.save(document))
    assert error.details[0].path == "blueprint.tools.bindings[0].tool_id"
