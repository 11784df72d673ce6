"""A certification as JUnit XML: a test suite a section, a test case a case."""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from conformance.capability_keys import SECTIONS
from conformance.plain import plain_text


def junit_xml(document: Mapping[str, Any]) -> bytes:
    """The XML of an evidence document. What is not applicable or not verified counts as skipped, with its reason."""
    totals = document["totals"]
    adapter = document["adapter"]
    root = ET.Element("testsuites", name=plain_text(f"{adapter['harness_id']} {adapter['adapter_version']}"))
    _counts(root, document["cases"], document["seconds"])
    for number in document["sections"]:
        mine = [case for case in document["cases"] if case["section"] == number]
        suite = ET.SubElement(root, "testsuite", name=f"{number} {SECTIONS[number]}")
        _counts(suite, mine, round(sum(case["seconds"] for case in mine), 3))
        for case in mine:
            _case(suite, case)
    root.set("failures", str(totals["failed"]))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _counts(element: ET.Element, cases: list[Any], seconds: float) -> None:
    skipped = sum(case["result"] in ("not_applicable", "not_verified") for case in cases)
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(case["result"] == "failed" for case in cases)))
    element.set("errors", "0")
    element.set("skipped", str(skipped))
    element.set("time", f"{seconds:.3f}")


def _case(suite: ET.Element, case: Mapping[str, Any]) -> None:
    made = ET.SubElement(suite, "testcase", classname=case["rule"], name=f"{case['id']}: {case['title']}")
    made.set("time", f"{case['seconds']:.3f}")
    if case["rehearsed"]:
        properties = ET.SubElement(made, "properties")
        ET.SubElement(properties, "property", name="rehearsed", value="true")
    reason = plain_text(case["reason"])
    if case["result"] == "failed":
        ET.SubElement(made, "failure", message=reason)
    elif case["result"] != "passed":
        ET.SubElement(made, "skipped", message=f"{case['result'].replace('_', ' ')}: {reason}")
