"""The client side: dead peers are classified, restarted ones found again."""

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
