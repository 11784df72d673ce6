"""Saving an agent: an immutable version first, the pointer last, recoverable after any step (I15, I16).

A version in the slot after the current one is a *half* until the pointer moves to it. It names the revision of the pointer
it was made for. While the pointer still has that revision the half can be published, by its saver or by whoever comes next;
once it has not, it never can, and its slot may be taken over. Readers see versions up to the current one only, so a half
is never seen, whatever died in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from services.common.errors import FieldIssue, HarnessError, Reason

Document = dict[str, Any]
MAX_ATTEMPTS: Final = 100
"""Of one save. In each lost attempt another save of the same agent came through (I35)."""


class AgentStore(Protocol):
    """What publishing needs kept; see `services.catalog.store`."""

    async def agent(self, agent_id: str) -> Document | None: ...
    async def insert_agent(self, agent: Document) -> bool: ...
    async def replace_agent(self, agent: Document, expected_rev: int) -> bool: ...
    async def version(self, agent_id: str, version: int) -> Document | None: ...
    async def insert_version(self, version: Document) -> bool: ...
    async def replace_version(self, version: Document, expected_rev: int) -> bool: ...


class Content(NamedTuple):
    """What a version is made of: a validated, normalised blueprint as JSON, its digest, and the catalog it was validated against."""

    agent_id: str
    name: str
    harness_id: str
    blueprint: Document
    config_fingerprint: str
    catalog_revision: str


class Published(NamedTuple):
    """The pointer, and the version it points to."""

    agent: Document
    version: Document


@dataclass
class _Save:
    """One save across its attempts. `slot` is where it last put its version."""

    content: Content
    expected_revision: int | None
    nonce: str
    slot: int | None = None


class Publisher:
    """Saves and disables agents. `now` gives milliseconds since the epoch, `nonce` marks one save's version as its own."""

    def __init__(self, store: AgentStore, now: Callable[[], int], nonce: Callable[[], str]) -> None:
        self._store = store
        self._now = now
        self._nonce = nonce

    async def save(self, content: Content, expected_revision: int | None) -> Published:
        """Makes the content the current version; one that is current already stays. Errors: `revision_conflict`."""
        save = _Save(content, expected_revision, self._nonce())
        for _ in range(MAX_ATTEMPTS):
            published = await self._attempt(save)
            if published is not None:
                return published
        raise _too_busy()

    async def disable(self, agent_id: str) -> Document | None:
        """The pointer, disabled; None if there is no such agent."""
        for _ in range(MAX_ATTEMPTS):
            agent = await self._store.agent(agent_id)
            if agent is None or not agent["enabled"]:
                return agent
            await self._store.replace_agent({**agent, "enabled": False, "updated_at": self._now()}, agent["rev"])
        raise _too_busy()

    async def _attempt(self, save: _Save) -> Published | None:
        """One try from a fresh look; None: something changed in between, look again."""
        content = save.content
        agent = await self._store.agent(content.agent_id)
        revision = 0 if agent is None else agent["rev"]
        if agent is not None:
            helped = await self._published_by_another(agent, save)
            if helped is not None:
                return helped
        if save.expected_revision is not None and save.expected_revision != revision:
            raise _conflict(save.expected_revision, revision)
        current = None if agent is None else await self._current(agent)
        if agent is not None and current is not None and current["config_fingerprint"] == content.config_fingerprint:
            return await self._keep(agent, current)
        slot = 1 if agent is None else agent["current_version"] + 1
        half = await self._store.version(content.agent_id, slot)
        if half is None or half["base_revision"] < revision:
            return await self._publish_new(save, agent, slot, half)
        if half["base_revision"] == revision:
            return await self._publish_half(save, agent, half)
        return None  # made for a later revision than the one we read

    async def _published_by_another(self, agent: Document, save: _Save) -> Published | None:
        """Our half, if a later save found it and published it for us."""
        if save.slot is None or save.slot > agent["current_version"]:
            return None
        version = await self._store.version(agent["agent_id"], save.slot)
        return Published(agent, version) if version is not None and version["nonce"] == save.nonce else None

    async def _publish_new(
        self, save: _Save, agent: Document | None, slot: int, dead: Document | None
    ) -> Published | None:
        fresh = self._version(save, slot, 0 if agent is None else agent["rev"])
        # I15: the whole version is durable before anything points to it.
        if dead is None:
            taken = await self._store.insert_version(fresh)
        else:
            # Made for a revision that is gone, so nothing can ever point to it: its slot is free, unless another took it first.
            taken = await self._store.replace_version(fresh, dead["rev"])
        if not taken:
            return None
        save.slot = slot
        return await self._point(agent, fresh)

    async def _publish_half(self, save: _Save, agent: Document | None, half: Document) -> Published | None:
        """Finishes what another save began: it is complete, valid and next. It counts as ours if it is the same save again."""
        published = await self._point(agent, half)
        same = half["nonce"] == save.nonce or half["config_fingerprint"] == save.content.config_fingerprint
        return published if same else None

    async def _point(self, agent: Document | None, version: Document) -> Published | None:
        """Moves the pointer to a version, if it still is what the version was made for."""
        now = self._now()
        pointer: Document = {
            "agent_id": version["agent_id"],
            "current_version": version["version"],
            "enabled": True,
            "name": version["name"],
            "harness_id": version["harness_id"],
            "created_at": now if agent is None else agent["created_at"],
            "updated_at": now,
        }
        base: int = version["base_revision"]
        # I15: one compare-and-set decides; version n + 1 follows n or nothing happens.
        if base == 0:
            moved = await self._store.insert_agent(pointer)
        else:
            moved = await self._store.replace_agent(pointer, base)
        return Published({**pointer, "rev": base + 1}, version) if moved else None

    async def _keep(self, agent: Document, current: Document) -> Published | None:
        if agent["enabled"]:
            return Published(agent, current)
        enabled = {**agent, "enabled": True, "updated_at": self._now()}
        moved = await self._store.replace_agent(enabled, agent["rev"])
        return Published({**enabled, "rev": agent["rev"] + 1}, current) if moved else None

    async def _current(self, agent: Document) -> Document:
        version = await self._store.version(agent["agent_id"], agent["current_version"])
        if version is None:
            raise RuntimeError("an agent points to a version that is not there")  # I15 was broken outside of this code
        return version

    def _version(self, save: _Save, slot: int, revision: int) -> Document:
        content = save.content
        return {
            "agent_id": content.agent_id,
            "version": slot,
            "base_revision": revision,
            "nonce": save.nonce,
            "name": content.name,
            "harness_id": content.harness_id,
            "blueprint": content.blueprint,
            "config_fingerprint": content.config_fingerprint,
            "catalog_revision": content.catalog_revision,
            "created_at": self._now(),
        }


def _too_busy() -> HarnessError:
    return HarnessError(
        Reason.REVISION_CONFLICT, "Too many changes of this agent at once: load it again and try again.", retryable=True
    )


def _conflict(expected: int, revision: int) -> HarnessError:
    if revision == 0:
        text = "There is no such agent yet."
    elif expected == 0:
        text = "There is such an agent already."
    else:
        text = "The agent was changed in the meantime."
    return HarnessError(
        Reason.REVISION_CONFLICT,
        f"{text} Its revision is {revision}, the edit was based on {expected}: load it again and repeat the edit.",
        details=[
            FieldIssue("expected_revision", Reason.REVISION_CONFLICT.value, f"The current revision is {revision}.")
        ],
        metadata={"current_revision": str(revision)},
    )
