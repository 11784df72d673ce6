"""The kit before endpoints, drivers and folders that mean it no good: it stays within its bounds, blames who is to blame, and certifies none of them."""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapters.reference.adapter import ReferenceAdapter
from conformance import certification
from conformance.cases import CASES
from conformance.certification import Certification, Options, certify
from conformance.drivers.reference import ReferenceDriver
from conformance.failure import TargetError
from conformance.junit import junit_xml
from conformance.plane import run as plane_run
from conformance.results import FAILED, NOT_VERIFIED, PASSED
from harness.adapter.v1 import adapter_service_pb2
from harness.runtime.v1 import runtime_service_pb2
from tests.conformance.conftest import ROOT, hosted
from tests.conformance.conftest import certify as command
from tests.conformance.mutants.wire import Call, Mutation, Refused, Wire

pytestmark = pytest.mark.timeout(300)
# A coloured lie, a moved cursor, a title, an 8-bit CSI, a reversal, and what XML cannot hold.
ESCAPES = "\x1b[32mCERTIFIED\x1b[0m\x1b]0;x\x07\r\n\x9b2J\u202eevil\x00\ufffe"


async def looked_at(mutation: Mutation, *sections: int) -> Certification:
    async with Wire(mutation) as wire:
        return await certify(Options(wire.address, sections=sections), lambda _: None)


def failures(made: Certification) -> dict[str, str]:
    return {each.case.id: each.reason for each in made.cases if each.result == FAILED}


class Endless(Mutation):
    """Every run goes on for ever, with drafts or with nothing."""

    def __init__(self, *, empty: bool) -> None:
        self.empty, self.sent = empty, 0

    async def unary(self, call: Call) -> Any:
        return runtime_service_pb2.AckRunResponse() if call.method == "AckRun" else await call.proceed()

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        if call.method != "StartRun":
            async for response in call.proceed():
                yield response
            return
        while True:
            response = runtime_service_pb2.StartRunResponse()
            if not self.empty:
                response.batch.first_offset = self.sent + 1
                for _ in range(100):
                    response.batch.drafts.add().payload.content_delta.text = "x"
            self.sent += len(response.batch.drafts)
            yield response


@pytest.mark.parametrize("empty", [True, False])
async def test_i35_a_stream_without_an_end_is_given_up_within_a_bound(empty, monkeypatch):
    monkeypatch.setattr(plane_run, "MAX_DRAFTS", 1_000)
    made = await looked_at(Endless(empty=empty), 8)
    told = failures(made)["R8.1/largest-message"]
    assert "the stream does not end" in told
    assert made.verdict == "failed"


class Dripping(Mutation):
    """Every run goes on for ever, a word at a time."""

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        if call.method != "StartRun":
            async for response in call.proceed():
                yield response
            return
        for offset in itertools.count(1):
            response = runtime_service_pb2.StartRunResponse()
            response.batch.first_offset = offset
            response.batch.drafts.add().payload.content_delta.text = "x"
            yield response
            await asyncio.sleep(0.05)

    async def unary(self, call: Call) -> Any:
        return runtime_service_pb2.AckRunResponse() if call.method == "AckRun" else await call.proceed()


async def test_i35_a_target_that_drips_is_given_up_after_a_few_cases(monkeypatch):
    monkeypatch.setattr(certification, "CASE_SECONDS", 1.0)
    monkeypatch.setattr(certification, "MAX_ENDLESS", 2)
    made = await looked_at(Dripping(), 2, 7)
    told = list(failures(made).values())
    assert sum(reason.startswith("The case did not come to an end") for reason in told) < 2 + certification.AT_ONCE
    assert sum(reason.startswith("Not looked at") for reason in told) > 10
    assert made.verdict == "failed"


