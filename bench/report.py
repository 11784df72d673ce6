"""The table: ours, with replicas, the ceiling, ours over the ceiling, the goal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from statistics import median
from typing import Any

Figures = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; None: not measured."""

    work: str
    unit: str
    ours: float | None
    ceiling: float | None
    goal: str
    replicated: float | None = None
    """Ours with several processes of services."""

    @property
    def ratio(self) -> float | None:
        """Ours over the ceiling."""
        return self.ours / self.ceiling if self.ours is not None and self.ceiling else None

    @property
    def gain(self) -> float | None:
        """With replicas over ours."""
        return self.replicated / self.ours if self.replicated is not None and self.ours else None


@dataclass(frozen=True, slots=True)
class _Column:
    work: str
    unit: str
    mode: str
    goal: str
    belongs: Callable[[Any], bool]
    figure: Callable[[Any], float]


def _always(_: Any) -> bool:
    return True


def _columns(most_subscribers: int) -> list[_Column]:
    def alone(result: Any) -> bool:
        return result.lanes == 1

    def many(result: Any) -> bool:
        return result.lanes > 1

    def fanned(result: Any) -> bool:
        return result.subscribers == most_subscribers

    def paged(result: Any) -> bool:
        return bool(result.json_events)

    return [
        _Column("start a run, 1 at a time, p50", "ms", "post", "", alone, lambda r: r.post.p50),
        _Column("start a run, 32 at once", "/s", "post", "", many, lambda r: r.posts_per_second),
        _Column("runs of 20 events, 32 at once", "/s", "runs", "≥ 420", many, lambda r: r.runs_per_second),
        _Column("CPU of such a run, all processes", "ms", "runs", "≤ 4", many, lambda r: r.cpu_ms_per_run),
        _Column("start to first event, 1 at a time, p50", "ms", "runs", "≤ 6", alone, lambda r: r.first_event.p50),
        _Column("start to first event, 32 at once, p50", "ms", "runs", "≤ 40", many, lambda r: r.first_event.p50),
        _Column("one long run", "events/s", "big", "≥ 80000", lambda r: not r.yields, lambda r: r.events_per_second),
        _Column("one long run that yields", "events/s", "big", "", lambda r: r.yields, lambda r: r.events_per_second),
        _Column("replay over SSE", "events/s", "replay", "≥ 120000", _always, lambda r: r.sse_events_per_second),
        _Column("replay in JSON pages", "events/s", "replay", "", paged, lambda r: r.json_events_per_second),
        _Column(
            f"fan-out to {most_subscribers}", "events/s", "fanout", "≥ 45000", fanned, lambda r: r.delivered_per_second
        ),
        _Column(f"fan-out to {most_subscribers}, p99", "ms", "fanout", "≤ 150", fanned, lambda r: r.latency.p99),
        _Column("CPU of a delivered event", "µs", "fanout", "≤ 22", fanned, lambda r: r.cpu_us_per_event),
        _Column(
            "memory of subscribers that never read", "MiB", "stuck", "< 120", _always, lambda r: r.memory_growth_mib
        ),
    ]


def rows(ours: Figures, ceiling: Figures, replicated: Figures | None = None) -> list[Row]:
    """The lines of what was measured; each figure is the median of its repetitions."""
    several = replicated or {}
    subscribers = [result.subscribers for result in ours.get("fanout", ())]
    table = [
        Row(
            column.work,
            column.unit,
            _median(column, ours.get(column.mode, ())),
            _median(column, ceiling.get(column.mode, ())),
            column.goal,
            _median(column, several.get(column.mode, ())),
        )
        for column in _columns(max(subscribers, default=0))
    ]
    return [row for row in [*table, *_growth(ours.get("history", ()))] if row.ours is not None]


def problems(figures: Figures) -> list[str]:
    """What makes the figures worthless: wrong sequences, runs that did not complete, events not delivered."""
    found: list[str] = []
    for mode, results in figures.items():
        for result in results:
            values = _flat(plain(result))
            if wrong := sum(value for name, value in values if name == "sequence_errors"):
                found.append(f"{mode}: {wrong} sequence errors")
            if wrong := sum(value for name, value in values if name == "not_completed"):
                found.append(f"{mode}: {wrong} runs did not complete")
            found += [
                f"{mode}: a run ended as {value}"
                for name, value in values
                if name in ("terminal", "status") and value != "completed"
            ]
        if mode == "fanout":
            found += [
                f"fanout: {result.completed} of {result.subscribers} subscribers saw the end"
                for result in results
                if result.completed != result.subscribers
            ]
    return found


def table_text(table: Sequence[Row]) -> str:
    """The table for people."""
    with_replicas = any(row.replicated is not None for row in table)
    lines = [("work", "ours", *(["with replicas", "over ours"] if with_replicas else []), "ceiling", "ratio", "goal")]
    for row in table:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        gain = "" if row.gain is None else f"{row.gain:.2f}"
        replicated = [_number(row.replicated, row.unit), gain] if with_replicas else []
        lines.append(
            (row.work, _number(row.ours, row.unit), *replicated, _number(row.ceiling, row.unit), ratio, row.goal)
        )
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def busy_text(figures: Figures, cores: float | None) -> str:
    """What each process did for runs at many lanes: CPU of a run and, with a share of `cores`, how much of it that took; the busiest first."""
    many = [result for result in figures.get("runs", ()) if result.lanes > 1]
    lines: list[tuple[float, str]] = []
    for name in sorted({name for result in many for name in result.cpu_ms_of}):
        cpu = median(result.cpu_ms_of.get(name, 0.0) for result in many)
        used = median(result.cpu_ms_of.get(name, 0.0) * result.runs_per_second / 1000 for result in many)
        of_share = "" if cores is None else f", {used / cores:.0%} of {cores:g}"
        lines.append((used, f"  {name:<20} {cpu:6.2f} ms CPU a run, {used:.3f} cores{of_share}"))
    return "\n".join(line for _, line in sorted(lines, reverse=True))


def plain(value: Any) -> Any:
    """Figures as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def _growth(history: Sequence[Any]) -> list[Row]:
    if len(history) < 2:
        return []
    first, last = history[0], history[-1]
    total = sum(part["runs"].runs for part in history)
    cpu = last["runs"].cpu_ms_per_run / first["runs"].cpu_ms_per_run
    memory = last["memory_mib"] - first["memory_mib"]
    return [
        Row(f"CPU of a run after {total} over that at the start", "×", cpu, None, "flat"),
        Row(f"memory grown over {total} runs", "MiB", memory, None, "flat"),
    ]


def _median(column: _Column, results: Sequence[Any]) -> float | None:
    figures = [column.figure(result) for result in results if column.belongs(result)]
    return median(figures) if figures else None


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:,.2f} {unit}"


def _flat(value: Any) -> list[tuple[str, Any]]:
    """Every named leaf of figures."""
    if isinstance(value, Mapping):
        return [
            leaf
            for name, item in value.items()
            for leaf in (_flat(item) if isinstance(item, Mapping) else [(str(name), item)])
        ]
    return []
