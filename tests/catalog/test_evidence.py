"""Certified is what evidence of exactly the running versions says; everything else is experimental (I21)."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format

import conformance.evidence as kit
from harness.adapter.v1.descriptor_pb2 import Descriptor
from services.catalog.certification import Standing, standing_of
from services.catalog.descriptor_policy import admit
from services.catalog.evidence import (
    MAX_EVIDENCE_BYTES,
    MIN_KIT_VERSION,
    Evidence,
    EvidenceRefused,
    descriptor_digest,
    read_evidence,
)
from services.catalog.evidence_folder import EvidenceFolder, Shelf
from services.catalog.operator_file import AllowedAdapter, Operator, ProfileEntry, load_operator_file
from services.catalog.published import public_harness
from services.catalog.snapshot import HarnessState
from services.common.capabilities import KEYS
from services.common.errors import ConfigurationError
from tests.catalog.conftest import Host, Start
from tests.catalog.processes import AVAILABLE, operator, toy_entry, until
from tests.catalog.toy_adapter import descriptor

EXPERIMENTAL, CERTIFIED, BLOCKED = 1, 2, 3
CANARY = "canary-e51f"
DIGEST = "sha256:" + "0" * 64


def toy(**changes: Any) -> Descriptor:
    return json_format.ParseDict(descriptor(**changes), Descriptor())


def report(**changes: Any) -> dict[str, Any]:
    """What the kit writes about the toy adapter, with the id of its content."""
    capabilities = {
        key: {"claimed": "unavailable", "result": "not_applicable", "reason": "Not claimed.", "rules": []}
        for key in KEYS
    }
    capabilities["stream.text"] = {"claimed": "native", "result": "certified", "reason": "", "rules": ["2.1"]}
    capabilities["session.multi_turn"] = {"claimed": "native", "result": "not_verified", "reason": "x", "rules": []}
    document = {
        "kind": "harness.certification",
        "schema": 1,
        "verdict": "certified",
        "adapter": {
            "harness_id": "toy", "adapter_version": "1.2.3", "sdk_name": "toy-sdk", "sdk_version": "9.1", "contract_version": 1,
            "descriptor_digest": descriptor_digest(toy()),
        },
        "placement": "adapter",
        "replica": False,
        "kit": {"version": "0.1.0", "cases_digest": DIGEST},
        "driver": "reference",
        "sections": list(range(1, 13)),
        "started_at": "2026-01-02T03:04:05Z",
        "seconds": 12.5,
        "totals": {"passed": 100, "failed": 0, "not_applicable": 20, "not_verified": 3},
        "capabilities": capabilities,
        "rules": {"2.1": {"section": 2, "result": "passed", "reason": ""}},
        "cases": [{"id": "c", "rule": "2.1", "section": 2, "title": "Ümläut", "result": "passed", "reason": "", "seconds": 0.5,
                   "figures": {"events": 3.5}}],
        **changes,
    }  # fmt: skip
    document["evidence_id"] = identity(document)
    return document


def identity(document: dict[str, Any]) -> str:
    """The id as the page on certification says it is made, written a second time."""
    kept = {key: value for key, value in document.items() if key not in ("evidence_id", "started_at", "seconds")}
    kept["cases"] = [{k: v for k, v in case.items() if k not in ("seconds", "figures")} for case in kept["cases"]]
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "cert-" + hashlib.sha256(text.encode()).hexdigest()[:32]


def adapter(**changes: Any) -> dict[str, Any]:
    return {"adapter": {**report()["adapter"], **changes}}


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def test_a_report_that_passed_is_evidence() -> None:
    evidence = read_evidence(encoded(report()))
    assert (evidence.harness_id, evidence.adapter_version, evidence.sdk_version) == ("toy", "1.2.3", "9.1")
    assert (evidence.contract_version, evidence.placement, evidence.kit_version) == (1, "adapter", "0.1.0")
    assert evidence.certified == {"stream.text": "native"}
    # Times and figures are no part of what it is.
    later = report(started_at="2027-01-01T00:00:00Z", seconds=99.0)
    later["cases"][0] |= {"seconds": 7.0, "figures": {}}
    assert read_evidence(encoded(later)).evidence_id == evidence.evidence_id


def without(*names: str) -> dict[str, Any]:
    document = {key: value for key, value in report().items() if key not in names}
    return {**document, "evidence_id": identity(document)}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "no JSON"),
        (b"[]", "no JSON object"),
        (b"[" * 5000, "no JSON"),
        (encoded({"schema": 1, "cases": [], "x": json.loads("[" * 300 + "]" * 300)}), ""),
        (encoded(report(schema=2)), "not of schema 1"),
        (encoded(report(schema=True)), "not of schema 1"),
        (encoded(without("schema")), "not of schema 1"),
        (encoded(report(kind="other")), "field kind"),
        (encoded(without("kit")), "field kit"),
        (encoded(report(kit={"version": "1", "cases_digest": "none"})), "field kit.cases_digest"),
        (encoded(report(**adapter(harness_id="../x"))), "field adapter.harness_id"),
        (encoded(report(placement="in_process")), "field placement"),
        (encoded(report(totals={CANARY: "x"})), "field totals is"),
        (encoded(report(capabilities={CANARY: 1})), "field capabilities is"),
        (encoded({**report(), "verdict": "certified", "driver": CANARY}), "something was changed"),
        (encoded({**report(verdict="failed"), "verdict": "certified"}), "something was changed"),
        (
            encoded(report(kit={"version": "0.0.9", "cases_digest": DIGEST})),
            f"kit is older than {MIN_KIT_VERSION}: certify",
        ),
        (encoded(report(kit={"version": "0", "cases_digest": DIGEST})), "certify again with a kit of this release"),
        (encoded(report(kit={"version": "main", "cases_digest": DIGEST})), "kit is older"),
        (encoded(report(verdict="failed")), "verdict is not certified"),
        (encoded(report(verdict="partial")), "verdict is not certified"),
        (encoded(report(sections=[1, 2])), "does not follow from its sections"),
        (encoded(report(totals={"passed": 3, "failed": 1})), "does not follow from its sections and totals"),
        (encoded(report(totals={"passed": 0, "failed": 0})), "does not follow from its sections and totals"),
        (encoded(report(capabilities={})), "does not follow from its capabilities"),
        (b" " * (MAX_EVIDENCE_BYTES + 1), "more than"),
    ],
)
def test_i21_what_is_no_evidence_is_refused_with_the_reason_and_without_its_content(data: bytes, why: str) -> None:
    with pytest.raises(EvidenceRefused) as caught:
        read_evidence(data)
    assert why in str(caught.value)
    assert CANARY not in str(caught.value)


def state(*placements: str, **changes: Any) -> HarnessState:
    """The toy harness as it runs, with a profile for each placement."""
    profiles = {
        each: ProfileEntry.model_validate(
            {"id": each.split("_")[0], "placement": each}
            | ({"sandbox": {"worker_module": "x"}} if each == "sandbox_pod" else {})
        )
        for each in placements or ("provider_managed",)
    }
    allowed = AllowedAdapter("toy", "unix:/x", None, True, {profile.id: profile for profile in profiles.values()})
    return HarnessState(allowed, admit("toy", toy(**changes)))


def evidence(**changes: Any) -> Evidence:
    return read_evidence(encoded(report(**changes)))


def standing(state: HarnessState, *reports: Evidence) -> Standing:
    return standing_of(state, Shelf(tuple(reports)))


def test_i21_evidence_of_the_running_versions_certifies_the_claims_it_looked_at() -> None:
    one = evidence()
    found = standing(state(), one)
    assert (found.certification, found.reason, found.evidence_ids) == (CERTIFIED, "", (one.evidence_id,))
    assert found.shown == {"provider": {"stream.text": one.evidence_id}}
    assert found.evidence_of("stream.text") == one.evidence_id
    # Claimed, and nothing looked at it.
    assert found.evidence_of("session.multi_turn") == ""


NATIVE = "CAPABILITY_LEVEL_NATIVE"


@pytest.mark.parametrize(
    "changes",
    [
        {"capabilities": {"stream.text": {"level": "CAPABILITY_LEVEL_EMULATED"}}},
        {"capabilities": {"stream.text": {"level": NATIVE}, "skills": {"level": NATIVE}}},
        {
            "capabilities": {
                "stream.text": {"level": NATIVE},
                "session.multi_turn": {"level": NATIVE, "constraints": {"n": 1}},
            }
        },
        {"options_schema": {"type": "object", "additionalProperties": False}},
        {"thread_state_strategy": "THREAD_STATE_STRATEGY_LANGGRAPH"},
        {"placements": ["PLACEMENT_PROVIDER_MANAGED", "PLACEMENT_IN_PROCESS"]},
    ],
)
def test_i21_a_claim_that_was_changed_without_a_new_version_turns_it_back(changes: dict[str, Any]) -> None:
    found = standing(state(**changes), evidence())
    assert (found.certification, found.evidence_ids, found.evidence_of("stream.text")) == (EXPERIMENTAL, (), "")
    assert (
        "what it says of its capabilities, their limits, its options or its state is not what was certified"
        in found.reason
    )
    assert "certify it again" in found.reason


def test_i21_texts_for_people_and_an_adapters_own_evidence_change_nothing() -> None:
    said = descriptor()
    capabilities = {
        key: {**claim, "explanation": "Other words.", "evidence_id": "mine"}
        for key, claim in said["capabilities"].items()
    }
    changed = state(description="Other words.", capabilities=capabilities, replay_safe=not said.get("replay_safe"))
    assert standing(changed, evidence()).certification == CERTIFIED


def test_the_kit_and_the_catalog_make_the_same_digest_also_of_what_the_catalog_sanitised() -> None:
    claims = {"skills": {"level": NATIVE, "constraints": {"max_skills": 3, "ratio": 1e-7, "wide": 1e21, "half": 0.5}}}
    schema = {"type": "object", "properties": {"n": {"type": "number", "title": "Ümläut", "multipleOf": 1e-9}}}
    for changes in ({}, {"capabilities": claims}, {"options_schema": schema}, {"contract_versions": [1, 2]}):
        said = toy(**changes)
        kept = admit("toy", said).descriptor
        assert kit.descriptor_digest(said) == descriptor_digest(said) == descriptor_digest(kept)


@pytest.mark.parametrize(
    "running",
    [{"adapter_version": "1.2.4"}, {"sdk_version": "9.2"}, {"sdk_name": "other-sdk"}, {"adapter_version": "1.2.3-rc1"}],
)
def test_i21_another_version_turns_it_back(running: dict[str, Any]) -> None:
    found = standing(state(**running), evidence())
    assert (found.certification, found.evidence_ids, found.evidence_of("stream.text")) == (EXPERIMENTAL, (), "")
    assert "The evidence at hand is of adapter 1.2.3" in found.reason


def test_i21_evidence_of_another_contract_or_harness_certifies_nothing() -> None:
    assert standing(state(), evidence(**adapter(contract_version=2))).certification == EXPERIMENTAL
    other = standing(state(), evidence(**adapter(harness_id="other")))
    assert (other.certification, other.reason) == (EXPERIMENTAL, "There is no evidence for this harness.")


def test_i21_each_placement_needs_its_own_evidence_and_in_process_is_never_certified() -> None:
    hosted, worker = evidence(), evidence(placement="worker")
    both = state("provider_managed", "sandbox_pod")
    found = standing(both, hosted)
    assert (found.certification, found.profiles) == (EXPERIMENTAL, {"provider"})
    assert "these profiles: sandbox" in found.reason
    assert (found.of_profile("provider"), found.of_profile("sandbox")) == (CERTIFIED, EXPERIMENTAL)
    assert standing(both, hosted, worker).certification == CERTIFIED
    assert standing(state(), worker).certification == EXPERIMENTAL
    inside = standing(state("provider_managed", "in_process"), hosted, worker)
    assert inside.certification == EXPERIMENTAL
    assert "never certified: in" in inside.reason
    assert inside.of_profile("in") == EXPERIMENTAL


def test_i21_a_capability_is_shown_by_evidence_of_the_profiles_own_placement() -> None:
    hosted, worker = evidence(), evidence(placement="worker", capabilities=nothing_shown())
    found = standing(state("provider_managed", "sandbox_pod", "in_process"), hosted, worker)
    assert found.shown == {"provider": {"stream.text": hosted.evidence_id}, "sandbox": {}, "in": {}}
    # Of the harness as a whole, which any of its profiles may stand for, it is not shown.
    assert found.evidence_of("stream.text") == ""
    both = standing(state("provider_managed", "sandbox_pod"), hosted, evidence(placement="worker"))
    assert both.evidence_of("stream.text") == hosted.evidence_id


def nothing_shown() -> dict[str, Any]:
    return {key: {**each, "result": "not_verified"} for key, each in report()["capabilities"].items()}


def test_i21_what_is_claimed_and_not_shown_says_so_wherever_it_is_listed() -> None:
    one = evidence()
    listed = public_harness(state(), standing(state(), one)).capabilities
    assert (listed["stream.text"].evidence_id, "not shown" in listed["stream.text"].explanation) == (
        one.evidence_id,
        False,
    )
    claimed = listed["session.multi_turn"]
    assert (claimed.level, claimed.evidence_id) == (1, "")
    assert claimed.explanation.startswith("Claimed, not shown.")
    assert "not shown" not in listed["skills"].explanation  # not claimed either
    long = {"stream.text": {"level": NATIVE, "explanation": "x" * 1000}}
    told = public_harness(state(capabilities=long), standing(state(capabilities=long))).capabilities["stream.text"]
    assert (told.explanation[:20], len(told.explanation)) == ("Claimed, not shown. ", 1000)


def test_why_there_is_no_certification_is_said() -> None:
    assert "never seen" in standing(HarnessState(state().adapter)).reason
    refused = Shelf(refused=(("toy", "its verdict is not certified"),))
    assert standing_of(state(), refused).reason == "Its evidence is refused: its verdict is not certified."


def test_a_folder_is_read_again_when_something_in_it_changes(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path)
    first = folder.changed()
    assert first == Shelf()
    assert folder.changed() is None
    (tmp_path / "toy.json").write_bytes(encoded(report()))
    (tmp_path / "broken.json").write_bytes(b"{")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "certification.json").write_bytes(encoded(report(placement="worker")))
    (tmp_path / "run" / "other.json").write_bytes(b"{")
    (tmp_path / "junit.xml").write_bytes(b"<x/>")
    found = folder.changed()
    assert found is not None
    assert {each.placement for each in found.evidence} == {"adapter", "worker"}
    assert found.refused == (("", "it is no JSON"),)
    assert folder.changed() is None
    (tmp_path / "toy.json").unlink()
    found = folder.changed()
    assert found is not None
    assert {each.placement for each in found.evidence} == {"worker"}
    with pytest.raises(OSError, match="No such file"):
        EvidenceFolder(tmp_path / "gone").changed()


def loaded(folder: Path, evidence: str) -> Operator:
    file = folder / "harness.yaml"
    file.write_text(yaml.safe_dump(operator(certification={"evidence": evidence})))
    return load_operator_file(file, folder, {})


def test_what_is_no_readable_file_is_refused_and_disturbs_no_evidence(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path)
    (tmp_path / "good.json").write_bytes(encoded(report()))
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "missing")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    shelf = folder.changed()
    assert shelf is not None
    assert [each.harness_id for each in shelf.evidence] == ["toy"]
    assert len(shelf.refused) == 4
    assert folder.changed() is None
    # Evidence is taken back whatever else lies there, and a link is followed once it leads somewhere.
    (tmp_path / "good.json").rename(tmp_path / "missing")
    shelf = folder.changed()
    assert shelf is not None
    assert (len(shelf.evidence), len(shelf.refused)) == (1, 3)
    (tmp_path / "nowhere.json").unlink()
    shelf = folder.changed()
    assert shelf is not None
    assert shelf.evidence == ()


def test_i32_a_folder_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    assert loaded(tmp_path, "evidence").evidence == tmp_path / "evidence"
    with pytest.raises(ConfigurationError, match=r"certification.evidence: 'nowhere' is no folder"):
        loaded(tmp_path, "nowhere")


async def test_i21_a_harness_is_certified_as_long_as_the_evidence_fits_what_runs(
    host: Host, start: Start, folder: Path
) -> None:
    (folder / "evidence").mkdir()
    adapter_host = await host()
    profiles = [{"id": "default", "placement": "provider_managed"}]
    config = operator(toy_entry(profiles=profiles), certification={"evidence": "evidence"})
    client = await start(config, adapter_poll_seconds=0.1)
    harness = await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    assert (harness.certification, harness.certification_reason) == (
        EXPERIMENTAL,
        "There is no evidence for this harness.",
    )
    revision = (await client.list()).catalog_revision
    document = report()
    (folder / "evidence" / "toy.json").write_bytes(encoded(document))
    harness = await until(client.harness, lambda harness: harness.certification == CERTIFIED)
    assert (harness.certification_reason, list(harness.evidence_ids)) == ("", [document["evidence_id"]])
    assert harness.profiles[0].certification == CERTIFIED
    assert harness.capabilities["stream.text"].evidence_id == document["evidence_id"]
    assert harness.capabilities["session.multi_turn"].evidence_id == ""  # claimed, and never its own word for it
    assert harness.capabilities["session.multi_turn"].explanation.startswith("Claimed, not shown.")
    assert dict(harness.profiles[0].capability_evidence) == {"stream.text": document["evidence_id"]}
    assert not (await client.resolve()).descriptor.replay_safe  # claimed, and looked at by no rule
    assert (await client.list()).catalog_revision == revision  # it changes no verdict
    adapter_host.says["descriptor"] = descriptor(adapter_version="1.2.4")
    harness = await until(client.harness, lambda harness: harness.adapter_version == "1.2.4")
    assert harness.certification == EXPERIMENTAL
    assert "adapter 1.2.4 with toy-sdk 9.1 and contract 1 is running" in harness.certification_reason
    adapter_host.says["descriptor"] = descriptor()
    await until(client.harness, lambda harness: harness.certification == CERTIFIED)
    (folder / "evidence" / "toy.json").write_bytes(encoded({**document, "verdict": "certified", "driver": CANARY}))
    harness = await until(client.harness, lambda harness: harness.certification != CERTIFIED)
    assert "something was changed" in harness.certification_reason
    assert CANARY not in str(harness)


DURABLE = {"id": "a", "name": "A", "harness": {"id": "toy"}, "thread": {"persistence": "THREAD_PERSISTENCE_DURABLE"}}


async def test_i21_where_evidence_is_required_a_claim_without_it_counts_for_nothing(
    host: Host, start: Start, folder: Path
) -> None:
    (folder / "evidence").mkdir()
    await host()
    profiles = [{"id": "default", "placement": "provider_managed"}]
    certification = {"evidence": "evidence", "require_evidence": True}
    client = await start(operator(toy_entry(profiles=profiles), certification=certification), adapter_poll_seconds=0.1)
    await until(client.harness, lambda harness: harness.availability == AVAILABLE)

    def levels(descriptor: Descriptor) -> dict[str, int]:
        return {key: descriptor.capabilities[key].level for key in ("stream.text", "session.multi_turn")}

    judged = await client.validate(DURABLE)
    assert [issue.path for issue in judged.issues] == ["thread.persistence"]
    assert levels((await client.resolve()).descriptor) == {"stream.text": 4, "session.multi_turn": 4}
    # The listing still says what is claimed.
    assert (await client.harness()).capabilities["stream.text"].level == 1
    shown = report()["capabilities"]
    shown["session.multi_turn"] |= {"result": "certified"}
    (folder / "evidence" / "toy.json").write_bytes(encoded(report(capabilities=shown)))
    await until(client.harness, lambda harness: harness.certification == CERTIFIED)
    again = await client.validate(DURABLE)
    assert (again.valid, list(again.issues)) == (True, [])
    assert again.catalog_revision != judged.catalog_revision  # it is another verdict
    assert levels((await client.resolve()).descriptor) == {"stream.text": 1, "session.multi_turn": 1}
