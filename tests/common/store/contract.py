"""What every record store has to do, whatever is behind it. A store's test module derives from the class and gives
`open_store`: opens the store of this test (the same one each time) with the collections given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from services.common.store import (
    BY_KEY,
    MAX_BLOB_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_PAGE,
    Collection,
    Document,
    DocumentTooLarge,
    DuplicateKey,
    Index,
    InvalidDocument,
    InvalidQuery,
    Range,
    Record,
    RecordStore,
    StoreUnavailable,
)

BY_OWNER = Index("by_owner", ("owner", "at"))
BY_REQUEST = Index("by_request", ("owner", "request"), unique=True)
BY_TAG = Index("by_tag", ("tag",), unique=True, sparse=True)
BY_STATUS = Index("by_status", ("status",), sparse=True)
THINGS = Collection("things", (BY_OWNER, BY_REQUEST, BY_TAG, BY_STATUS), expires="expires_at", blobs=True)
PLAIN = Collection("plain")

OpenStore = Callable[[Sequence[Collection]], Awaitable[RecordStore]]


def thing(number: int, owner: str = "a", **more: object) -> Document:
    return {"owner": owner, "at": number, "request": f"q{number}", **more}


def keys(records: Sequence[Record]) -> list[str]:
    return [record.key for record in records]


class RecordStoreContract:
    @pytest.fixture
    async def store(self, open_store: OpenStore) -> AsyncIterator[RecordStore]:
        store = await open_store([THINGS, PLAIN])
        yield store
        await store.close()

    async def test_an_inserted_document_comes_back_as_it_was(self, store: RecordStore) -> None:
        document = thing(1, text="ä\0\u2028", n=-(1 << 63), f=1.5, nothing=None, yes=True, deep=[{"a": [1, "1"]}])
        await store.insert(THINGS, "k/ä", document)
        record = await store.get(THINGS, "k/ä")
        assert record is not None
        assert record.key == "k/ä"
        assert record.rev == 1
        assert record.document == {**document, "rev": 1}
        assert "rev" not in document

    async def test_what_is_not_there_is_none(self, store: RecordStore) -> None:
        assert await store.get(THINGS, "k") is None
        assert await store.get_blob(THINGS, "k") is None
        assert await store.find(THINGS, BY_REQUEST, ("a", "q1")) is None
        assert (await store.query(THINGS, BY_KEY)).records == []
        assert await store.delete(THINGS, "k") is False
        assert await store.compare_and_set(THINGS, "k", 1, thing(1)) is False

    async def test_a_second_insert_names_the_index_it_hit(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k1", thing(1, tag="t"))
        for key, document, index in (
            ("k1", thing(2), "key"),
            ("k1", thing(1, tag="t"), "key"),
            ("k2", thing(1), "by_request"),
            ("k2", thing(2, tag="t"), "by_tag"),
        ):
            with pytest.raises(DuplicateKey) as caught:
                await store.insert(THINGS, key, document)
            assert (caught.value.collection, caught.value.index) == ("things", index)
        assert await store.count(THINGS, BY_KEY) == 1

    async def test_a_sparse_index_leaves_out_what_lacks_its_field(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k1", thing(1))
        await store.insert(THINGS, "k2", thing(2, tag=None, status=None))
        await store.insert(THINGS, "k3", thing(3, status="on"))
        assert keys((await store.query(THINGS, BY_STATUS)).records) == ["k3"]
        assert await store.count(THINGS, BY_STATUS) == 1

    async def test_compare_and_set_takes_only_the_revision_it_expects(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k", thing(1))
        record = await store.get(THINGS, "k")
        assert record is not None
        assert await store.compare_and_set(THINGS, "k", 1, {**record.document, "status": "on"}) is True
        assert await store.compare_and_set(THINGS, "k", 1, {**record.document, "status": "off"}) is False
        assert await store.compare_and_set(THINGS, "k", 3, {**record.document, "status": "off"}) is False
        record = await store.get(THINGS, "k")
        assert record is not None
        assert record.document == thing(1, status="on", rev=2)

    async def test_of_raced_compare_and_sets_exactly_one_wins(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k", thing(0))
        for rev in range(1, 6):
            won = await asyncio.gather(
                *(store.compare_and_set(THINGS, "k", rev, thing(0, winner=number)) for number in range(20))
            )
            assert won.count(True) == 1
            record = await store.get(THINGS, "k")
            assert record is not None
            assert record.rev == rev + 1
            assert record.document["winner"] == won.index(True)

    async def test_of_raced_inserts_exactly_one_wins(self, store: RecordStore) -> None:
        results = await asyncio.gather(
            *(store.insert(THINGS, f"k{number}", thing(7)) for number in range(20)), return_exceptions=True
        )
        assert results.count(None) == 1
        assert {type(result) for result in results if result is not None} == {DuplicateKey}
        found = await store.find(THINGS, BY_REQUEST, ("a", "q7"))
        assert found is not None
        assert found.key == f"k{results.index(None)}"

    async def test_a_compare_and_set_that_hits_an_index_changes_nothing(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k1", thing(1))
        await store.insert(THINGS, "k2", thing(2))
        with pytest.raises(DuplicateKey, match="by_request"):
            await store.compare_and_set(THINGS, "k2", 1, thing(1))
        record = await store.get(THINGS, "k2")
        assert record is not None
        assert record.document == thing(2, rev=1)

    async def test_indexes_follow_a_compare_and_set(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k", thing(1, tag="t", status="on"))
        await store.compare_and_set(THINGS, "k", 1, thing(2, owner="b"))
        assert await store.find(THINGS, BY_REQUEST, ("a", "q1")) is None
        assert await store.find(THINGS, BY_TAG, ("t",)) is None
        assert (await store.query(THINGS, BY_STATUS)).records == []
        assert keys((await store.query(THINGS, BY_OWNER, ("b",))).records) == ["k"]
        await store.insert(THINGS, "other", thing(1, tag="t"))

    async def test_delete_can_expect_a_revision(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k", thing(1))
        assert await store.delete(THINGS, "k", expected_rev=2) is False
        assert await store.delete(THINGS, "k", expected_rev=1) is True
        assert await store.get(THINGS, "k") is None
        await store.insert(THINGS, "k", thing(1))
        assert await store.delete(THINGS, "k") is True

    async def test_a_blob_stays_with_its_record_and_goes_with_it(self, store: RecordStore) -> None:
        blob = bytes(range(256)) * 8192
        await store.insert(THINGS, "k", thing(1), blob)
        await store.insert(THINGS, "none", thing(2))
        await store.insert(THINGS, "empty", thing(3), b"")
        assert await store.compare_and_set(THINGS, "k", 1, thing(1, status="on")) is True
        assert await store.get_blob(THINGS, "k") == blob
        assert await store.get_blob(THINGS, "none") is None
        assert await store.get_blob(THINGS, "empty") == b""
        await store.delete(THINGS, "k")
        assert await store.get_blob(THINGS, "k") is None
        await store.insert(THINGS, "k", thing(1))
        assert await store.get_blob(THINGS, "k") is None

    async def test_a_refused_insert_leaves_no_blob(self, store: RecordStore) -> None:
        await store.insert(THINGS, "k", thing(1), b"first")
        with pytest.raises(DuplicateKey):
            await store.insert(THINGS, "k", thing(2), b"second")
        assert await store.get_blob(THINGS, "k") == b"first"

    async def test_expired_records_go_oldest_first_up_to_the_limit(self, store: RecordStore) -> None:
        for number, expires_at in enumerate([30, 10, 20, 40, None]):
            await store.insert(THINGS, f"k{number}", thing(number, expires_at=expires_at), b"blob")
        assert await store.delete_expired(THINGS, 9) == 0
        assert await store.delete_expired(THINGS, 30, limit=2) == 2
        assert keys((await store.query(THINGS, BY_KEY)).records) == ["k0", "k3", "k4"]
        assert await store.delete_expired(THINGS, 30) == 1
        assert await store.get_blob(THINGS, "k0") is None
        assert keys((await store.query(THINGS, BY_KEY)).records) == ["k3", "k4"]

    async def test_an_index_orders_integers_before_strings(self, store: RecordStore) -> None:
        values = [10, -1, "10", "a", "B", 9, "ä", "", 1 << 62]
        for number, value in enumerate(values):
            await store.insert(THINGS, f"k{number}", {"owner": "a", "at": value, "request": number})
        page = await store.query(THINGS, BY_OWNER, ("a",))
        assert [record.document["at"] for record in page.records] == [-1, 9, 10, 1 << 62, "", "10", "B", "a", "ä"]
        page = await store.query(THINGS, BY_OWNER, ("a",), descending=True)
        assert [record.document["at"] for record in page.records] == ["ä", "a", "B", "10", "", 1 << 62, 10, 9, -1]
        assert len((await store.query(THINGS, BY_OWNER, ("a", 10))).records) == 1

    @pytest.mark.parametrize(
        ("within", "expected"),
        [
            (Range(at_least=3), [3, 4, 5]),
            (Range(above=3), [4, 5]),
            (Range(at_most=2), [1, 2]),
            (Range(below=2), [1]),
            (Range(above=1, below=5), [2, 3, 4]),
            (Range(above=5), []),
        ],
    )
    async def test_a_range_bounds_the_next_field(self, store: RecordStore, within: Range, expected: list[int]) -> None:
        for number in range(1, 6):
            await store.insert(THINGS, f"k{number}", thing(number))
            await store.insert(THINGS, f"x{number}", thing(number, owner="b"))
        page = await store.query(THINGS, BY_OWNER, ("a",), within)
        assert [record.document["at"] for record in page.records] == expected
        page = await store.query(THINGS, BY_OWNER, ("a",), within, descending=True)
        assert [record.document["at"] for record in page.records] == expected[::-1]

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("limit", [1, 3, 10, 11])
    async def test_pages_join_without_gap_or_repeat(self, store: RecordStore, limit: int, descending: bool) -> None:
        for number in range(10):  # equal index values: the key decides
            await store.insert(THINGS, f"k{number}", thing(number) | {"at": number // 4})
        for index, equals in ((BY_OWNER, ("a",)), (BY_OWNER, ()), (BY_REQUEST, ("a",)), (BY_KEY, ())):
            found: list[str] = []
            after = None
            while True:
                page = await store.query(THINGS, index, equals, descending=descending, limit=limit, after=after)
                found += keys(page.records)
                if page.next is None:
                    break
                assert len(page.records) == limit
                after = page.next
            assert found == sorted((f"k{number}" for number in range(10)), reverse=descending)

    async def test_a_record_that_went_does_not_break_the_next_page(self, store: RecordStore) -> None:
        for number in range(5):
            await store.insert(THINGS, f"k{number}", thing(number))
        page = await store.query(THINGS, BY_OWNER, ("a",), limit=2)
        await store.delete(THINGS, "k1")
        await store.insert(THINGS, "k0b", {**thing(0), "request": "late"})
        page = await store.query(THINGS, BY_OWNER, ("a",), limit=2, after=page.next)
        assert keys(page.records) == ["k2", "k3"]

    async def test_i35_a_page_is_bounded_in_bytes(self, store: RecordStore) -> None:
        body = "x" * (MAX_DOCUMENT_BYTES - 1000)
        for number in range(10):
            await store.insert(THINGS, f"k{number}", thing(number, body=body))
        page = await store.query(THINGS, BY_KEY, limit=10)
        assert keys(page.records) == [f"k{number}" for number in range(8)]
        page = await store.query(THINGS, BY_KEY, limit=10, after=page.next)
        assert keys(page.records) == ["k8", "k9"]
        assert page.next is None

    async def test_count_stops_where_it_is_told(self, store: RecordStore) -> None:
        for number in range(5):
            await store.insert(THINGS, f"k{number}", thing(number))
        assert await store.count(THINGS, BY_OWNER, ("a",)) == 5
        assert await store.count(THINGS, BY_OWNER, ("a",), at_most=3) == 3
        assert await store.count(THINGS, BY_OWNER, ("b",)) == 0

    async def test_i35_documents_blobs_and_keys_are_bounded(self, store: RecordStore) -> None:
        fits = MAX_DOCUMENT_BYTES - len('{"a":""}')
        await store.insert(PLAIN, "k" * 512, {"a": "x" * fits})
        for key, document in (("k", {"a": "x" * (fits + 1)}), ("k" * 513, {}), ("ä" * 257, {})):
            with pytest.raises(DocumentTooLarge):
                await store.insert(PLAIN, key, document)
        with pytest.raises(DocumentTooLarge):
            await store.compare_and_set(PLAIN, "k" * 512, 1, {"a": "x" * (fits + 1)})
        with pytest.raises(DocumentTooLarge):
            await store.insert(THINGS, "k", thing(1, owner="x" * 1025))
        with pytest.raises(DocumentTooLarge):
            await store.insert(THINGS, "k", thing(1), bytes(MAX_BLOB_BYTES + 1))
        await store.insert(THINGS, "k", thing(1), bytes(MAX_BLOB_BYTES))

    @pytest.mark.parametrize(
        "document",
        [
            {"owner": "a", "request": "q"},
            thing(1) | {"owner": None},
            thing(1) | {"at": True},
            thing(1) | {"at": 1.5},
            thing(1) | {"at": 1 << 63},
            thing(1) | {"at": ["list"]},
            thing(1, tag={}),
            thing(1, expires_at="tomorrow"),
            thing(1, owner="\ud800"),
            thing(1, body=b"bytes"),
            thing(1, body=object()),
            thing(1, body={1: 2}),
        ],
    )
    async def test_a_document_that_does_not_fit_is_refused(self, store: RecordStore, document: Document) -> None:
        with pytest.raises(InvalidDocument):
            await store.insert(THINGS, "k", document)
        await store.insert(THINGS, "k", thing(1))
        with pytest.raises(InvalidDocument):
            await store.compare_and_set(THINGS, "k", 1, document)

    @pytest.mark.parametrize("key", ["", "\ud800"])
    async def test_a_key_that_is_none_is_refused(self, store: RecordStore, key: str) -> None:
        with pytest.raises(InvalidDocument):
            await store.insert(THINGS, key, thing(1))

    async def test_questions_without_an_answer_are_refused(self, store: RecordStore) -> None:
        stranger = Index("by_stranger", ("owner",))
        for wrong in (
            store.get(Collection("strangers"), "k"),
            store.get(Collection("plain", (stranger,)), "k"),
            store.query(THINGS, stranger),
            store.query(THINGS, BY_OWNER, ("a", 1, 2)),
            store.query(THINGS, BY_OWNER, ("a", 1), Range(above=1)),
            store.query(THINGS, BY_OWNER, (True,)),
            store.query(THINGS, BY_OWNER, ("a",), Range(above=1 << 63)),
            store.query(THINGS, BY_KEY, (), Range(above=1)),
            store.query(THINGS, BY_OWNER, ("a",), limit=0),
            store.query(THINGS, BY_OWNER, ("a",), limit=MAX_PAGE + 1),
            store.count(THINGS, BY_OWNER, ("a",), at_most=MAX_PAGE + 1),
            store.find(THINGS, BY_OWNER, ("a", 1)),
            store.find(THINGS, BY_REQUEST, ("a",)),
            store.delete_expired(PLAIN, 1),
            store.get_blob(PLAIN, "k"),
        ):
            with pytest.raises(InvalidQuery):
                await wrong

    @pytest.mark.parametrize("position", ["", "null", "[", "[1]", "[[],1]", '[1,"k",2]', "[1.5,null]", "x" * 99])
    async def test_a_foreign_position_is_refused(self, store: RecordStore, position: str) -> None:
        with pytest.raises(InvalidQuery):
            await store.query(THINGS, BY_OWNER, ("a",), after=position)

    async def test_collections_do_not_mix(self, store: RecordStore) -> None:
        await store.insert(PLAIN, "k", {"a": 1})
        assert await store.get(THINGS, "k") is None

    async def test_everything_is_there_after_a_reopen(self, open_store: OpenStore) -> None:
        store = await open_store([THINGS])
        await store.insert(THINGS, "k", thing(1, tag="t"), b"blob")
        await store.compare_and_set(THINGS, "k", 1, thing(2, tag="t"))
        await store.close()
        store = await open_store([THINGS])
        record = await store.find(THINGS, BY_TAG, ("t",))
        assert record is not None
        assert record.document == thing(2, tag="t", rev=2)
        assert await store.get_blob(THINGS, "k") == b"blob"
        await store.close()

    async def test_a_new_index_finds_old_records(self, open_store: OpenStore) -> None:
        store = await open_store([PLAIN])
        for number, colour in enumerate(["red", "blue", 7, 1.5, None, True]):
            await store.insert(PLAIN, f"k{number}", {"colour": colour})
        await store.insert(PLAIN, "without", {})
        await store.close()
        by_colour = Index("by_colour", ("colour",), sparse=True)
        store = await open_store([indexed := Collection("plain", (by_colour,))])
        assert keys((await store.query(indexed, by_colour)).records) == ["k2", "k1", "k0"]
        await store.close()

    async def test_two_stores_on_the_same_data_see_each_other(self, open_store: OpenStore) -> None:
        one, two = await open_store([THINGS]), await open_store([THINGS])
        await one.insert(THINGS, "k", thing(1))
        assert await two.get(THINGS, "k") is not None
        won = await asyncio.gather(
            *(store.compare_and_set(THINGS, "k", 1, thing(1)) for store in (one, two) for _ in range(10))
        )
        assert won.count(True) == 1
        await one.close()
        await two.close()

    async def test_a_cancelled_caller_harms_nobody(self, store: RecordStore) -> None:
        writes = [asyncio.ensure_future(store.insert(THINGS, f"k{number}", thing(number))) for number in range(40)]
        await asyncio.sleep(0)
        for write in writes[::2]:
            write.cancel()
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert results[1::2] == [None] * 20
        stored = set(keys((await store.query(THINGS, BY_KEY)).records))
        assert stored >= {f"k{number}" for number in range(1, 40, 2)}
        for key in stored:
            record = await store.get(THINGS, key)
            assert record is not None
            assert record.document == thing(int(key[1:]), rev=1)

    async def test_close_finishes_what_was_accepted_and_refuses_the_rest(self, open_store: OpenStore) -> None:
        store = await open_store([THINGS])
        writes = [asyncio.ensure_future(store.insert(THINGS, f"k{number}", thing(number))) for number in range(50)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*writes)
        await store.close()
        for refused in (store.get(THINGS, "k1"), store.insert(THINGS, "late", thing(99)), store.check()):
            with pytest.raises(StoreUnavailable):
                await refused
        store = await open_store([THINGS])
        assert await store.count(THINGS, BY_KEY) == 50
        await store.close()
