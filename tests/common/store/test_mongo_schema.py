"""What opening does to a database that an older, different or newer release has written (I32)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

from services.common.store import (
    BY_KEY,
    Collection,
    DuplicateKey,
    Index,
    RecordStore,
    StoreOptions,
    StoreRefused,
    open_record_store,
)
from tests.support import mongodb

PATIENT = StoreOptions("tests", timeout_seconds=60)


class Versions:
    """The same database under changing declarations of one collection."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, *indexes: Index, expires: str | None = None) -> RecordStore:
        self.collection = Collection("things", indexes, expires=expires)
        return await open_record_store(self.url, [self.collection], PATIENT)


@pytest.fixture
def versions() -> Iterator[Versions]:
    with mongodb.database() as url:
        yield Versions(url)


@pytest.fixture
async def raw(versions: Versions) -> AsyncIterator[AsyncDatabase[dict[str, Any]]]:
    async with AsyncMongoClient[dict[str, Any]](versions.url) as client:
        yield client.get_default_database()


async def index_names(raw: AsyncDatabase[dict[str, Any]], collection: str = "tests_things") -> set[str]:
    return {index["name"] async for index in await raw[collection].list_indexes()}


def without_digest(names: set[str]) -> list[str]:
    return sorted(name.rpartition("_")[0] or name for name in names)


async def test_indexes_are_made_and_changed_as_declared(
    versions: Versions, raw: AsyncDatabase[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    store = await versions.open(Index("one", ("a",)), Index("two", ("b",), sparse=True), expires="until")
    for number in range(3):
        await store.insert(versions.collection, f"k{number}", {"a": 1, "b": number, "until": number})
    await store.close()
    assert without_digest(await index_names(raw)) == ["_id", "expires", "one", "two"]

    # `one` becomes (b, a) and unique, `two` and the expiry are gone.
    one = Index("one", ("b", "a"), unique=True)
    store = await versions.open(one)
    assert [record.key for record in (await store.query(versions.collection, one)).records] == ["k0", "k1", "k2"]
    with pytest.raises(DuplicateKey, match="one"):
        await store.insert(versions.collection, "k3", {"a": 1, "b": 0})
    await store.insert(versions.collection, "k3", {"a": 1, "b": 3})
    await store.close()
    # A replica of the release before may still need its own, so they stay and are named.
    assert without_digest(await index_names(raw)) == ["_id", "expires", "one", "one", "two"]
    assert capsys.readouterr().out.count("store_index_undeclared") == 3


async def test_going_back_to_the_release_before_finds_what_the_newer_one_wrote(versions: Versions) -> None:
    by_a = Index("by_a", ("a",))
    store = await versions.open(by_a)
    await store.insert(versions.collection, "k0", {"a": 1})
    await store.close()
    store = await versions.open(Index("by_b", ("b",), sparse=True))
    await store.insert(versions.collection, "k1", {"a": 2})
    await store.close()
    store = await versions.open(by_a)
    assert [record.key for record in (await store.query(versions.collection, by_a)).records] == ["k0", "k1"]
    await store.close()


async def test_i32_records_that_do_not_fit_a_new_index_stop_the_start(versions: Versions) -> None:
    store = await versions.open()
    await store.insert(versions.collection, "k1", {"a": "same"})
    await store.insert(versions.collection, "k2", {"a": "same"})
    await store.insert(versions.collection, "k3", {"b": 1})
    await store.close()
    with pytest.raises(StoreRefused, match="break a unique index"):
        await versions.open(Index("by_a", ("a",), unique=True, sparse=True))
    with pytest.raises(StoreRefused, match="record 'k3' lacks field 'a'"):
        await versions.open(Index("by_a", ("a",)))
    store = await versions.open()
    assert await store.count(versions.collection, BY_KEY) == 3
    await store.close()


async def test_i32_a_database_of_a_newer_release_is_refused(
    versions: Versions, raw: AsyncDatabase[dict[str, Any]]
) -> None:
    await (await versions.open()).close()
    await raw["tests_layout"].update_one({"_id": "things"}, {"$set": {"layout": 2}})
    with pytest.raises(StoreRefused, match=r"written by a newer release \(layout 2"):
        await versions.open()


async def test_services_that_share_a_database_do_not_meet(versions: Versions) -> None:
    things = Collection("things")
    one = await open_record_store(versions.url, [things], StoreOptions("one", timeout_seconds=60))
    two = await open_record_store(versions.url, [things], StoreOptions("two", timeout_seconds=60))
    await one.insert(things, "k", {"of": "one"})
    assert await two.get(things, "k") is None
    await two.insert(things, "k", {"of": "two"})
    await one.close()
    await two.close()


async def test_what_expires_by_itself_is_left_to_the_server_where_it_can(
    versions: Versions, raw: AsyncDatabase[dict[str, Any]]
) -> None:
    leases = Collection("leases", expires="forget_at", expires_by_itself=True)
    store = await open_record_store(versions.url, [leases], PATIENT)
    far = 4_102_444_800_000  # the year 2100 in Unix milliseconds
    await store.insert(leases, "past", {"forget_at": far})
    await store.insert(leases, "future", {"forget_at": far + 1})
    await store.insert(leases, "never", {"forget_at": None})
    found = {index["name"]: index async for index in await raw["tests_leases"].list_indexes()}
    try:
        await raw["elsewhere"].create_index("at", expireAfterSeconds=0)
        assert found["expires_by_itself"]["expireAfterSeconds"] == 0
    except OperationFailure as error:
        assert error.code == 238  # noqa: PT017 - a server without such indexes
        assert set(found) == {"_id_", "expires"}
    # The services' own sweep finds them either way.
    assert await store.delete_expired(leases, far) == 1
    assert await store.get(leases, "past") is None
    assert await store.count(leases, BY_KEY) == 2
    await store.close()


@pytest.mark.parametrize("name", ["layout", "things"])
async def test_two_collections_of_one_name_are_a_mistake(name: str) -> None:
    with pytest.raises(ValueError, match="two collections"):
        await open_record_store("mongodb://127.0.0.1:1", [Collection("things"), Collection(name, blobs=True)], PATIENT)
