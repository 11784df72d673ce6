"""What a case wants the target's backend to do, in words that know no backend. A driver turns them into a message."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Say:
    """The model says `text`, in these `pieces` if given, as one message."""

    text: str = ""
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Think:
    """The model reasons."""

    text: str


@dataclass(frozen=True, slots=True)
class CountUsage:
    """The provider reports these counts, as final, and nothing else."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class CallTool:
    """The model calls a portable tool of the control plane."""

    call_id: str
    tool_id: str
    arguments: dict[str, Any]
    stream: bool = False


@dataclass(frozen=True, slots=True)
class OwnTool:
    """The provider runs a tool of its own: it answers `result`, or fails with (code, message)."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    result: Any = None
    error: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form; `type` is string, number, boolean or choice."""

    name: str
    type: str = "string"
    required: bool = False
    label: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallTogether:
    """The model calls several portable tools in one breath: none of them waits for another's result."""

    calls: tuple[CallTool, ...]


@dataclass(frozen=True, slots=True)
class AskForm:
    """The provider asks a person to fill in a form; the next steps are played at resume."""

    fields: tuple[FormField, ...]
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalCall:
    """A call that a person is asked about; `allowed` out of approve, reject, edit."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    allowed: tuple[str, ...] = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class AskApproval:
    """The provider asks a person about calls of its own; the next steps are played at resume."""

    calls: tuple[ApprovalCall, ...]
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class TellDecision:
    """The model says what was decided, so that the driver can read it."""


@dataclass(frozen=True, slots=True)
class TellFiles:
    """The model says of each file that it was given with the message, in its order, the SHA-256 of the content as 64 hexadecimal digits, and no others."""


@dataclass(frozen=True, slots=True)
class UseSkill:
    """The model uses a skill and says what stands in it; one that it does not have, it may say so."""

    skill_id: str


@dataclass(frozen=True, slots=True)
class Delegate:
    """A subagent within the run does these steps."""

    agent_id: str
    steps: "Steps"


@dataclass(frozen=True, slots=True)
class FailWith:
    """The provider fails, classified. Category as in the contract, in lower case. Where no words are given, its own will do."""

    category: str
    message: str = "The provider failed."
    code: str = ""
    retryable: bool | None = None
    retry_after: int | None = None

    @property
    def in_own_words(self) -> bool:
        """Whether it is about the category alone, and perhaps when to come again: a provider that has such a failure can say it."""
        return self == FailWith(self.category, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class Crash:
    """Something raises an exception that nobody classified, with this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing happens any more until the run is stopped."""


@dataclass(frozen=True, slots=True)
class Emit:
    """The adapter's provider side produces this event, legal or not: its wire name and its data as JSON."""

    type: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


Step = (
    Say
    | Think
    | CountUsage
    | CallTool
    | CallTogether
    | OwnTool
    | AskForm
    | AskApproval
    | TellDecision
    | TellFiles
    | UseSkill
    | Delegate
    | FailWith
    | Crash
    | Hang
    | Emit
)
Steps = tuple[Step, ...]
