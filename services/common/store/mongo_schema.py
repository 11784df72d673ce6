"""Collections and indexes in MongoDB, made and brought up to date when the store is opened.

`<namespace>_layout` says per collection which layout and which indexes its documents were last written for. Only when that
differs are documents read and given their places in the new indexes. An index that is not declared any more stays: a
replica of the release before may still rest upon it, and new documents are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import orjson
from pymongo import IndexModel, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError, OperationFailure

from services.common.logs import get_logger
from services.common.store.documents import required_fields, scalar_problem
from services.common.store.errors import DocumentTooLarge, InvalidDocument, StoreRefused
from services.common.store.mongo_engine import MongoEngine, Stored
from services.common.store.mongo_shape import Shape
from services.common.store.port import Document

LAYOUT_VERSION: Final = 1
"""Raised by a change older code cannot live with."""
_BATCH: Final = 200
_NOT_IMPLEMENTED: Final = 238
_log = get_logger(__name__)


async def prepare(engine: MongoEngine, shapes: Iterable[Shape]) -> None:
    """Make what is missing. Idempotent, and safe while other replicas of the same release do the same.

    Errors: `StoreRefused` if stored records do not fit a new index, or if a newer release wrote them; `StoreUnavailable`, `StoreFull`.
    """
    for shape in shapes:
        await engine.prepare(lambda shape=shape: _prepare(engine, shape))


async def _prepare(engine: MongoEngine, shape: Shape) -> None:
    layouts, records = engine.collection("layout"), engine.collection(shape.collection.name)
    name = shape.collection.name
    last = await layouts.find_one({"_id": name})
    if last is not None and last["layout"] > LAYOUT_VERSION:
        raise StoreRefused(
            f"{records.name} in {engine.shown} was written by a newer release (layout {last['layout']}, this one knows "
            f"{LAYOUT_VERSION}); use that release"
        )
    current = {"layout": LAYOUT_VERSION, "indexes": shape.digest()}
    if last is None or last["indexes"] != current["indexes"]:
        await _give_places(engine, records, shape)
    await _make_indexes(records, shape)
    if last is None or last["indexes"] != current["indexes"]:
        try:
            await layouts.update_one({"_id": name}, {"$set": current}, upsert=True)
        except DuplicateKeyError:  # another replica was first, with the same
            await layouts.update_one({"_id": name}, {"$set": current})


async def _give_places(engine: MongoEngine, records: AsyncCollection[Stored], shape: Shape) -> None:
    """Write the indexed fields of every record that was written for other indexes."""
    changes: list[UpdateOne] = []
    async with records.find({}, {"json": 1, "rev": 1}).sort("_id", 1).batch_size(_BATCH) as cursor:
        async for stored in cursor:
            fields = _fields_of_old(engine, shape, stored["_id"], orjson.loads(stored["json"]))
            # A record that is changed meanwhile is given its places by that change.
            changes.append(UpdateOne({"_id": stored["_id"], "rev": stored["rev"]}, changed(fields)))
            if len(changes) == _BATCH:
                await records.bulk_write(changes, ordered=False)
                changes.clear()
    if changes:
        await records.bulk_write(changes, ordered=False)


def changed(fields: Stored) -> Stored:
    """The update that sets these fields and removes those that are None."""
    present = {name: value for name, value in fields.items() if value is not None}
    absent = {name: "" for name, value in fields.items() if value is None}
    update: Stored = {}
    if present:
        update["$set"] = present
    if absent:
        update["$unset"] = absent
    return update


def _fields_of_old(engine: MongoEngine, shape: Shape, key: str, document: Document) -> Stored:
    """As `Shape.fields`, but what no index can hold is left out of those that may lack it."""
    required = required_fields(shape.collection)
    usable = {name: value for name, value in document.items() if name in required or scalar_problem(value) is None}
    try:
        return shape.fields(key, usable)
    except (InvalidDocument, DocumentTooLarge) as error:
        lacking = [name for name in sorted(required) if document.get(name) is None]
        what = f"lacks field {lacking[0]!r}" if lacking else f"does not fit ({error})"
        raise StoreRefused(
            f"collection {shape.collection.name} in {engine.shown}: record {key!r} {what}, which an index needs; declare the index "
            f"sparse, or repair the record"
        ) from None


async def _make_indexes(records: AsyncCollection[Stored], shape: Shape) -> None:
    present = {index["name"] async for index in await records.list_indexes()}
    try:
        await _create(records, shape, shape.index_models(by_itself=True), present)
    except OperationFailure as error:
        if error.code != _NOT_IMPLEMENTED:
            raise
        # Not MongoDB itself. What expires is deleted by the services' own sweeps.
        await _create(records, shape, shape.index_models(by_itself=False), present)
    declared = [shape.index_models(by_itself=by_itself) for by_itself in (True, False)]
    for name in present - {"_id_", *(_name(model) for models in declared for model in models)}:
        _log.info("store_index_undeclared", collection=records.name, index=name)


async def _create(
    records: AsyncCollection[Stored], shape: Shape, models: Iterable[IndexModel], present: set[str]
) -> None:
    # A name says all of an index, so what is there under it is what is wanted.
    missing = [model for model in models if _name(model) not in present]
    if not missing:
        return
    try:
        await records.create_indexes(missing)
    except DuplicateKeyError as error:
        names = ", ".join(index.name for index, _ in shape.unique)
        raise StoreRefused(
            f"collection {shape.collection.name}: stored records break a unique index ({names}); repair them, or use the release that "
            f"wrote them"
        ) from error


def _name(model: IndexModel) -> str:
    return str(model.document["name"])
