"""Agents: saving under the server's own verdict, and reading records and versions (REST API; I4, I15, I16)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple, Protocol

from harness.common.v1.blueprint_pb2 import AgentBlueprint
from services.catalog import paging
from services.catalog.canonical import canonical_json, message_document
from services.catalog.drafts import Harnesses, validate
from services.catalog.publish import Content, Published, Publisher
from services.catalog.validation import Verdict, stale_issue
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request, not_found

Document = dict[str, Any]
MAX_CACHED_BYTES: Final = 16 << 20
"""Of the versions kept at hand, as JSON (I35)."""
MAX_ISSUE_BYTES: Final = 3_500
"""Of the issues an error carries: a call's trailers have to stay within the 8 KiB that peers accept."""


class AgentReader(Protocol):
    """What reading needs kept; see `services.catalog.store`."""

    async def agent(self, agent_id: str) -> Document | None: ...
    async def agents(self, after: str | None, limit: int) -> list[Document]: ...
    async def version(self, agent_id: str, version: int) -> Document | None: ...
    async def versions(self, agent_id: str, newest: int, limit: int) -> list[Document]: ...


class Claims(NamedTuple):
    """What a client says its edit was based on. Empty or None: not checked."""

    expected_revision: int | None = None
    catalog_revision: str = ""
    config_fingerprint: str = ""


class Agents:
    """The agents of the environment."""

    def __init__(self, store: AgentReader, publisher: Publisher, harnesses: Harnesses) -> None:
        self._store = store
        self._publisher = publisher
        self._harnesses = harnesses
        # Published versions never change, so a copy is good for ever, on any replica.
        self._versions: OrderedDict[tuple[str, int], tuple[Document, int]] = OrderedDict()
        self._cached_bytes = 0

    async def validate(self, draft: AgentBlueprint, catalog_revision: str) -> Verdict:
        """The verdict on a draft; also says when the client's catalog is no longer current."""
        verdict = await validate(draft, self._harnesses, catalog_revision)
        if catalog_revision and catalog_revision != verdict.catalog_revision:
            verdict = verdict.with_issues(stale_issue(verdict.catalog_revision))
        return verdict

    async def save(self, agent_id: str, draft: AgentBlueprint, claims: Claims) -> Published:
        """Publishes a valid blueprint. Errors: `invalid_request`, `harness_validation_stale`, `revision_conflict`."""
        if draft.id != agent_id:
            message = "The blueprint's id must be that of the agent it is saved as."
            raise invalid_request([FieldIssue("blueprint.id", "mismatch", message)])
        # I16: what counts is this verdict; what the client claims can only stop a save.
        verdict = await validate(draft, self._harnesses, claims.catalog_revision)
        _refuse_stale(verdict, claims)
        if not verdict.valid or verdict.normalized is None:
            raise invalid_request(_fitting(_in_request(verdict)), "The blueprint cannot be saved; see the details.")
        content = Content(
            agent_id=agent_id,
            name=verdict.normalized.name,
            harness_id=verdict.normalized.harness.id,
            blueprint=message_document(verdict.normalized),
            config_fingerprint=verdict.fingerprint,
            catalog_revision=verdict.catalog_revision,
        )
        try:
            return await self._publisher.save(content, claims.expected_revision)
        except HarnessError as error:
            raise _with_report(error, verdict) from None

    async def disable(self, agent_id: str) -> Document:
        """The record, disabled. Errors: `not_found`."""
        agent = await self._publisher.disable(agent_id)
        if agent is None:
            raise not_found("agent")
        return agent

    async def record(self, agent_id: str) -> Document:
        """The record as it is now: never from a cache, for a disabled agent starts nothing (I4). Errors: `not_found`."""
        agent = await self._store.agent(agent_id)
        if agent is None:
            raise not_found("agent")
        return agent

    async def version(self, agent: Document, number: int) -> Document:
        """A published version; zero: the current one. Errors: `not_found`."""
        number = number or agent["current_version"]
        if number > agent["current_version"]:
            raise not_found("version")  # I15: what no pointer reached yet does not exist
        key = (agent["agent_id"], number)
        cached = self._versions.get(key)
        if cached is not None:
            self._versions.move_to_end(key)
            return cached[0]
        version = await self._store.version(*key)
        if version is None:
            raise not_found("version")
        self._remember(key, version)
        return version

    def _remember(self, key: tuple[str, int], version: Document) -> None:
        size = len(canonical_json(version))
        self._versions[key] = (version, size)
        self._cached_bytes += size
        while self._cached_bytes > MAX_CACHED_BYTES:
            _, (_, freed) = self._versions.popitem(last=False)
            self._cached_bytes -= freed

    async def page(self, size: int, token: str) -> tuple[list[Document], str]:
        """Records by id, and the next page's token. Errors: `invalid_request`."""
        size = paging.page_size(size)
        agents = await self._store.agents(paging.after_agent(token), size + 1)
        following = paging.agents_token(agents[size - 1]["agent_id"]) if len(agents) > size else ""
        return agents[:size], following

    async def version_page(self, agent: Document, size: int, token: str) -> tuple[list[Document], str]:
        """Published versions, newest first, and the next page's token. Errors: `invalid_request`."""
        below = paging.below_version(token, agent["agent_id"])
        newest: int = agent["current_version"] if below is None else min(agent["current_version"], below - 1)
        size = paging.page_size(size)
        versions = await self._store.versions(agent["agent_id"], newest, size) if newest else []
        last = versions[-1]["version"] if versions else 1
        return versions, paging.versions_token(agent["agent_id"], last) if last > 1 else ""


