"""`harness certify` against the reference adapter in both placements, and against what is none (certification)."""

import json
import sys
from xml.etree import ElementTree as ET

import pytest

from adapters.sdk import events
from cli.main import run as command
from conformance import evidence
from conformance.capability_keys import CAPABILITY_KEYS
from conformance.certification import Options
from conformance.certification import certify as run
from conformance.failure import TargetError
from conformance.junit import junit_xml
from conformance.rules import RULES, WORKER
from tests.adapters.scripted import SteeredAdapter
from tests.conformance.conftest import certify, ended, hosted

# A certification and what it needs to start, on a machine that does a lot else.
pytestmark = pytest.mark.timeout(300)


async def test_the_reference_adapter_is_certified(start, folder):
    adapter, report = await start(), folder / "report"
    async with hosted() as replica:
        made = await certify("--target", adapter.address, "--replica", replica, "--report", str(report))
    assert made.code == 0, made.out + made.err
    assert made.out.splitlines()[-2].startswith("CERTIFIED  reference ")
    assert "R2.3/one-terminal" in made.err
    document = json.loads((report / "certification.json").read_text())
    assert document["verdict"] == "certified"
    assert document["evidence_id"] == evidence.evidence_id(document)
    assert document["evidence_id"] in made.out
    assert document["adapter"]["harness_id"] == "reference"
    assert (document["placement"], document["replica"], document["driver"]) == ("adapter", True, "reference")
    assert document["totals"]["failed"] == document["totals"]["not_verified"] == 0
    assert set(document["rules"]) == {rule.id for rule in RULES}
    assert tuple(document["capabilities"]) == CAPABILITY_KEYS
    # What the reference harness claims is looked at, but for two claims about what crosses no wire.
    claims = document["capabilities"].values()
    assert {claim["result"] for claim in claims} <= {"certified", "not_applicable", "not_verified"}
    unverified = {key for key, claim in document["capabilities"].items() if claim["result"] == "not_verified"}
    assert unverified == {"observability.redaction", "runtime.sandbox_isolation"}
    assert document["capabilities"]["tool.mcp"]["result"] == "not_applicable"
    for key in ("input.images", "input.documents", "skills"):
        assert document["capabilities"][key]["result"] == "certified"
    replicas = [case["figures"] for case in document["cases"] if case["id"] == "R5.6/another-replica"]
    assert replicas == [{"replica": "another process"}]
    suites = ET.parse(report / "junit.xml").getroot()  # noqa: S314 - our own
    assert suites.get("tests") == str(len(document["cases"]))
    assert suites.get("failures") == "0"
    assert len(suites.findall("testsuite/testcase")) == len(document["cases"])
    skipped = document["totals"]["not_applicable"]
    assert len(suites.findall("testsuite/testcase/skipped")) == skipped
    assert suites.get("skipped") == str(skipped)


async def test_the_reference_worker_is_certified_and_shut_down(start):
    worker = await start("--worker")
    async with hosted() as adapter:
        heard = []
        made = await run(Options(worker.address, WORKER, descriptor=adapter), heard.append)
    assert made.verdict == "certified", [each for each in made.cases if each.result == "failed"]
    assert len(heard) == len(made.cases)
    document = made.document
    assert (document["verdict"], document["placement"]) == ("certified", "worker")
    assert document["rules"]["R1.15"]["result"] == document["rules"]["R1.16"]["result"] == "passed"
    assert document["rules"]["R1.3"]["result"] == "not_applicable"
    # Shown in an adapter host only.
    assert document["capabilities"]["session.clear"]["result"] == "not_verified"
    assert await worker.wait() == 0


async def test_several_workers_share_the_cases_and_are_all_shut_down(start):
    workers = [await start("--worker") for _ in range(3)]
    first, *others = [each.address for each in workers]
    busy: set[str] = set()
    async with hosted() as adapter:
        for beside, said in (([first], "given twice"), ([adapter], "no worker")):
            with pytest.raises(TargetError, match=said):
                await run(Options(first, WORKER, descriptor=adapter, beside=tuple(beside)), print)
        options = Options(first, WORKER, sections=(1, 2, 7), descriptor=adapter, beside=tuple(others))
        made = await run(options, lambda result: busy.add(result.case.id))
    assert made.verdict == "partial", [each for each in made.cases if each.result == "failed"]
    assert busy == {each.case.id for each in made.cases}
    assert [await each.wait() for each in workers] == [0, 0, 0]


