"""Structured logs of an adapter process: JSON lines on stderr; exceptions by type and place, never by their text (I22)."""

import logging
import sys
import traceback
from typing import Any

import structlog

from adapters.sdk.errors import HarnessError

MAX_FRAMES = 20
MAX_CAUSES = 5
MAX_DIAGNOSTIC_CHARACTERS = 2_000

Logger = structlog.stdlib.BoundLogger


def get_logger(name: str) -> Logger:
    """A logger; call it with an event name and facts: `log.info("run_ended", run_id=run_id)`. Never prompts, texts, arguments or tokens."""
    return structlog.stdlib.get_logger(name)


def configure_logging(name: str, level: str = "info") -> None:
    """Sends structlog and the standard library's loggers to stderr, one JSON line an entry. For the process's main function."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_exception_text,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _named(name),
                structlog.processors.JSONRenderer(default=repr_of_type),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def describe(error: BaseException) -> dict[str, Any]:
    """Type and place of an exception and of its causes. A text may quote anything and is left out, but for a classified error's own diagnostic."""
    chain: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(chain) < MAX_CAUSES:
        frames = traceback.extract_tb(current.__traceback__)[-MAX_FRAMES:]
        entry: dict[str, Any] = {
            "type": f"{type(current).__module__}.{type(current).__qualname__}",
            "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
        }
        if isinstance(current, HarnessError):
            entry["code"] = current.code
            if current.diagnostic:
                entry["diagnostic"] = current.diagnostic[:MAX_DIAGNOSTIC_CHARACTERS]
        chain.append(entry)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return {**chain[0], "causes": chain[1:]} if len(chain) > 1 else chain[0]


def repr_of_type(value: object) -> str:
    """What stands in a log for a value that is not JSON."""
    return f"<{type(value).__qualname__}>"


def _without_exception_text(_: Any, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    info: object = event.pop("exc_info", None)
    error = sys.exc_info()[1] if info else None
    if isinstance(info, BaseException):
        error = info
    if isinstance(error, BaseException):
        event["error"] = describe(error)
    return event


def _named(name: str) -> structlog.types.Processor:
    def add(_: Any, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        event.setdefault("service", name)
        return event

    return add
