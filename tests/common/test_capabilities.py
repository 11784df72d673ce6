"""What a blueprint and a turn's files need of a harness, and how a person is told what is missing."""

from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2

from harness.common.v1 import blueprint_pb2
from harness.common.v1.capability_pb2 import Capability
from harness.runtime.v1.runtime_pb2 import FileRef
from services.common.capabilities import COMPARED, KEYS, Limit, Need, constraint_problem, file_needs, needs, unmet

NATIVE, UNSUPPORTED, UNAVAILABLE = 1, 3, 4


def claim(level: int = NATIVE, **constraints: Any) -> Capability:
    return json_format.ParseDict({"level": level, "constraints": constraints}, Capability())


ABLE = {key: claim() for key in KEYS}


def blueprint(**fields: Any) -> blueprint_pb2.AgentBlueprint:
    return json_format.ParseDict({"id": "a", "name": "A", **fields}, blueprint_pb2.AgentBlueprint())


def issues(agent: blueprint_pb2.AgentBlueprint, **claims: Capability) -> dict[str, str]:
    """Messages by path; claims are named with __ for the dot."""
    changed = {key.replace("__", "."): value for key, value in claims.items()}
    found = list(unmet(needs(agent), ABLE | changed, "toy"))
    assert all(issue.code == "harness_capability_unsupported" for issue in found)
    assert len({issue.path for issue in found}) == len(found)  # one a field
    return {issue.path: issue.message for issue in found}


TOOLS = {"tools": {"bindings": [{"tool_id": "a"}, {"tool_id": "b"}]}, "limits": {"max_tool_calls": 50}}
AGENTS = {"delegation": {"agents": ["x", "y"], "max_depth": 3, "max_parallel": 4}}
WORKSPACE = {"workspace": {"persistence": "WORKSPACE_PERSISTENCE_THREAD"}}
SHARED = {
    "memory": {
        "enabled": True,
        "read_scopes": ["MEMORY_SCOPE_USER", "MEMORY_SCOPE_AGENT"],
        "write_scope": "MEMORY_SCOPE_AGENT",
        "write_policy": "MEMORY_WRITE_POLICY_AUTOMATIC",
    }
}


@pytest.mark.parametrize(
    ("agent", "key", "constraints", "paths"),
    [
        (TOOLS, "tool__builtin", {"max_tools": 1}, {"tools.bindings"}),
        (TOOLS, "tool__builtin", {"max_tool_calls": 49}, {"limits.max_tool_calls"}),
        (TOOLS, "tool__builtin", {"max_tools": 2, "max_tool_calls": 50, "other": "x"}, set()),
        (AGENTS, "subagents", {"max_agents": 1, "max_depth": 2, "max_parallel": 3},
         {"delegation.agents", "delegation.max_depth", "delegation.max_parallel"}),
        (AGENTS, "subagents", {"max_agents": 2, "max_depth": 3, "max_parallel": 4}, set()),
        ({"skills": ["s", "t"]}, "skills", {"max_skills": 1}, {"skills"}),
        (WORKSPACE, "runtime__sandbox_isolation", {"persistence": ["run"]}, {"workspace.persistence"}),
        (WORKSPACE, "runtime__sandbox_isolation", {"persistence": ["run", "thread"]}, set()),
        (SHARED, "memory__shared_policy", {"scopes": ["organization"]}, {"memory.read_scopes[1]", "memory.write_scope"}),
        (SHARED, "memory__shared_policy", {"scopes": ["agent"]}, set()),
    ],
)  # fmt: skip
def test_constraints_are_compared_with_the_field_they_bound(
    agent: dict[str, Any], key: str, constraints: dict[str, Any], paths: set[str]
) -> None:
    others = {"tool__mcp": claim(UNAVAILABLE)} if key == "tool__builtin" else {}
    found = issues(blueprint(**agent), **{key: claim(**constraints)}, **others)
    assert set(found) == paths
    assert all(name in " ".join(found.values()) for name in constraints if paths and len(constraints) == 1)