async def _says_the_same(turn):
    yield events.text("whatever you say")
    yield events.completed()


async def test_an_adapter_that_does_not_do_what_it_claims_is_not_certified():
    # It claims stream.text, and says one thing only.
    async with hosted(lambda: SteeredAdapter(_says_the_same)) as address:
        made = await certify("--target", address, "--section", "2", "--json")
    assert made.code == 1
    document = made.document
    assert document["verdict"] == "failed"
    assert document["capabilities"]["stream.text"]["result"] == "failed"
    assert document["rules"]["R2.5"]["result"] == "failed"
    assert "R2.5" in document["capabilities"]["stream.text"]["reason"]
    assert document["rules"]["R2.6"]["result"] == "not_applicable"
    failures = ET.fromstring(junit_xml(document)).findall("testsuite/testcase/failure")  # noqa: S314 - our own
    assert len(failures) == document["totals"]["failed"]


async def test_some_sections_are_no_certificate_and_a_token_opens_the_target(folder):
    token = folder / "token"
    token.write_text("adapter-token-of-this-test\n")
    async with hosted(token="adapter-token-of-this-test") as address:
        with pytest.raises(TargetError, match="wants a token"):
            await run(Options(address), print)
        made = await certify(
            "--target", address, "--section", "8", "--section", "4", "--token-file", str(token), "--json"
        )
    assert made.code == 8, made.out + made.err
    assert made.err == ""
    document = made.document
    assert (document["verdict"], document["sections"]) == ("partial", [4, 8])
    assert {case["section"] for case in document["cases"]} == {4, 8}
    assert "adapter-token-of-this-test" not in made.out


async def test_what_cannot_be_certified_is_said(folder):
    wrong = folder / "descriptor.json"
    wrong.write_text("{}")
    async with hosted() as adapter, hosted(worker=True) as worker:
        for options, said, hint in (
            (Options("nonsense"), "no address", "unix:/path or host:port"),
            (Options(worker), "no adapter", "--placement worker"),
            (Options(worker, WORKER), "does not say", "--descriptor"),
            (Options(adapter, WORKER, descriptor=adapter), "no worker", "--placement adapter"),
            (Options(worker, WORKER, descriptor=str(wrong)), "another adapter", "descriptor"),
            (Options(worker, WORKER, descriptor=str(token_of(folder))), "holds no descriptor", "protobuf JSON"),
            (Options(adapter, replica=f"unix:{folder}/nobody"), "--replica", "running"),
            (Options(adapter, driver="crystal-ball"), "no scenario driver", "reference"),
            (Options(adapter, facades="192.0.2.1:1"), "cannot serve its facades", "--facades"),
        ):
            with pytest.raises(TargetError) as refused:
                await run(options, print)
            assert said in str(refused.value)
            assert hint in refused.value.hint
            assert refused.value.unreachable == (said == "--replica")


def token_of(folder):
    """A file that is no JSON."""
    path = folder / "token"
    path.write_text("a token")
    return path


async def test_nobody_there_is_told_with_a_code_of_its_own(folder):
    made = await certify("--target", f"unix:{folder}/nobody", "--json")
    assert (made.code, made.out) == (3, "")
    error = json.loads(made.err)
    assert error["code"] == "unreachable"
    assert "Nobody answers" in error["error"]


def test_wrong_use_is_refused_before_anything_is_called(folder, capsys):
    empty = folder / "token"
    empty.touch()
    for arguments, said in (
        (("--placement", "moon"), "neither adapter nor worker"),
        (("--section", "13"), "section"),
        (("--token-file", str(empty)), "is empty"),
        (("--token-file", str(folder / "none")), "cannot be read"),
    ):
        assert command(["certify", "--target", "unix:/nowhere", *arguments]) == 2
        assert said in capsys.readouterr().err


async def test_the_plugin_has_the_same_cases():
    suite = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "conformance.plugin")
    arguments = ("--certify-section", "8", "--certify-section", "12", "--pyargs", "conformance.suite")
    async with hosted() as address:
        made = await ended(*suite, "--certify-target", address, *arguments)
    assert made.code == 0, made.out + made.err
    assert "24 passed, 2 skipped" in made.out
    assert "observability.trace_propagation is unavailable" in made.out
