"""What the bus promises to who publishes: it never blocks, never fails, and is bounded, whatever the server does."""

from __future__ import annotations

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from services.common.errors import ConfigurationError
from services.runs.bus import NoBus, Notice, RedisBus, metrics, open_bus, redis_link
from services.runs.bus.notices import MAX_CARRIED_BYTES, decode, encode, live_key
from services.runs.bus.redis_sender import MAX_QUEUED, MAX_QUEUED_BYTES
from services.runs.segment import Segment
from tests.runs.bus.valkey import ValkeyServer
from tests.runs.live.runlog import settled


def segment(index: int, packed: bytes = b"\n\x00", run_id: str = "r", terminal: bool = False) -> Segment:
    return Segment(run_id, index, index, index, terminal, packed)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://secret@host:1",
        "redis://",
        "redis://:secret@:1",
        "redis://host:secret",
        "unix://",
        "unix:///",
    ],
)
def test_i32_a_url_that_cannot_be_one_is_refused_by_name_and_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigurationError, match="HARNESS_BUS_URL") as error:
        open_bus(url, "test", "holder", 5.0)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["redis://host:6379/0", "rediss://:pw@host:1/2", "unix:///run/bus.sock", "redis://host"]
)
async def test_a_url_that_can_be_one_is_not_dialled_before_the_start(url: str) -> None:
    bus = open_bus(url, "test", "holder", 5.0)
    assert isinstance(bus, RedisBus)
    assert not bus.is_up
    await bus.close()


def test_no_url_is_no_bus() -> None:
    assert isinstance(open_bus(None, "test", "holder", 5.0), NoBus)


def test_a_notice_comes_back_as_it_was_and_a_large_one_without_its_events() -> None:
    for one in (segment(3), segment(4, b"x" * MAX_CARRIED_BYTES, terminal=True)):
        fields = encode(one)
        assert decode("r", dict(zip(fields[::2], fields[1::2], strict=True))) == Notice("r", one.last_sequence, one)
    fields = encode(segment(5, b"x" * (MAX_CARRIED_BYTES + 1)))
    assert decode("r", dict(zip(fields[::2], fields[1::2], strict=True))) == Notice("r", 5, None)


@pytest.mark.parametrize("fields", [{}, {b"at": b""}, {b"at": b"1 2 3"}, {b"at": b"a b c d"}, {b"events": b"x"}])
def test_what_is_none_of_ours_is_no_notice(fields: dict[bytes, bytes]) -> None:
    assert decode("r", fields) is None


async def test_i35_what_cannot_be_sent_is_bounded_and_the_newest_stays(valkey: ValkeyServer) -> None:
    bus = RedisBus(valkey.url, "test")  # not started: nothing is sent
    for index in range(1, MAX_QUEUED * 2):
        bus.publish(segment(index))
    assert bus.queued_bytes <= MAX_QUEUED * 1024
    for index in range(1, 400):
        bus.publish(segment(index, b"x" * MAX_CARRIED_BYTES))
        assert bus.queued_bytes <= MAX_QUEUED_BYTES
    bus.publish(segment(4000, run_id="newest"))
    await bus.start()
    async with valkey.client() as client:
        while not await client.xlen(live_key("newest")):
            pass
    await bus.close()


async def test_a_server_that_never_answers_holds_up_nobody() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        bus = RedisBus(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "test")
        await bus.start()
        for index in range(1, 100):
            bus.publish(segment(index))
            bus.follow(f"run-{index}")
            bus.announce("r")
        connection, _ = await asyncio.get_running_loop().run_in_executor(None, silent.accept)
        assert not bus.is_up
        await bus.close()
        connection.close()


async def test_what_the_server_refuses_is_counted_and_shown(valkey: ValkeyServer) -> None:
    bus = RedisBus(valkey.url, "test")
    await bus.start()
    await settled(lambda: bus.is_up)
    async with valkey.client() as client:
        await client.set(live_key("r"), "not a stream")
        bus.publish(segment(1))
        await settled(lambda: not bus.is_up)
        bus.publish(segment(1, run_id="other"))
        await settled(lambda: bus.is_up)
    await bus.close()


async def test_runs_can_be_followed_and_left_at_any_time(valkey: ValkeyServer) -> None:
    heard: list[tuple[str, int]] = []
    bus, other = RedisBus(valkey.url, "test"), RedisBus(valkey.url, "test")
    bus.listen(lambda notice: heard.append((notice.run_id, notice.last_sequence)))
    await bus.start()
    await other.start()
    for number in range(50):
        run_id = f"run-{number}"
        if number % 2:
            other.publish(segment(1, run_id=run_id))
        bus.follow(run_id)
        other.publish(segment(2, run_id=run_id))
        expected = (run_id, 2)
        await settled(lambda expected=expected: expected in heard)
        if number % 3 == 0:
            bus.unfollow(run_id)
    bus.unfollow("run-1")
    before = len(heard)
    other.publish(segment(3, run_id="run-1"))
    other.publish(segment(3, run_id="run-2"))
    await settled(lambda: ("run-2", 3) in heard)
    assert len(heard) == before + 1
    await bus.close()
    await other.close()


async def test_i35_a_bus_that_comes_and_goes_is_said_once_in_a_while_and_at_last_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_link, "SAID_SECONDS", 0.05)
    health = redis_link.BusHealth()
    with capture_logs() as said:
        for _ in range(500):
            health.answered("one")
            health.failed("one", OSError())
        assert [entry["event"] for entry in said] == ["bus_up"]
        await settled(lambda: len(said) == 2)
        assert (said[1]["event"], said[1]["error"], said[1]["changes"]) == ("bus_away", "OSError", 999)
        health.answered("one")
        await settled(lambda: len(said) == 3)
        assert said[2]["event"] == "bus_up"
    assert metrics.UP._value.get() == 1
    health.close()
