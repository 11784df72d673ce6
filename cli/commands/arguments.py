"""Arguments and options that several commands take."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from cli.errors import usage_error

_AGENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}")
MAX_ITEMS: Final = 1000


def is_agent_id(text: object) -> bool:
    """Whether the mesh can know an agent by it."""
    return isinstance(text, str) and _AGENT_ID.fullmatch(text) is not None


def _agent(text: str | None) -> str | None:
    if text is not None and not is_agent_id(text):
        raise usage_error(
            f"{text[:140]!r} is no agent id.",
            "Letters, digits, `.`, `_` and `-`, at most 128 of them, a letter or digit first: see `harness agents list`.",
        )
    return text


def _identifier(text: str | None) -> str | None:
    if text is not None and not _ID.fullmatch(text):
        raise usage_error(f"{text[:140]!r} is no id.", "Letters, digits, `.`, `_`, `:` and `-`, at most 128 of them.")
    return text


AgentId = Annotated[str, typer.Argument(metavar="AGENT", callback=_agent, help="Id of the agent.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", callback=_identifier, help="Id of the run.")]
ConversationId = Annotated[
    str, typer.Argument(metavar="CONVERSATION", callback=_identifier, help="Id of the conversation.")
]
HarnessId = Annotated[str, typer.Argument(metavar="HARNESS", callback=_identifier, help="Id of the harness.")]
FileId = Annotated[str, typer.Argument(metavar="FILE", callback=_identifier, help="Id of the file.")]
OptionalAgent = Annotated[
    str | None, typer.Option("--agent", metavar="AGENT", callback=_agent, help="Of this agent only.")
]
OptionalConversation = Annotated[
    str | None, typer.Option("--conversation", metavar="ID", callback=_identifier, help="The conversation.")
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="ID",
        callback=_identifier,
        help="Makes the start idempotent: the same id is the same run.",
    ),
]


def _identifiers(texts: list[str] | None) -> list[str]:
    return [text for text in texts or () if _identifier(text)]


FilePaths = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="PATH", help="A file for the agent to read, uploaded first; may be repeated."),
]
FileIds = Annotated[
    list[str] | None,
    typer.Option("--file-id", metavar="FILE", callback=_identifiers, help="One that was uploaded; may be repeated."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAX_ITEMS, help="How many to show at most.")]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON document (or one line per event) on stdout, errors as JSON on stderr.")
]
