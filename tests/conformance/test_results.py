"""What follows from the results of cases: for rules, capabilities, the verdict, and the evidence id."""

import copy
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from conformance import evidence
from conformance.cases import CASES
from conformance.certification import Options, _document
from conformance.drivers import file_of
from conformance.results import (
    CERTIFIED,
    FAILED,
    INCOMPLETE,
    NOT_APPLICABLE,
    NOT_VERIFIED,
    PARTIAL,
    PASSED,
    CaseResult,
    capability_results,
    not_for,
    rule_results,
    verdict,
)
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import capability_pb2

EVERYTHING = range(1, 13)


def descriptor(**levels: str) -> descriptor_pb2.Descriptor:
    """Claims by key, with `__` for the dot."""
    made = descriptor_pb2.Descriptor(harness_id="some", adapter_version="1.2.3", sdk_name="sdk", sdk_version="4")
    for key, level in levels.items():
        claim = made.capabilities[key.replace("__", ".")]
        claim.level = capability_pb2.CapabilityLevel.Value(f"CAPABILITY_LEVEL_{level.upper()}")
        claim.explanation = "So it is."
    return made


def results(of, default=PASSED, placement="adapter", **by_id: str):
    """A result for every case: what does not apply to the descriptor does not, others passed unless said otherwise."""
    made = []
    for case in CASES:
        why_not = not_for(case, of, placement)
        said = by_id.get(case.rule.id.replace(".", "_"), default)
        made.append(CaseResult(case, NOT_APPLICABLE, why_not) if why_not else CaseResult(case, said, "because"))
    return made


def judged(of, made, sections: Iterable[int] = EVERYTHING, placement="adapter"):
    rules = rule_results(made, placement)
    capabilities = {each.key: each for each in capability_results(rules, of, placement)}
    return verdict(made, rules, sections), capabilities


def test_all_passed_is_certified_and_what_is_not_claimed_is_no_part_of_it():
    of = descriptor(stream__text="native", skills="unsupported", tool__mcp="unavailable")
    whole, capabilities = judged(of, results(of))
    assert whole == CERTIFIED
    assert capabilities["stream.text"].result == CERTIFIED
    assert capabilities["stream.text"].rules == ("R2.5", "R2.8")
    for key, claimed in (("skills", "unsupported"), ("tool.mcp", "unavailable"), ("subagents", "unavailable")):
        assert (capabilities[key].claimed, capabilities[key].result) == (claimed, NOT_APPLICABLE)
    assert capabilities["skills"].reason == "So it is."
    assert len(capabilities) == 38


def test_a_claim_that_fails_fails_the_whole():
    of = descriptor(stream__text="emulated", stream__usage="native")
    whole, capabilities = judged(of, results(of, R2_7=FAILED))
    assert whole == FAILED
    assert (capabilities["stream.usage"].result, capabilities["stream.text"].result) == (FAILED, CERTIFIED)
    assert capabilities["stream.usage"].reason == "R2.7: because"


def test_a_claim_that_nothing_looks_at_is_never_certified_and_stops_nothing():
    of = descriptor(tool__mcp="native", memory__semantic="native", stream__text="native")
    whole, capabilities = judged(of, results(of))
    assert whole == CERTIFIED
    assert capabilities["tool.mcp"].result == capabilities["memory.semantic"].result == NOT_VERIFIED


def test_a_rule_on_either_of_two_claims_applies_to_one_and_is_about_both():
    documents = descriptor(input__documents="native", input__images="unsupported")
    _, capabilities = judged(documents, results(documents))
    assert capabilities["input.documents"].rules == tuple(f"R8.{number}" for number in range(3, 11))
    assert capabilities["input.images"].result == NOT_APPLICABLE
    both = descriptor(input__documents="native", input__images="native")
    _, capabilities = judged(both, results(both, R8_4=FAILED))
    assert capabilities["input.documents"].result == capabilities["input.images"].result == FAILED
    neither = descriptor(input__documents="unsupported")
    assert {
        each.case.rule.id for each in results(neither) if each.result == PASSED and each.case.rule.section == 8
    } == {"R8.1"}
    # Nobody who claims no files is kept from a certificate by rules on them.
    claimed = descriptor(input__documents="native")
    assert judged(claimed, results(claimed, R8_4=NOT_VERIFIED))[0] == CERTIFIED


def test_what_the_driver_cannot_say_is_not_verified():
    of = descriptor(stream__text="native", stream__reasoning="native")
    whole, capabilities = judged(of, results(of, R2_6=NOT_VERIFIED))
    assert whole == CERTIFIED
    assert capabilities["stream.reasoning"].result == NOT_VERIFIED


def test_a_rule_for_everybody_that_was_not_looked_at_means_no_certificate():
    of = descriptor(stream__text="native")
    assert judged(of, results(of, R2_3=NOT_VERIFIED))[0] == INCOMPLETE


