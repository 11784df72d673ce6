"""The adapter: its descriptor, and which of its behaviours a message asks for."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from adapters.reference import attachments, burst, conversation, script, skills
from adapters.reference.attachments import Attachments
from adapters.reference.message import Burst, Plain, parse
from adapters.reference.pause import Pause
from adapters.sdk.capabilities import EMULATED, NATIVE, build_descriptor, capability
from adapters.sdk.contract import Evaluation, HarnessRuntime, RuntimeConstruction, Turn, plain
from adapters.sdk.errors import ConfigurationError
from adapters.sdk.simple import BaseAdapter, BaseRuntime
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import blueprint_pb2, error_pb2, placement_pb2
from harness.event.v1 import event_pb2
from harness.runtime.v1 import runtime_pb2

VERSION = "0.1.0"
ALLOW_FAULTS = "allow_faults"
MAX_GREETING_CHARACTERS = 200

OPTIONS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "greeting": {
            "type": "string",
            "maxLength": MAX_GREETING_CHARACTERS,
            "default": "",
            "title": "Greeting",
            "description": "Said before every answer to a plain message.",
        }
    },
    "additionalProperties": False,
}

_CAPABILITIES = {
    "stream.text": capability(NATIVE, "Word by word, or as the message says."),
    "stream.reasoning": capability(NATIVE, "As a script says."),
    "stream.usage": capability(NATIVE, "Counts words."),
    "session.multi_turn": capability(NATIVE, "Remembers turns in committed thread state."),
    "session.cross_replica_resume": capability(NATIVE, "Everything it knows of a conversation is thread state."),
    "session.clear": capability(NATIVE, "A new epoch starts with nothing."),
    "thread.durable_commit": capability(NATIVE, "Writes its state in every plain turn."),
    "thread.eviction_restore": capability(NATIVE, "Loads the committed head in every turn that needs it."),
    "interrupt.form_input": capability(NATIVE, "Asks what a script says, and goes on from thread state."),
    "interrupt.tool_approval": capability(
        NATIVE, "Asks about calls of portable tools that wait, and about those a script names; goes on as was decided."
    ),
    "interrupt.multi_tool": capability(NATIVE, "One interrupt asks about up to 32 calls."),
    "tool.builtin": capability(NATIVE, "Calls portable tools through the tool broker, as a script says."),
    "tool.partial_availability": capability(NATIVE, "A tool that is away costs its own call alone."),
    "tool.cancellation": capability(
        NATIVE, "A cancel ends the wait for a tool at once; what the tool began may still happen."
    ),
    "subagents": capability(
        NATIVE, "Scripted subagents within the same run; other agents cannot be called.", {"max_agents": 0}
    ),
    "runtime.restart": capability(NATIVE, "Holds nothing that a restart could lose."),
    "runtime.eviction_recovery": capability(NATIVE, "A new runtime goes on from thread state."),
    "runtime.sandbox_isolation": capability(EMULATED, "Supplied by the sandbox it is placed in."),
    "observability.redaction": capability(NATIVE, "Logs types and places only."),
    "input.images": capability(
        NATIVE,
        "Reads them whole; with no model behind it, all it can say of them is their digests.",
        attachments.limits(attachments.IMAGES),
    ),
    "input.documents": capability(
        NATIVE,
        "Reads them whole; with no model behind it, all it can say of them is their digests.",
        attachments.limits(attachments.DOCUMENTS),
    ),
    "skills": capability(
        NATIVE, "Texts that the profile gives, told where a script uses them.", {"max_skills": skills.MAX_SKILLS}
    ),
}


class ReferenceAdapter(BaseAdapter):
    """The reference harness."""

    def __init__(self) -> None:
        self._descriptor = build_descriptor(
            harness_id="reference",
            display_name="Reference harness",
            description="Deterministic, free and offline: it does what the message says, with no model behind it.",
            adapter_version=VERSION,
            trust_boundary=descriptor_pb2.TRUST_BOUNDARY_PROCESS,
            thread_state=descriptor_pb2.THREAD_STATE_STRATEGY_ADAPTER_STORE,
            session_ids=descriptor_pb2.SESSION_ID_STYLE_EVENT_ASSIGNED,
            options_schema=OPTIONS_SCHEMA,
            presentation={"order": ["greeting"]},
            capabilities=_CAPABILITIES,
        )

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        """What it is."""
        return self._descriptor

    async def evaluate(
        self,
        blueprint: blueprint_pb2.AgentBlueprint,
        placement: "placement_pb2.Placement.ValueType",
        profile_settings: Mapping[str, Any],
    ) -> Evaluation:
        """Any blueprint can run whose skills the profile has; the greeting's default is written out."""
        try:
            issues = skills.issues(blueprint.skills, skills.skills_of_profile(profile_settings))
        except ConfigurationError as error:
            issues = [error_pb2.Issue(path="harness.profile_id", code=error.code, message=error.message)]
        return Evaluation(issues=issues, normalized_options={"greeting": "", **plain(blueprint.harness.options)})

    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        """A runtime that holds the operator's and the author's settings, nothing else. Raises ConfigurationError for a skill that the agent cannot have."""
        return ReferenceRuntime(construction)


