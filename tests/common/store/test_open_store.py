"""Store addresses, and what opening does to a file that an older or different release has written (I32)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from services.common.store import (
    BY_KEY,
    Collection,
    DuplicateKey,
    Index,
    StoreRefused,
    open_record_store,
)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mongodb://", "write mongodb://"),
        ("mongodb://user:secret@", "write mongodb://"),
        ("mongodb://user:secret@host/a.b", "a database is named with"),
        ("mongodb://user:secret@host/db?w=1", "option w can only be majority"),
        ("mongodb://user:secret@host/db?journal=false", "option journal can only be true"),
        ("mongodb://user:secret@host/db?readPreference=nearest", "option readPreference can only be primary"),
        ("mongodb://user:secret@host/db?maxPoolSize=1000", "HARNESS_STORE_POOL_SIZE"),
        ("mongodb://user:sec@ret@host/db", "%XX"),
        ("mongodb://user:secret@host:port/db", "%XX"),
        ("mongodb://user:secret@host/db?authMechanism=magic", "options as"),
        ("mongodb://user:secret@host/db?tls=perhaps", "options as"),
        ("postgres://user:secret@host/db", "unknown kind 'postgres'"),
        ("/just/a/path", "unknown kind ''"),
        ("", "unknown kind ''"),
        ("sqlite:", "sqlite:///absolute"),
        ("sqlite:///", "sqlite:///absolute"),
        ("sqlite://relative/path", "sqlite:///absolute"),
        ("sqlite:relative", "sqlite:///absolute"),
        ("sqlite:///file?mode=memory", "sqlite:///absolute"),
    ],
)
async def test_i32_an_address_that_names_no_store_is_refused(url: str, says: str) -> None:
    with pytest.raises(StoreRefused) as caught:
        await open_record_store(url, [])
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_an_address_may_have_escaped_characters(tmp_path: Path) -> None:
    store = await open_record_store(f"sqlite://{tmp_path}/my%20records%3f.db", [])
    await store.check()
    await store.close()
    assert (tmp_path / "my records?.db").exists()


async def test_two_collections_of_one_name_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two collections"):
        await open_record_store(f"sqlite://{tmp_path}/a.db", [Collection("a"), Collection("a", blobs=True)])


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Collection("Upper"),
        lambda: Collection(""),
        lambda: Collection("a", (Index("x", ("f",)), Index("x", ("g",)))),
        lambda: Collection("a", (Index("key", ("f",)),)),
        lambda: Collection("a", (Index("x", ("f",), unique=True), Index("y", ("f",), unique=True))),
        lambda: Collection("a", expires="a b"),
        lambda: Index("x", ()),
        lambda: Index("x", ("f", "f")),
        lambda: Index("x", ("rev",)),
        lambda: Index("x", ('f"; DROP TABLE a',)),
    ],
)
def test_a_wrong_declaration_is_refused(declare) -> None:
    with pytest.raises(ValueError, match=r"."):
        declare()


class Versions:
    """The same file under changing declarations of one collection."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def open(self, *indexes: Index, expires: str | None = None):
        self.collection = Collection("things", indexes, expires=expires)
        return await open_record_store(f"sqlite://{self.path}", [self.collection])

    def indexes(self) -> list[str]:
        connection = sqlite3.connect(self.path)
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")]
        connection.close()
        return sorted(name.removeprefix("records_things.") for name in names)


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "records.db")


async def test_indexes_are_made_changed_and_dropped_as_declared(versions: Versions) -> None:
    store = await versions.open(Index("one", ("a",)), Index("two", ("b",), sparse=True), expires="until")
    for number in range(3):
        await store.insert(versions.collection, f"k{number}", {"a": 1, "b": number, "until": number})
    await store.close()
    assert versions.indexes() == [".expires", "key", "one", "two"]

    # `one` becomes (b, a) and unique, `two` and the expiry are gone.
    one = Index("one", ("b", "a"), unique=True)
    store = await versions.open(one)
    assert versions.indexes() == ["key", "one"]
    assert [record.key for record in (await store.query(versions.collection, one)).records] == ["k0", "k1", "k2"]
    with pytest.raises(DuplicateKey, match="one"):
        await store.insert(versions.collection, "k3", {"a": 1, "b": 0})
    await store.close()


async def test_opening_again_changes_nothing(versions: Versions) -> None:
    def schema() -> tuple[int]:
        connection = sqlite3.connect(versions.path)
        row = connection.execute("PRAGMA schema_version").fetchone()
        connection.close()
        return row

    for _ in range(2):
        store = await versions.open(Index("one", ("a",)), Index("two", ("b",), sparse=True), expires="until")
        await store.close()
        before = schema()
        store = await versions.open(Index("one", ("a",)), Index("two", ("b",), sparse=True), expires="until")
        await store.close()
        assert schema() == before


async def test_i32_records_that_do_not_fit_a_new_index_stop_the_start(versions: Versions) -> None:
    store = await versions.open()
    await store.insert(versions.collection, "k1", {"a": "same"})
    await store.insert(versions.collection, "k2", {"a": "same"})
    await store.insert(versions.collection, "k3", {"b": 1})
    await store.close()
    with pytest.raises(StoreRefused, match="break unique index"):
        await versions.open(Index("by_a", ("a",), unique=True, sparse=True))
    with pytest.raises(StoreRefused, match="record 'k3' lacks field 'a'"):
        await versions.open(Index("by_a", ("a",)))
    store = await versions.open()  # nothing was half changed
    assert await store.count(versions.collection, BY_KEY) == 3
    await store.close()
    assert versions.indexes() == ["key"]