def test_portable_tools_come_through_the_broker_and_no_other_way() -> None:
    agent = blueprint(**TOOLS)
    assert issues(agent, tool__mcp=claim(UNSUPPORTED), tool__builtin=claim(max_tools=2)) == {}
    assert set(issues(agent, tool__mcp=claim(), tool__builtin=claim(UNAVAILABLE))) == {"tools.bindings"}
    found = issues(agent, tool__mcp=claim(max_tools=9), tool__builtin=claim(max_tools=1))
    assert found == {
        "tools.bindings": "Harness toy takes max_tools 1, 2 is asked: remove some of the tools, or choose another harness."
    }


def test_one_of_two_ways_has_to_serve_the_whole_of_a_need() -> None:
    limits = (Limit("a", "max_tools", 5, "less"), Limit("b", "max_tool_calls", 5, "fewer"))
    need = Need("a", "both", ("tool.mcp", "tool.builtin"), "remove it", limits)
    half, other = claim(max_tools=9, max_tool_calls=1), claim(max_tools=1, max_tool_calls=9)
    assert {issue.path for issue in unmet([need], {"tool.mcp": half, "tool.builtin": other}, "toy")} == {"a", "b"}
    assert not list(unmet([need], {"tool.mcp": half, "tool.builtin": claim()}, "toy"))


def test_a_message_says_whether_it_is_never_or_not_here() -> None:
    agent = blueprint(thread={"persistence": "THREAD_PERSISTENCE_DURABLE"})
    never = issues(agent, thread__durable_commit=claim(UNSUPPORTED), session__multi_turn=claim(UNSUPPORTED))
    here = issues(agent, thread__durable_commit=claim(UNAVAILABLE), session__multi_turn=claim(UNSUPPORTED))
    assert "does not support" in never["thread.persistence"]
    assert "does not offer here" in here["thread.persistence"]
    assert "set thread.persistence to ephemeral" in here["thread.persistence"]
    assert next(unmet(needs(agent), {}, "toy")).path == "thread.persistence"  # what is not stated is not there


def files(*given: tuple[str, int], **claims: Capability) -> set[str]:
    refs = [FileRef(file_id=f"f{n}", media_type=media, size=size) for n, (media, size) in enumerate(given)]
    changed = {key.replace("__", "."): value for key, value in claims.items()}
    return {issue.path for issue in unmet(file_needs(refs), ABLE | changed, "toy")}


def test_files_are_compared_in_number_size_and_media_type() -> None:
    images = claim(max_files=2, max_bytes=100, media_types=["image/PNG", "image/j*"])
    assert files(("image/png", 100), ("image/png", 1), input__images=images) == set()
    assert files(("image/gif", 1), ("image/png", 101), input__images=images) == {"files[0]", "files[1]"}
    assert files(*[("image/png", 1)] * 3, ("text/plain", 1), input__images=images) == {"files"}
    assert files(("application/pdf", 1), input__documents=claim(media_types=["text/*"])) == {"files[0]"}
    assert files(("text/markdown", 1), input__documents=claim(media_types=["text/*"])) == set()
    assert files(("image/png", 1), input__images=claim(UNSUPPORTED)) == {"files[0]", "files"}
    # What kind an id stands for is not known before it is looked up: either may do.
    assert files(("", 0), input__images=claim(UNSUPPORTED)) == set()
    assert files(("", 0), ("", 0), input__images=claim(max_files=1), input__documents=claim(max_files=1)) == {"files"}
    nothing = {"input__images": claim(UNSUPPORTED), "input__documents": claim(UNSUPPORTED)}
    assert files(("", 0), **nothing) == {"files[0]", "files"}
    assert files(**nothing) == set()


@pytest.mark.parametrize("value", ["5", -1, 1.5, 1e300, float("inf"), float("nan"), True, None, [5]])
def test_a_number_that_cannot_be_compared_is_no_constraint(value: Any) -> None:
    struct = struct_pb2.Struct()
    struct["max_tools"] = value
    problem = constraint_problem("tool.mcp", struct)
    assert problem is not None
    assert problem.startswith("max_tools must be a whole number")
    assert constraint_problem("stream.text", struct) is None


@pytest.mark.parametrize("value", ["image/png", 1, [1], [["x"]], {"x": 1}])
def test_a_list_that_cannot_be_compared_is_no_constraint(value: Any) -> None:
    struct = struct_pb2.Struct()
    struct["media_types"] = value
    assert constraint_problem("input.images", struct) == "media_types must be a list of texts"


def test_only_keys_of_the_contract_are_compared() -> None:
    assert set(COMPARED) <= set(KEYS)
