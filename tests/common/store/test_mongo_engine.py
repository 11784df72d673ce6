"""The MongoDB engine: lost and refused answers, a server that dies, bounds, and what is never told (I18, I32, I34, I35)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Generator

import pytest
from pymongo import AsyncMongoClient

from services.common.store import (
    BY_KEY,
    Collection,
    DuplicateKey,
    Index,
    RecordStore,
    StoreFull,
    StoreOptions,
    StoreRefused,
    StoreUnavailable,
    mongo_engine,
    open_record_store,
)
from tests.support import mongodb
from tests.support.mongo_wire import Answer, Wire, wire

BY_NAME = Index("by_name", ("name",), unique=True)
THINGS = Collection("things", (BY_NAME,), blobs=True)
PATIENT = StoreOptions("tests", timeout_seconds=60)
BRIEF = StoreOptions("tests", timeout_seconds=1)
RECOVERED_SECONDS = 90


@pytest.fixture(scope="module")
def server() -> Generator[mongodb.Server]:
    server = mongodb.own_server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def line(server: mongodb.Server) -> AsyncIterator[Wire]:
    async with wire(server.address) as line:
        yield line


@pytest.fixture
async def store(line: Wire, request: pytest.FixtureRequest) -> AsyncIterator[RecordStore]:
    store = await open_record_store(url_of(line.address, request.node.name), [THINGS], PATIENT)
    line.commands.clear()
    yield store
    line.on_answer = None
    await store.close()


def url_of(address: str, name: str) -> str:
    """A database of the test; the address itself, not the names the members of a set have for each other."""
    return f"mongodb://{address}/{name[:30].replace('[', '-')}?directConnection=true"


def lose(*commands: str):
    return lambda command, answer: None if command in commands else answer


def refuse(command: str, code: int, message: str):
    def refused(asked: str, answer: Answer) -> Answer:
        return {"ok": 0.0, "code": code, "errmsg": message} if asked == command else answer

    return refused


async def test_i34_a_lost_answer_leaves_open_whether_it_was_written(server: mongodb.Server, line: Wire) -> None:
    store = await open_record_store(url_of(line.address, "lost"), [THINGS], BRIEF)
    line.on_answer = lose("insert", "update", "delete")
    with pytest.raises(StoreUnavailable):
        await store.insert(THINGS, "k", {"name": "n"}, b"blob")
    line.on_answer = None
    # The caller's repetition finds what it had written itself.
    with pytest.raises(DuplicateKey) as caught:
        await store.insert(THINGS, "k", {"name": "n"}, b"blob")
    assert caught.value.index == BY_KEY.name
    line.on_answer = lose("update")
    with pytest.raises(StoreUnavailable):
        await store.compare_and_set(THINGS, "k", 1, {"name": "changed"})
    line.on_answer = None
    assert await store.compare_and_set(THINGS, "k", 1, {"name": "changed"}) is False
    record = await store.get(THINGS, "k")
    assert record is not None
    assert record.document == {"name": "changed", "rev": 2}
    await store.close()


async def test_i34_a_write_that_no_majority_acknowledged_is_not_durable(store: RecordStore, line: Wire) -> None:
    def unsure(command: str, answer: Answer) -> Answer:
        trouble = {"code": 64, "codeName": "WriteConcernTimeout", "errmsg": "waiting for replication timed out"}
        return {**answer, "writeConcernError": trouble} if command in ("insert", "update", "delete") else answer

    line.on_answer = unsure
    with pytest.raises(StoreUnavailable):
        await store.insert(THINGS, "alone", {"name": "alone"})
    together = await asyncio.gather(
        *(store.insert(THINGS, f"k{number}", {"name": f"n{number}"}) for number in range(20)), return_exceptions=True
    )
    assert {type(result) for result in together} == {StoreUnavailable}
    with pytest.raises(StoreUnavailable):
        await store.compare_and_set(THINGS, "k1", 1, {"name": "other"})
    with pytest.raises(StoreUnavailable):
        await store.delete(THINGS, "k2")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (10107, "not primary"),
        (91, "the server is shutting down"),
        (11600, "interrupted at shutdown"),
        (50, "operation exceeded time limit"),
        (262, "ExceededTimeLimit"),
        (13, "not authorized on harness to execute command"),
        (1, "internal error"),
    ],
)
async def test_i34_a_server_in_trouble_is_unavailable(line: Wire, code: int, message: str) -> None:
    store = await open_record_store(url_of(line.address, f"trouble{code}"), [THINGS], BRIEF)
    for command, call in (
        ("insert", lambda: store.insert(THINGS, "k", {"name": "n"})),
        ("update", lambda: store.compare_and_set(THINGS, "k", 1, {"name": "n"})),
        ("find", lambda: store.get(THINGS, "k")),
        ("find", lambda: store.query(THINGS, BY_KEY)),
        ("find", store.check),
    ):
        line.on_answer = refuse(command, code, message)
        with pytest.raises(StoreUnavailable):
            await call()
        line.on_answer = None
    await store.check()
    await store.close()


@pytest.mark.parametrize(
    ("code", "message"),
    [(14031, "available disk space of 1 byte is less than required minimum"), (8000, "you are over your space quota")],
)
async def test_i34_a_full_server_says_so(store: RecordStore, line: Wire, code: int, message: str) -> None:
    line.on_answer = refuse("insert", code, message)
    with pytest.raises(StoreFull):
        await store.insert(THINGS, "k", {"name": "n"})
    line.on_answer = refuse("update", code, message)
    with pytest.raises(StoreFull):
        await store.compare_and_set(THINGS, "k", 1, {"name": "n"})


async def test_i18_an_error_tells_no_value_of_a_document(store: RecordStore, line: Wire) -> None:
    await store.insert(THINGS, "k", {"name": "canary"})
    with pytest.raises(DuplicateKey) as duplicate:
        await store.insert(THINGS, "other", {"name": "canary"})
    assert "canary" not in str(duplicate.value)

    def talkative(command: str, answer: Answer) -> Answer:
        return {"ok": 0.0, "code": 1, "errmsg": "internal error", "keyValue": {"name": "canary"}}

    line.on_answer = talkative
    with pytest.raises(StoreUnavailable) as caught:
        await store.check()
    assert "canary" not in str(caught.value)


async def test_inserts_that_wait_travel_together(store: RecordStore, line: Wire) -> None:
    await asyncio.gather(*(store.insert(THINGS, f"k{number}", {"name": f"n{number}"}) for number in range(100)))
    assert set(line.commands) == {"insert"}
    assert len(line.commands) <= 3
    assert await store.count(THINGS, BY_KEY) == 100


async def test_a_refused_insert_harms_none_of_its_company(store: RecordStore) -> None:
    await store.insert(THINGS, "k7", {"name": "taken"})
    results = await asyncio.gather(
        *(store.insert(THINGS, f"k{number}", {"name": f"n{number}"}) for number in range(20)), return_exceptions=True
    )
    assert isinstance(results.pop(7), DuplicateKey)
    assert results == [None] * 19


async def test_a_call_is_one_question(store: RecordStore, line: Wire) -> None:
    await store.insert(THINGS, "k", {"name": "n"}, b"blob")
    await store.compare_and_set(THINGS, "k", 1, {"name": "m"})
    await store.get(THINGS, "k")
    await store.get_blob(THINGS, "k")
    await store.find(THINGS, BY_NAME, ("m",))
    await store.query(THINGS, BY_NAME, limit=1000)
    await store.delete(THINGS, "k")
    assert line.commands == ["insert", "update", "find", "find", "find", "find", "delete"]


async def test_i35_calls_that_wait_are_bounded(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo_engine, "MAX_CALLS", 5)
    results = await asyncio.gather(*(store.get(THINGS, "k") for _ in range(8)), return_exceptions=True)
    assert results[:5] == [None] * 5
    assert {type(result) for result in results[5:]} == {StoreUnavailable}
    assert await store.get(THINGS, "k") is None


async def test_a_cancelled_caller_costs_no_connection(line: Wire) -> None:
    options = StoreOptions("tests", pool_size=1, timeout_seconds=60)
    store = await open_record_store(url_of(line.address, "cancelled"), [THINGS], options)
    await store.insert(THINGS, "k", {"name": "n"})
    asked = asyncio.Event()

    def note(command: str, answer: Answer) -> Answer:
        asked.set()
        return answer

    line.on_answer = note
    connections = line.connections
    waiting = asyncio.ensure_future(store.compare_and_set(THINGS, "k", 1, {"name": "m"}))
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    record = await store.get(THINGS, "k")
    assert record is not None
    assert record.rev == 2
    assert line.connections == connections
    await store.close()


async def test_a_cancelled_caller_leaves_no_error_behind(line: Wire) -> None:
    options = StoreOptions("tests", pool_size=1, timeout_seconds=60)
    store = await open_record_store(url_of(line.address, "unheard"), [THINGS], options)
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    asked = asyncio.Event()

    def fail(command: str, answer: Answer) -> Answer:
        asked.set()
        return {"ok": 0.0, "code": 1, "errmsg": "internal error"}

    line.on_answer = fail
    waiting = asyncio.ensure_future(store.compare_and_set(THINGS, "k", 1, {"name": "m"}))
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del waiting
    line.on_answer = None
    await store.check()  # on the one connection, so what went on without its caller has ended
    gc.collect()
    assert unheard == []
    await store.close()


async def test_close_waits_for_calls_that_have_no_connection_yet(line: Wire) -> None:
    options = StoreOptions("tests", pool_size=1, timeout_seconds=60)
    store = await open_record_store(url_of(line.address, "closing"), [THINGS], options)
    await store.insert(THINGS, "k", {"name": "n"})
    asked, go = asyncio.Event(), asyncio.Event()

    async def hold(command: str, answer: Answer) -> Answer:
        asked.set()
        await go.wait()
        return answer

    line.on_answer = hold
    writes = [
        asyncio.ensure_future(store.compare_and_set(THINGS, "k", 1, {"name": f"m{number}"})) for number in range(3)
    ]
    await asked.wait()
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await store.get(THINGS, "k")
    go.set()
    assert sorted(await asyncio.gather(*writes)) == [False, False, True]
    await closing


async def test_a_record_prolonged_meanwhile_does_not_expire(line: Wire) -> None:
    leases = Collection("leases", expires="until")
    store = await open_record_store(url_of(line.address, "prolonged"), [leases], PATIENT)
    for key in ("k1", "k2"):
        await store.insert(leases, key, {"until": 10})

    async def prolong(command: str, answer: Answer) -> Answer:
        if command == "find":
            line.on_answer = None
            assert await store.compare_and_set(leases, "k1", 1, {"until": 20})
        return answer

    line.on_answer = prolong
    assert await store.delete_expired(leases, 10) == 1
    assert await store.get(leases, "k1") is not None
    assert await store.get(leases, "k2") is None
    await store.close()


async def test_i32_nobody_there_stops_the_start_and_tells_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreRefused) as caught:
        await open_record_store("mongodb://someone:canary@127.0.0.1:1/db", [THINGS], BRIEF)
    assert "no MongoDB server that takes writes answered at mongodb://127.0.0.1:1/db within 1 s" in str(caught.value)
    said = capsys.readouterr()
    assert "canary" not in f"{caught.value!r}{caught.value.__context__!r}{said.out}{said.err}"


@pytest.mark.parametrize(
    ("code", "says"), [(18, "does not accept the user"), (13, "the role readWrite"), (8000, "no room left")]
)
async def test_i32_a_server_that_refuses_the_user_stops_the_start(line: Wire, code: int, says: str) -> None:
    line.on_answer = refuse("listIndexes", code, "over your space quota" if code == 8000 else "no")
    with pytest.raises((StoreRefused, StoreFull), match=says):
        await open_record_store(url_of(line.address, "refused"), [THINGS], BRIEF)


async def test_a_single_server_is_named_as_what_it_is(
    server: mongodb.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    url = url_of(server.address, "single")
    async with AsyncMongoClient(url) as client:
        is_set = "setName" in await client.admin.command("hello")
    store = await open_record_store(url, [THINGS], PATIENT)
    await store.close()
    said = capsys.readouterr()
    assert ("store_not_replicated" in said.out + said.err) is not is_set


async def test_i34_the_store_comes_back_without_a_restart() -> None:
    server = mongodb.own_server()
    server.start()
    try:
        store = await open_record_store(url_of(server.address, "back"), [THINGS], BRIEF)
        await store.insert(THINGS, "k", {"name": "n"})
        server.kill()
        for call in (store.check(), store.get(THINGS, "k"), store.insert(THINGS, "l", {"name": "l"})):
            with pytest.raises(StoreUnavailable):
                await call
        server.start()
        async with asyncio.timeout(RECOVERED_SECONDS):
            while True:
                try:
                    record = await store.get(THINGS, "k")
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
        assert record is not None
        assert await store.compare_and_set(THINGS, "k", 1, {"name": "m"}) is True
        server.kill()
        await store.close()
    finally:
        server.stop()


async def count_up(store: RecordStore, key: str, acknowledged: dict[str, int]) -> None:
    """Insert a counter and raise it until the store is away."""
    await store.insert(THINGS, key, {"name": key, "count": 1})
    acknowledged[key] = 1
    while True:
        rev = acknowledged[key]
        assert await store.compare_and_set(THINGS, key, rev, {"name": key, "count": rev + 1})
        acknowledged[key] = rev + 1


async def test_i34_a_killed_server_has_every_acknowledged_record() -> None:
    server = mongodb.own_server()
    server.start()
    try:
        url = url_of(server.address, "killed")
        store = await open_record_store(url, [THINGS], BRIEF)
        acknowledged: dict[str, int] = {}
        lanes = [asyncio.ensure_future(count_up(store, f"k{number}", acknowledged)) for number in range(8)]
        async with asyncio.timeout(RECOVERED_SECONDS):
            while sum(acknowledged.values()) < 60:
                assert not any(lane.done() for lane in lanes)
                await asyncio.sleep(0.01)
        server.kill()
        results = await asyncio.gather(*lanes, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}
        await store.close()
        server.start()
        store = await open_record_store(url, [THINGS], PATIENT)
        for key, rev in acknowledged.items():
            record = await store.get(THINGS, key)
            assert record is not None
            # The write that was under way may be there, none that was acknowledged is missing.
            assert record.rev in (rev, rev + 1)
            assert record.document == {"name": key, "count": record.rev, "rev": record.rev}
        await store.close()
    finally:
        server.stop()
