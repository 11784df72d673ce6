"""Section 10: subagents within one run. Delegation to other harnesses is not looked at yet."""

from conformance.cases.registry import AFTER, case
from conformance.failure import Broken, NotApplicableError, expect
from conformance.kit import Kit, plain
from conformance.plane.run import TERMINALS, Draft, kind, kinds, text_of
from conformance.scenario import AskForm, Delegate, FormField, Say

_CLOSING = frozenset({"tool_completed", "subagent_completed"})


def _balance(drafts: list[Draft]) -> list[tuple[str, ...]]:
    """Namespaces in the order of their opening. Raises Broken where one is used unopened, or closed out of order."""
    opened: list[tuple[str, ...]] = []
    open_now: dict[tuple[str, ...], str] = {}
    for draft in drafts:
        namespace = tuple(draft.namespace)
        expect(not namespace or namespace in open_now, f"{kind(draft)} stands in a namespace that is not open.")
        if kind(draft) == "subagent_started":
            started = draft.payload.subagent_started
            path = (*namespace, started.agent_id)
            expect(path not in open_now, "A namespace was opened twice.")
            open_now[path] = started.parent_tool_call_id
            opened.append(path)
        elif kind(draft) == "subagent_completed":
            completed = draft.payload.subagent_completed
            path = (*namespace, completed.agent_id)
            expect(open_now.get(path) == completed.parent_tool_call_id, "A namespace was closed that is not open so.")
            inner = [other for other in open_now if other[: len(path)] == path and other != path]
            expect(not inner, "A namespace was closed before the one inside it.")
            del open_now[path]
        elif kind(draft) in TERMINALS:
            expect(not open_now, "A namespace is open at the end of the run.")
    return opened


@case("R10.1", "a subagent's events stand in its namespace")
async def r10_1_namespace(kit: Kit) -> None:
    binding = await kit.binding()
    drafts = await binding.say(kit.message((Say("before "), Delegate("helper", (Say("inside"),)), Say("after"))))
    expect(_balance(drafts) == [("helper",)], "The subagent's namespace was not opened once.")
    inside = [draft for draft in drafts if draft.namespace and kind(draft) == "content_delta"]
    outside = [draft for draft in drafts if not draft.namespace and kind(draft) == "content_delta"]
    expect(text_of(inside) == "inside", f"In the namespace was said {text_of(inside)[:60]!r}.")
    expect(text_of(outside) == "before after", f"At the root was said {text_of(outside)[:60]!r}.")


@case("R10.1", "namespaces nest")
async def r10_1_nested(kit: Kit) -> None:
    if plain(kit.descriptor.capabilities["subagents"].constraints).get("max_depth") == 1:
        raise NotApplicableError("The claim says that subagents have none of their own (max_depth 1).")
    binding = await kit.binding()
    nested = Delegate("outer", (Say("a"), Delegate("inner", (Say("b"),)), Say("c")))
    drafts = await binding.say(kit.message((nested,)))
    opened = _balance(drafts)
    expect(opened == [("outer",), ("outer", "inner")], f"The namespaces came as {opened}.")


@case("R10.1", "terminals and sessions at the root", when=AFTER)
async def r10_1_everywhere(kit: Kit) -> None:
    for finding in kit.setting.observations.findings.get("R10.1", ()):
        raise Broken(finding)


@case("R10.2", "an interrupt inside a subagent")
async def r10_2_interrupt(kit: Kit) -> None:
    binding = await kit.binding()
    steps = (Delegate("helper", (Say("inside"), AskForm((FormField("city"),)))), Say("never"))
    run = binding.run(kit.message(steps))
    drafts = await run.play()
    _balance(drafts)
    run.expect_end("run_interrupted")
    order = kinds(drafts)
    expect("interrupt_requested" in order, "The run was interrupted without a request.")
    between = set(order[order.index("interrupt_requested") + 1 : -1])
    expect(between <= _CLOSING, f"Between interrupt.requested and run.interrupted came {sorted(between - _CLOSING)}.")
    expect("never" not in text_of(drafts), "The run went on after its interrupt.")
