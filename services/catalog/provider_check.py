"""Whether the providers of registered tools have them: a mistyped id is told when the catalog starts, not by the first call that fails.

A finding is for the operator's log and changes nothing else: a provider may be away when the catalog starts, and bring a tool later.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from services.catalog.builtin_tools import BUILTIN
from services.catalog.tool_registry import RegisteredTool, Tools
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.common.tasks import BackgroundTasks

FIRST_RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 60.0
_FINAL: Final = frozenset(
    {Reason.UNIMPLEMENTED, Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED, Reason.PROTOCOL_VIOLATION}
)

_log = get_logger(__name__)


class Offered(NamedTuple):
    """A tool as its provider lists it."""

    tool_id: str
    idempotent: bool


class Provider(Protocol):
    """One provider, as its client reaches it."""

    async def tools(self) -> Sequence[Offered]:
        """What it has. Errors: `HarnessError`."""
        ...

    async def close(self) -> None:
        """Ends the connection."""
        ...


class Finding(NamedTuple):
    """One registered tool that its provider does not have as it is registered."""

    event: str
    tool_id: str


def findings(registered: Iterable[RegisteredTool], offered: Iterable[Offered]) -> Iterator[Finding]:
    """What differs. An operator may mark an idempotent tool as none, never the other way round: then a second try could have a second effect."""
    found: Mapping[str, Offered] = {tool.tool_id: tool for tool in offered}
    for tool in registered:
        listed = found.get(tool.tool_id)
        if listed is None:
            yield Finding("tool_not_offered", tool.tool_id)
        elif tool.idempotent and not listed.idempotent:
            yield Finding("tool_not_idempotent", tool.tool_id)


def start(tools: Tools, make: Callable[[RegisteredTool], Provider], tasks: BackgroundTasks) -> None:
    """Asks every provider once, in the background, each on its own (I23)."""
    by_provider: defaultdict[tuple[str, str], list[RegisteredTool]] = defaultdict(list)
    for tool in tools.values():
        if tool.provider != BUILTIN:
            token = "" if tool.token is None else tool.token.get_secret_value()
            by_provider[tool.provider, token].append(tool)
    for registered in by_provider.values():
        tasks.spawn(f"look at the provider of {registered[0].tool_id}", _look(make(registered[0]), registered))


async def _look(provider: Provider, registered: Sequence[RegisteredTool]) -> None:
    pause = FIRST_RETRY_SECONDS
    try:
        while True:
            try:
                offered = await provider.tools()
                break
            except HarnessError as error:
                # Said once: a provider that is away for long would fill the log.
                if error.reason in _FINAL or pause == FIRST_RETRY_SECONDS:
                    _log.warning("tool_provider_not_seen", tool_id=registered[0].tool_id, reason=error.reason.value)
                if error.reason in _FINAL:
                    return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_RETRY_SECONDS)
        for finding in findings(registered, offered):
            _log.warning(finding.event, tool_id=finding.tool_id)
        _log.info("tool_provider_seen", tools=len(registered))
    finally:
        await provider.close()