def _refuse_stale(verdict: Verdict, claims: Claims) -> None:
    stale: list[FieldIssue] = []
    if claims.catalog_revision and claims.catalog_revision != verdict.catalog_revision:
        message = f"The current catalog is {verdict.catalog_revision}."
        stale.append(FieldIssue("catalog_revision", Reason.HARNESS_VALIDATION_STALE.value, message))
    if claims.config_fingerprint and verdict.fingerprint and claims.config_fingerprint != verdict.fingerprint:
        message = f"The blueprint's fingerprint is {verdict.fingerprint}."
        stale.append(FieldIssue("config_fingerprint", Reason.HARNESS_VALIDATION_STALE.value, message))
    if stale:  # I16: nothing is written
        error = HarnessError(
            Reason.HARNESS_VALIDATION_STALE,
            "What the client validated is no longer what would be saved: validate again, then save.",
            details=stale,
        )
        raise _with_report(error, verdict)


def _with_report(error: HarnessError, verdict: Verdict) -> HarnessError:
    """The error with a fresh report, as far as an error carries one."""
    metadata = {
        **error.metadata,
        "valid": "true" if verdict.valid else "false",
        "catalog_revision": verdict.catalog_revision,
        "config_fingerprint": verdict.fingerprint,
    }
    details = _fitting([*error.details, *_in_request(verdict)])
    return HarnessError(error.reason, error.message, details=details, metadata=metadata, retryable=error.retryable)


def _in_request(verdict: Verdict) -> list[FieldIssue]:
    return [
        FieldIssue(f"blueprint.{issue.path}" if issue.path else "blueprint", issue.code, issue.message)
        for issue in verdict.issues
    ]


def _fitting(issues: list[FieldIssue]) -> list[FieldIssue]:
    """As many issues as an error can carry; the last says how many are left out (I35)."""
    left = MAX_ISSUE_BYTES
    for number, issue in enumerate(issues):
        left -= sum(len(part.encode()) for part in issue) + 16
        if left < 0:
            message = f"{len(issues) - number} more problems are left out here: validate the draft to see all of them."
            return [*issues[:number], FieldIssue("blueprint", "too_many_issues", message)]
    return issues
