"""Structured logs: JSON lines or text; secrets and message bodies never, exceptions without their text (I22)."""

import logging
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, cast

import structlog

from services.common.errors import HarnessError
from services.common.ids import new_incident_id

REDACTED = "[redacted]"
MAX_FRAMES = 20
MAX_CAUSES = 5
MAX_DEPTH = 5
MAX_VALUE_CHARACTERS = 2_000

# Keys whose values never reach a log, whoever passes them (tracing, "Never").
_FORBIDDEN_KEYS = frozenset(
    {
        "arguments", "authorization", "body", "checkpoint", "content", "context", "cookie", "credential", "credentials", "identity_key",
        "memory", "messages", "password", "prompt", "reasoning", "request_body", "result", "secret", "service_token", "service_tokens",
        "stderr", "subject", "system_prompt", "text", "token", "tokens", "user_message",
    }
)  # fmt: skip

Logger = structlog.stdlib.BoundLogger


def configure_logging(service: str, level: str = "info", log_format: Literal["json", "console"] = "json") -> None:
    """Sends structlog and the standard library's loggers (grpc, uvicorn, asyncio) to stderr in one form."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _describe_exception,
        _redact,
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer()
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _service_name(service), renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Logger:
    """A logger; call it with an event name and facts: `log.info("run_taken", run_id=run_id)`."""
    return structlog.stdlib.get_logger(name)


def log_incident(log: Logger, event: str, error: BaseException, **facts: Any) -> str:
    """Logs an unexpected exception by type and place, never by its text, and returns the incident id to show instead (I22)."""
    incident_id = new_incident_id()
    log.error(event, incident_id=incident_id, error=describe_exception(error), **facts)
    return incident_id


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Types and places of an exception and its causes. Texts of exceptions may quote anything and are left out, but for our own safe ones."""
    causes: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(causes) < MAX_CAUSES:
        frames = traceback.extract_tb(current.__traceback__)[-MAX_FRAMES:]
        entry: dict[str, Any] = {
            "type": f"{type(current).__module__}.{type(current).__qualname__}",
            "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
        }
        if isinstance(current, HarnessError):
            entry["reason"] = current.reason.value
        if isinstance(current, OSError) and current.errno is not None:
            entry["errno"] = current.errno
        if isinstance(current, BaseExceptionGroup):
            group = cast(BaseExceptionGroup[BaseException], current)
            entry["of"] = [type(inner).__qualname__ for inner in group.exceptions[:MAX_CAUSES]]
        causes.append(entry)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return {**causes[0], "causes": causes[1:]} if len(causes) > 1 else causes[0]


def _describe_exception(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    if isinstance(info, tuple):
        info = cast(tuple[Any, ...], info)[1]
    if isinstance(info, BaseException):
        event["error"] = describe_exception(info)
    return event


def _redact(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        event[key] = _safe(key, value, 0)
    return event


def _safe(key: object, value: Any, depth: int) -> Any:
    if isinstance(key, str) and key.lower() in _FORBIDDEN_KEYS:
        return REDACTED
    if isinstance(value, BaseException):
        return describe_exception(value)
    if isinstance(value, str):
        return value if len(value) <= MAX_VALUE_CHARACTERS else value[:MAX_VALUE_CHARACTERS] + "…"
    if isinstance(value, Mapping):
        items = cast(Mapping[object, Any], value).items()
        return {str(k): _safe(k, v, depth + 1) for k, v in items} if depth < MAX_DEPTH else "…"
    if isinstance(value, list | tuple):
        return [_safe(None, item, depth + 1) for item in cast(list[Any], value)] if depth < MAX_DEPTH else "…"
    return value


def _service_name(service: str) -> structlog.types.Processor:
    def add(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("service", service)
        return event

    return add