async def test_a_server_that_never_says_what_it_is_is_nobody(monkeypatch):
    monkeypatch.setattr(certification, "PROBE_SECONDS", 2.0)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A zero at a time: the beginning of a frame that never comes, until the kit has gone.
        while not reader.at_eof() and not writer.is_closing():
            writer.write(b"\0")
            await asyncio.wait([asyncio.ensure_future(reader.read(1024))], timeout=0.1)
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        with pytest.raises(TargetError, match="Nobody answers"):
            await certify(Options(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"), print)


class Swelling(Mutation):
    """Says far more at once than a message may have."""

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        async for response in call.proceed():
            for draft in response.batch.drafts:
                if draft.payload.HasField("content_delta"):
                    draft.payload.content_delta.text = "x" * (9 * 1024 * 1024)
            yield response


async def test_i35_a_batch_of_more_than_eight_mebibytes_fails_its_case_alone():
    async with Wire(Swelling()) as wire, certification.Certifier(Options(wire.address)) as certifier:
        results = {case.id: await certifier.run(case) for case in CASES if case.id in ("R2.5/text", "R1.1/descriptor")}
    assert "RESOURCE_EXHAUSTED" in results["R2.5/text"].reason
    assert results["R1.1/descriptor"].result == PASSED


async def test_two_kits_at_one_host_do_not_disturb_each_other():
    async with hosted() as address:
        options = Options(address, sections=(1, 10, 12))
        made = await asyncio.gather(*(certify(options, lambda _: None) for _ in range(2)))
    assert [failures(each) for each in made] == [{}, {}]
    assert made[0].document["evidence_id"] == made[1].document["evidence_id"]


async def test_of_two_kits_at_one_worker_one_has_it_and_the_other_says_why_not():
    async with hosted(worker=True) as address, hosted() as described:
        options = Options(address, placement="worker", descriptor=described, sections=(10,))
        async with certification.Certifier(options) as first, certification.Certifier(options) as second:
            case = next(case for case in CASES if case.id == "R10.1/namespace")
            mine, other = await first.run(case), await second.run(case)
        with pytest.raises(TargetError, match="is bound already"):
            await certify(options, print)
    assert (mine.result, other.result) == (PASSED, FAILED)
    assert "This worker is bound for life" in other.reason


class Changing(Mutation):
    """Says something else of itself each time it is asked, but for the first two cases that compare."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.change, self.asked = change, 0

    async def unary(self, call: Call) -> Any:
        response = await call.proceed()
        if call.method == "GetDescriptor":
            self.asked += 1
            if self.asked > 1:
                self.change(response)
        return response


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda response: response.descriptor.capabilities["stream.text"].ClearField("level"), "descriptor is another"),
        (lambda response: setattr(response, "incarnation", "another"), "process is another"),
    ],
)
async def test_a_descriptor_that_changes_after_the_first_look_is_found(change, said):
    made = await looked_at(Changing(change), 1)
    assert said in failures(made)["R1.1/still"]


class Escaping(Mutation):
    """Refuses everything, in colour."""

    async def unary(self, call: Call) -> Any:
        if call.method == "GetDescriptor":
            response = await call.proceed()
            response.descriptor.sdk_name = ESCAPES
            response.descriptor.capabilities["skills"].explanation = ESCAPES
            response.descriptor.capabilities[ESCAPES].level = 1
            return response
        raise Refused(grpc.StatusCode.INTERNAL, ESCAPES, ESCAPES)


async def test_what_a_target_says_is_harmless_in_every_report(tmp_path):
    async with Wire(Escaping()) as wire:
        made = await command("--target", wire.address, "--section", "1", "--report", str(tmp_path))
        read = await command("--target", wire.address, "--section", "1", "--json")
    assert made.code == read.code == 1
    xml = (tmp_path / "junit.xml").read_text()
    for text in (made.out, made.err, read.out, xml, (tmp_path / "certification.json").read_text()):
        assert not set(text) & set("\x1b\x07\x00\x9b\u202e\ufffe"), text
    assert "CERTIFIED" in xml
    document = json.loads(read.out)
    for value in (document["adapter"]["sdk_name"], *(case["reason"] for case in document["cases"])):
        assert "\n" not in value
        assert not set(value) & set(ESCAPES[:1] + "\x9b\u202e")
    assert junit_xml(document)


@asynccontextmanager
async def garbling(*, from_the_start: bool) -> AsyncGenerator[str, None]:
    """A server that answers everything with what is no message; but the descriptor and CreateRuntime, unless `from_the_start`."""
    descriptor = adapter_service_pb2.GetDescriptorResponse(descriptor=ReferenceAdapter().descriptor, incarnation="i")
    created = adapter_service_pb2.CreateRuntimeResponse(created=True, incarnation="i")
    honest = {"GetDescriptor": descriptor, "CreateRuntime": created, "Cleanup": runtime_service_pb2.CleanupResponse()}

    class Garbage(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            name = handler_call_details.method.rpartition("/")[2]
            answer = b"\xff\xff\xff" if from_the_start or name not in honest else honest[name].SerializeToString()

            async def unary(request: bytes, context: Any) -> bytes:
                return answer

            async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
                yield answer

            if name in ("StartRun", "ResumeRun", "AttachRun"):
                return grpc.unary_stream_rpc_method_handler(stream)
            return grpc.unary_unary_rpc_method_handler(unary)

    server = grpc.aio.server(handlers=[Garbage()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_garbage_is_named_as_such():
    async with garbling(from_the_start=True) as address:
        with pytest.raises(TargetError, match=r"GetDescriptor .* no message of its type"):
            await certify(Options(address), print)
    async with garbling(from_the_start=False) as address:
        made = await certify(Options(address, sections=(1, 8)), lambda _: None)
    told = failures(made)
    assert told["R8.1/largest-message"] == "A response of StartRun is no message of its type."
    assert told["R1.5/initialize"] == "A response of Initialize is no message of its type."


class Broke(ReferenceDriver):
    """A driver with defects."""

    def talk(self, said: str) -> str:
        raise RuntimeError("I have no words")

    def burst(self, count: int, size: int) -> str:
        answer: Any = None
        return answer


class Unready(ReferenceDriver):
    """A driver that cannot even begin."""

    def options(self) -> dict[str, Any]:
        raise OSError("no file")


async def test_a_drivers_defect_fails_no_rule_of_the_target():
    async with hosted() as address:
        made = await certify(Options(address, sections=(2, 5), driver=f"{__name__}:Broke"), lambda _: None)
        assert not failures(made)
        told = {each.case.id: each.reason for each in made.cases if each.result == NOT_VERIFIED}
        assert told["R5.1/multi-turn"] == "The scenario driver failed in talk: RuntimeError: I have no words"
        assert told["R2.1/offsets"] == "The scenario driver's burst gave NoneType, not str."
        assert made.document["capabilities"]["session.multi_turn"]["result"] == NOT_VERIFIED
        with pytest.raises(TargetError, match="failed in options: OSError: no file"):
            await certify(Options(address, driver=f"{__name__}:Unready"), print)


async def test_a_report_that_cannot_be_written_is_said_before_anything_is_looked_at(tmp_path):
    taken = tmp_path / "file"
    taken.touch()
    made = await command("--target", f"unix:{tmp_path}/nobody", "--report", str(taken / "report"))
    assert made.code == 2
    assert "--report" in made.err
    assert "Nobody answers" not in made.err


async def test_ctrl_c_cleans_up_and_reports_what_was_looked_at(tmp_path):
    # The first case that is told is the sign that others run.
    async with hosted() as address:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", "certify", "--target", address, "--report", str(tmp_path)),
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        while b" s  " not in (line := await process.stderr.readline()):
            assert line, "it ended by itself"
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"Interrupted" in err
    document = json.loads((Path(tmp_path) / "certification.json").read_text())
    assert document["verdict"] == "partial"
    assert len(document["sections"]) < 12
    assert {case["section"] for case in document["cases"]} == set(document["sections"])
    assert b"no certificate" in out