def test_chosen_sections_are_never_a_certificate():
    of = descriptor(stream__text="native", runtime__cancel="native")
    made = [each for each in results(of) if each.case.rule.section == 2]
    whole, capabilities = judged(of, made, sections=[2])
    assert whole == PARTIAL
    assert capabilities["stream.text"].result == CERTIFIED
    # None of its rules was among them.
    assert capabilities["runtime.cancel"].result == NOT_VERIFIED
    failing = [CaseResult(made[0].case, FAILED, "because"), *made[1:]]
    assert judged(of, failing, sections=[2])[0] == FAILED


def test_a_capability_is_certified_by_all_its_rules_or_not_at_all():
    # R7.7 is about cancel, too, but needs tools that are not claimed; R7.2 is enough then, and R7.2 must have been there.
    of = descriptor(runtime__cancel="native")
    assert judged(of, results(of))[1]["runtime.cancel"].result == CERTIFIED
    without = [each for each in results(of) if each.case.rule.id != "R7.2"]
    assert judged(of, without)[1]["runtime.cancel"].result == NOT_VERIFIED


def test_what_the_other_placement_shows_is_not_verified_here():
    of = descriptor(session__clear="native", stream__text="native")
    made = results(of, placement="worker")
    whole, capabilities = judged(of, made, placement="worker")
    assert whole == CERTIFIED
    assert capabilities["session.clear"].result == NOT_VERIFIED
    assert capabilities["stream.text"].result == CERTIFIED


def document(of, **by_id: str):
    return _document(Options("unix:/a"), of, results(of, **by_id), replica=False)


def test_the_id_is_the_digest_of_everything_but_times_and_figures():
    of = descriptor(stream__text="native")
    made = document(of)
    assert made["evidence_id"] == evidence.evidence_id(made)
    assert made["evidence_id"].startswith("cert-")
    assert len(made["evidence_id"]) == 37
    later = copy.deepcopy(made)
    later["started_at"], later["seconds"] = "2030-01-01T00:00:00Z", 99.0
    later["cases"][0]["seconds"], later["cases"][0]["figures"] = 9.0, {"n": 1}
    assert evidence.evidence_id(later) == made["evidence_id"]
    for change in (
        lambda d: d.update(verdict="failed"),
        lambda d: d["adapter"].update(adapter_version="1.2.4"),
        lambda d: d["adapter"].update(sdk_version="5"),
        lambda d: d["kit"].update(cases_digest="sha256:0"),
        lambda d: d["capabilities"]["skills"].update(result="certified"),
        lambda d: d["cases"][0].update(result="passed", reason="x"),
    ):
        forged = copy.deepcopy(made)
        change(forged)
        assert evidence.evidence_id(forged) != made["evidence_id"]


def test_the_descriptors_digest_is_of_its_claims_and_not_of_its_evidence_or_words():
    one, other = descriptor(stream__text="native"), descriptor(stream__text="native")
    other.evidence_id = "cert-1"
    other.description = "Other words."
    other.capabilities["stream.text"].evidence_id = "cert-1"
    other.capabilities["stream.text"].explanation = "Other words."
    other.capabilities["skills"].level = capability_pb2.CAPABILITY_LEVEL_UNAVAILABLE
    assert evidence.descriptor_digest(one) == evidence.descriptor_digest(other)
    other.capabilities["stream.text"].level = capability_pb2.CAPABILITY_LEVEL_EMULATED
    assert evidence.descriptor_digest(one) != evidence.descriptor_digest(other)


@pytest.mark.parametrize(
    "name", ["results.py", "kit.py", "certification.py", "cases/section_02.py", "drivers/claude.py"]
)
def test_everything_that_decides_is_in_the_digest_of_the_cases(name, tmp_path, monkeypatch):
    package = tmp_path / "conformance"
    shutil.copytree(Path(evidence.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(evidence, "__file__", str(package / "evidence.py"))
    before = evidence.cases_digest()
    with (package / "junit.py").open("a") as shown:
        shown.write("# only how it is shown\n")
    assert evidence.cases_digest() == before
    with (package / name).open("a") as deciding:
        deciding.write("# another rule\n")
    assert evidence.cases_digest() != before


def test_an_authors_own_driver_is_in_it_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    own = tmp_path / "own_words.py"
    own.write_text("from conformance.drivers.reference import ReferenceDriver as Words\n")
    assert file_of("reference") is None
    with_own = evidence.cases_digest(file_of("own_words:Words"))
    assert with_own != evidence.cases_digest()
    own.write_text("from conformance.drivers.reference import ReferenceDriver as Words  # and more\n")
    assert evidence.cases_digest(file_of("own_words:Words")) != with_own
