"""Section 4: tools that are away. MCP servers and caller credentials are not looked at yet."""

from conformance.cases.registry import case
from conformance.failure import expect
from conformance.kit import Kit
from conformance.plane.broker import ECHO, SUM, Break, Succeed
from conformance.plane.run import kind, text_of
from conformance.scenario import CallTool, Say
from harness.event.v1 import payload_pb2


@case("R4.1", "a tool that is away costs its own call")
async def r4_1_partial(kit: Kit) -> None:
    binding = await kit.binding()
    binding.tools.answers = {
        ECHO: Break("tool_unavailable", "The tool's server is away.", retryable=True),
        SUM: Succeed(3),
    }
    steps = (CallTool("c1", ECHO, {"text": "a"}), CallTool("c2", SUM, {"numbers": [1, 2]}), Say("done"))
    run = binding.run(kit.message(steps))
    await run.play()
    told = [draft.payload.tool_completed for draft in run.drafts if kind(draft) == "tool_completed"]
    outcomes = {each.tool_call_id: each.outcome for each in told}
    wanted = {"c1": payload_pb2.TOOL_OUTCOME_ERROR, "c2": payload_pb2.TOOL_OUTCOME_SUCCESS}
    expect(outcomes == wanted, f"The outcomes of the two calls came as {outcomes}.")
    expect(text_of(run.drafts) == "done", "The run did not go on.")
    run.expect_end("run_completed")
