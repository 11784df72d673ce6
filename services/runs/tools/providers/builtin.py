"""The tools every mesh has: the clock, the calculator, and HTTP GET within an allow-list. The catalog says what a model is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from services.common.clock import Clock
from services.runs.tools.arguments import as_json
from services.runs.tools.providers import calculator
from services.runs.tools.providers.http_get import HttpGet
from services.runs.tools.providers.port import ProviderCall, ProviderFailed
from services.runs.tools.record import Ended, Outcome

BUILTIN: Final = "builtin"
"""What a grant names as provider of these."""


class BuiltinProvider:
    """Runs them in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._http_get = HttpGet()

    async def reach(self) -> None:
        """See `ToolProvider`. They are here."""

    async def invoke(self, call: ProviderCall) -> Ended:
        """See `ToolProvider`."""
        match call.tool_id:
            case "clock":
                return self._time(call.arguments)
            case "calculator":
                return _calculated(call.arguments)
            case "http_get":
                return await self._http_get.invoke(call)
            case _:
                raise ProviderFailed(
                    "tool_unknown", "There is no such built-in tool here.", passing=False, reached=False
                )

    def _time(self, arguments: Mapping[str, Any]) -> Ended:
        name = str(arguments.get("timezone", "UTC"))
        try:
            zone = UTC if name == "UTC" else ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return Ended.failed("timezone_unknown", "There is no such time zone: give an IANA name, as Europe/Paris.")
        now = datetime.fromtimestamp(int(self._clock.wall()), zone)
        return _answer({"time": now.isoformat(), "timezone": name, "weekday": now.strftime("%A")})


def _calculated(arguments: Mapping[str, Any]) -> Ended:
    try:
        return _answer({"value": calculator.value_of(str(arguments["expression"]))})
    except calculator.NotArithmetic as problem:
        return Ended.failed("not_arithmetic", str(problem))


def _answer(result: Mapping[str, Any]) -> Ended:
    return Ended(Outcome.SUCCESS, as_json(result))
