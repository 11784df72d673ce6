"""What a runtime is told of one turn (worker protocol, StartRun)."""

from __future__ import annotations

from harness.runtime.v1 import runtime_pb2
from services.runs.clients.sessions import timestamp
from services.runs.engine import Engine
from services.runs.held import HeldRun
from services.runs.plan import Plan
from services.runs.prompt import compile_prompt
from services.runs.run import Issued
from services.runs.tools.grant import marks_of


def turn_input(held: HeldRun, issued: Issued, plan: Plan) -> runtime_pb2.TurnInput:
    """The rendered prompt, the message, and what the run may reach until its deadline. Errors: `PromptTooLarge`."""
    engine: Engine = held.engine
    asked, run, binding, prompt = held.input, held.run, held.binding, plan.version.blueprint.prompt
    owner = run.owner or ""
    turn = runtime_pb2.TurnInput(
        system_prompt=compile_prompt(prompt.system, prompt.variables, asked.context),
        message=asked.message,
        files=plan.files,
        # I1: digests, of the owner's digest: no raw identity reaches a runtime.
        user_id=owner,
        conversation_id=engine.identity.conversation_key(owner, run.agent_id or "", run.conversation_id or ""),
        deadline=timestamp((run.deadline_at or 0) / 1000),
        tokens=[engine.state_token(run, issued.runtime_generation)],
    )
    if plan.grants:
        turn.tokens.append(engine.tool_token(run, issued.runtime_generation, marks_of(plan.grants)))
    if plan.files:
        turn.tokens.append(engine.files_token(run, issued.runtime_generation, tuple(dict.fromkeys(asked.files))))
    if plan.model_endpoint:
        turn.tokens.append(engine.model_token(run, issued.runtime_generation, plan.model_endpoint))
    if asked.HasField("client_context"):
        turn.client_context.CopyFrom(asked.client_context)
    if binding is not None:
        turn.thread_revision = binding.head.revision
        turn.native_session_id = binding.native_session_id
    return turn