class ReferenceRuntime(BaseRuntime):
    """One binding's runtime. What a turn knows of earlier ones it reads from thread state; only a conversation without any keeps its pause here."""

    __slots__ = ("_allowed", "_durable", "_greeting", "_pause", "_skills")

    def __init__(self, construction: RuntimeConstruction) -> None:
        blueprint = construction.blueprint
        self._allowed = _allowed_steps(construction)
        self._greeting = str(construction.options.get("greeting", ""))
        self._skills = skills.skills_of_agent(blueprint.skills, skills.skills_of_profile(construction.profile_settings))
        self._pause: Pause | None = None
        self._durable = blueprint.thread.persistence != blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL

    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        """What the message says, once all of its files were read."""
        files = Attachments(turn)
        drafts = self._said(turn, files)
        return _behind(files, drafts) if turn.files else drafts

    def _said(self, turn: Turn, files: Attachments) -> AsyncIterator[event_pb2.EventDraft]:
        asked = parse(turn.message)
        self._pause = None
        if isinstance(asked, Burst):
            return burst.stream(asked)
        if isinstance(asked, Plain):
            return conversation.stream(turn, asked.text, self._greeting, durable=self._durable)
        return script.stream(turn, asked, self._setting(), files)

    def resume(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> AsyncIterator[event_pb2.EventDraft]:
        """The script after the one that paused."""
        return script.resume(turn, decision, self._setting(), self._pause)

    async def pending_interrupt(self) -> runtime_pb2.PendingInterrupt | None:
        """The pause of the last turn, if it had one in this runtime."""
        pause = self._pause
        if pause is None:
            return None
        return runtime_pb2.PendingInterrupt(interrupt_id=pause.interrupt_id, revision=1, run_id=pause.run_id)

    def _setting(self) -> script.Setting:
        return script.Setting(self._allowed, self._durable, self._skills, self._paused)

    def _paused(self, pause: Pause | None) -> None:
        self._pause = pause


async def _behind(
    files: Attachments, drafts: AsyncIterator[event_pb2.EventDraft]
) -> AsyncIterator[event_pb2.EventDraft]:
    await files.digests()
    async for draft in drafts:
        yield draft


def _allowed_steps(construction: RuntimeConstruction) -> frozenset[str]:
    """The guarded steps of a script that the operator's profile allows."""
    if construction.profile_settings.get(ALLOW_FAULTS) is True:
        return script.FAULTS | script.LOOKS
    return script.LOOKS if construction.placement == placement_pb2.PLACEMENT_SANDBOX_POD else frozenset()
