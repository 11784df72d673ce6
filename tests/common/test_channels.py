"""The client side: dead peers are classified, restarted ones found again."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from services.common.channels import connect
from services.common.errors import HarnessError, Reason
from tests.common.conftest import TOKENS, StartToy, ToyProcess
from tests.common.toy import SERVICE, Ask, ToyStub


async def test_a_peer_that_was_never_there_is_unavailable(folder: Path) -> None:
    peer = connect(f"unix:{folder}/absent.sock", TOKENS[0])
    with pytest.raises(HarnessError) as caught:
        await peer.call(ToyStub(peer.channel).one, Ask(do="echo"))
    assert (caught.value.reason, caught.value.retryable) == (Reason.UNAVAILABLE, True)
    assert str(folder) not in str(caught.value)  # I22: no path of ours in a client's error
    await peer.close()


async def test_i34_a_restarted_peer_is_found_again(toy_process: Callable[..., ToyProcess]) -> None:
    toy = toy_process()
    await toy.start()
    peer = connect(toy.address, TOKENS[0])
    stub = ToyStub(peer.channel)
    stream = stub.many(Ask(do="hang_second", count=2), metadata=peer.metadata(), timeout=60)
    await stream.read()
    os.kill(toy.pid, signal.SIGKILL)
    await toy.wait()
    assert (await stream.code()).name == "UNAVAILABLE"
    with pytest.raises(HarnessError) as caught:
        await peer.call(stub.one, Ask(do="echo"))
    assert caught.value.reason is Reason.UNAVAILABLE
    await toy.start()
    assert (await peer.call(stub.one, Ask(do="echo"), timeout=60, wait_for_ready=True)).text == "echo"
    await peer.close()


async def test_i34_a_peer_that_is_slow_to_answer_a_new_connection_is_reached(start_toy: StartToy, folder: Path) -> None:
    """As on a loaded machine: a first call that does not wait for the peer is not failed for it, for nothing is wrong."""
    toy = await start_toy()
    opened: list[asyncio.StreamWriter] = []

    async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.2)  # the slowness itself; longer than any pause between attempts
        inner_reader, inner_writer = await asyncio.open_unix_connection(toy.address.removeprefix("unix:"))
        opened.extend((writer, inner_writer))
        await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))

    async with await asyncio.start_unix_server(admit, folder / "slow.sock"):
        peer = connect(f"unix:{folder}/slow.sock", TOKENS[0])
        assert (await peer.call(ToyStub(peer.channel).one, Ask(do="echo"), timeout=60)).text == "echo"
        await peer.close()
    for writer in opened:
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # whoever let go first
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_i34_an_idempotent_method_is_repeated_and_no_other(start_toy: StartToy) -> None:
    toy = await start_toy()
    peer = connect(toy.address, TOKENS[0], idempotent_methods=[f"{SERVICE}/One"])
    stub = ToyStub(peer.channel)
    assert (await peer.call(stub.one, Ask(do="fail_twice"))).text == "fail_twice"
    toy.servicer.failures = 0
    with pytest.raises(HarnessError) as caught:
        await peer.call(stub.collect, iter([Ask(do="fail_twice")]))
    assert toy.servicer.failures == 1
    assert caught.value.reason is Reason.UNAVAILABLE
    await peer.close()


@pytest.mark.parametrize("address", ["", "x", "unix:x", "host", "host:port"])
async def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="unix"):
        connect(address)
