"""Random histories of a store against a plain model of it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.common.store import (
    BY_KEY,
    Document,
    DuplicateKey,
    Index,
    Range,
    RecordStore,
    StoreOptions,
    open_record_store,
)
from tests.common.store.contract import BY_OWNER, BY_REQUEST, BY_STATUS, BY_TAG, THINGS
from tests.support import mongodb

KEYS = st.sampled_from([f"k{number}" for number in range(6)])
VALUES = st.one_of(st.integers(-2, 3), st.sampled_from(["", "1", "a", "ä", "\0"]))
DOCUMENTS = st.fixed_dictionaries(
    {"owner": st.sampled_from(["a", "b"]), "at": VALUES, "request": VALUES},
    optional={
        "tag": st.one_of(st.none(), st.integers(0, 3)),
        "status": st.one_of(st.none(), st.sampled_from(["on", "off"])),
        "expires_at": st.one_of(st.none(), st.integers(0, 9)),
        "body": st.recursive(st.one_of(st.none(), st.booleans(), st.text(max_size=5)), st.lists, max_leaves=5),
    },
)


@dataclass
class Stored:
    rev: int
    document: Document
    blob: bytes | None


def order(value: str | int) -> tuple[int, int, bytes]:
    return (0, value, b"") if isinstance(value, int) else (1, 0, value.encode())


class StoreMachine(RuleBasedStateMachine):
    store: RecordStore

    def make_url(self) -> str:
        self.directory = tempfile.mkdtemp()
        return f"sqlite://{self.directory}/records.db"

    def drop(self) -> None:
        shutil.rmtree(self.directory)

    @initialize()
    def start(self) -> None:
        self.url = self.make_url()
        self.runner = asyncio.Runner()
        self.model: dict[str, Stored] = {}
        self.open()

    def open(self) -> None:
        self.store = self.runner.run(open_record_store(self.url, [THINGS], StoreOptions(timeout_seconds=60)))

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.store.close())
            self.runner.close()
            self.drop()

    def conflicts(self, key: str, document: Document) -> set[str]:
        """The unique indexes in which somebody else already is."""
        found: set[str] = set()
        for other, stored in self.model.items():
            if other == key:
                continue
            if all(stored.document[name] == document[name] for name in ("owner", "request")):
                found.add("by_request")
            if document.get("tag") is not None and stored.document.get("tag") == document["tag"]:
                found.add("by_tag")
        return found

    def index_hit(self, call) -> str | None:
        try:
            self.outcome = self.runner.run(call)
        except DuplicateKey as error:
            return error.index
        return None

    @rule(key=KEYS, document=DOCUMENTS, blob=st.one_of(st.none(), st.binary(max_size=9)))
    def insert(self, key: str, document: Document, blob: bytes | None) -> None:
        conflicts = {"key"} if key in self.model else self.conflicts(key, document)
        hit = self.index_hit(self.store.insert(THINGS, key, document, blob))
        if conflicts:
            assert hit in conflicts
        else:
            assert hit is None
            self.model[key] = Stored(1, document, blob)

    @rule(key=KEYS, document=DOCUMENTS, off=st.sampled_from([0, 0, 0, -1, 1]))
    def compare_and_set(self, key: str, document: Document, off: int) -> None:
        stored = self.model.get(key)
        rev = stored.rev + off if stored else 1
        hit = self.index_hit(self.store.compare_and_set(THINGS, key, rev, document))
        if stored is None or off:
            assert hit is None
            assert self.outcome is False
        elif conflicts := self.conflicts(key, document):
            assert hit in conflicts
        else:
            assert hit is None
            assert self.outcome is True
            self.model[key] = Stored(rev + 1, document, stored.blob)

    @rule(key=KEYS, expected=st.one_of(st.none(), st.integers(1, 3)))
    def delete(self, key: str, expected: int | None) -> None:
        gone = key in self.model and expected in (None, self.model[key].rev)
        assert self.runner.run(self.store.delete(THINGS, key, expected)) is gone
        if gone:
            del self.model[key]

    @rule(now=st.integers(0, 9))
    def expire(self, now: int) -> None:
        expired = [
            key
            for key, stored in self.model.items()
            if stored.document.get("expires_at") is not None and stored.document["expires_at"] <= now
        ]
        assert self.runner.run(self.store.delete_expired(THINGS, now)) == len(expired)
        for key in expired:
            del self.model[key]

    @rule()
    def reopen(self) -> None:
        self.runner.run(self.store.close())
        self.open()

    @rule(
        index=st.sampled_from([BY_OWNER, BY_REQUEST, BY_STATUS, BY_TAG]),
        first=st.one_of(st.none(), st.sampled_from(["a", "on", 1])),
        low=st.one_of(st.none(), VALUES),
        high=st.one_of(st.none(), VALUES),
        open_ended=st.booleans(),
        descending=st.booleans(),
        limit=st.integers(1, 4),
    )
    def query(self, index: Index, first, low, high, open_ended: bool, descending: bool, limit: int) -> None:
        equals = () if first is None else (first,)
        within = Range(at_least=low, below=high) if open_ended else Range(above=low, at_most=high)
        if len(equals) == len(index.fields):
            within = Range()
        expected = self.expected(index, equals, within, descending)
        found: list[str] = []
        after = None
        while True:
            page = self.runner.run(
                self.store.query(THINGS, index, equals, within, descending=descending, limit=limit, after=after)
            )
            found += [record.key for record in page.records]
            after = page.next
            if after is None:
                break
        assert found == expected
        assert self.runner.run(self.store.count(THINGS, index, equals)) == len(
            self.expected(index, equals, Range(), False)
        )

    def expected(self, index: Index, equals, within: Range, descending: bool) -> list[str]:
        rows = []
        for key, stored in self.model.items():
            values = [stored.document.get(name) for name in index.fields]
            ordered = [order(value) for value in values if value is not None]
            if len(ordered) < len(values):
                continue
            if ordered[: len(equals)] != [order(value) for value in equals]:
                continue
            if len(equals) < len(index.fields) and not self.is_within(ordered[len(equals)], within):
                continue
            rows.append((ordered, key))
        return [key for _, key in sorted(rows, reverse=descending)]

    @staticmethod
    def is_within(place, within: Range) -> bool:
        return (
            (within.at_least is None or place >= order(within.at_least))
            and (within.above is None or place > order(within.above))
            and (within.at_most is None or place <= order(within.at_most))
            and (within.below is None or place < order(within.below))
        )

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "runner"):
            return
        page = self.runner.run(self.store.query(THINGS, BY_KEY))
        assert {record.key: record.document for record in page.records} == {
            key: {**stored.document, "rev": stored.rev} for key, stored in self.model.items()
        }
        for key, stored in self.model.items():
            assert self.runner.run(self.store.get_blob(THINGS, key)) == stored.blob


class MongoMachine(StoreMachine):
    def make_url(self) -> str:
        self.database = contextlib.ExitStack()
        return self.database.enter_context(mongodb.database())

    def drop(self) -> None:
        self.database.close()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestMongoMachine = MongoMachine.TestCase
TestMongoMachine.settings = settings(
    max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
