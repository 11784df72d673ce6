"""What a run used, over all its invocations."""

from collections.abc import Iterator, Mapping
from typing import Any

from adapters.sdk import events
from adapters.sdk.events import Draft


class Usage:
    """Sums; nothing is said of what was never told."""

    def __init__(self) -> None:
        self._known = False
        self._read = self._written = 0
        self._cached: int | None = None

    def add(self, counts: Mapping[str, Any]) -> Iterator[Draft]:
        """One invocation of the model more, and the sum so far. Raises KeyError or ValueError for what is no usage."""
        cached = counts.get("cacheReadInputTokens")
        self._known = True
        # The service counts what came from a cache, or went into one, apart; the model read it all the same.
        self._read += int(counts["inputTokens"]) + int(cached or 0) + int(counts.get("cacheWriteInputTokens") or 0)
        self._written += int(counts["outputTokens"])
        if cached is not None:
            self._cached = (self._cached or 0) + int(cached)
        yield self._draft(final=False)

    def final(self) -> Iterator[Draft]:
        """The sum of the run, once, before it ends."""
        if self._known:
            yield self._draft(final=True)

    def _draft(self, *, final: bool) -> Draft:
        return events.usage(
            input_tokens=self._read, output_tokens=self._written, cached_input_tokens=self._cached, final=final
        )
