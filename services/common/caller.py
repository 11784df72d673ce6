"""Who is calling: set once per RPC by the auth interceptor, read by servicers."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from services.common.errors import HarnessError, Reason

MAX_SUBJECT_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Capability:
    """What one token opens: one audience (a facade service), one binding and epoch, one runtime generation, one run, these tools,
    this model endpoint or these files.
    """

    audience: str
    binding_id: str
    epoch: int
    runtime_generation: int
    run_id: str
    tool_ids: tuple[str, ...] = ()
    model_endpoint: str = ""
    """Id of the operator's endpoint that a token of the audience `model` opens."""
    file_ids: tuple[str, ...] = ()
    """Ids of the files that a token of the audience `files` opens."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller of the current RPC.

    `subject` is the end user an internal service acts for; it is only ever set when a service credential came with it, and never shown in a
    repr. `capability` is set instead on a facade, where workers call with a capability token.
    """

    subject: str | None = field(default=None, repr=False)
    capability: Capability | None = None

    def require_subject(self) -> str:
        """The subject, or `unauthenticated` when the call carried none."""
        if self.subject is None:
            raise HarnessError(
                Reason.UNAUTHENTICATED, "The caller's subject is missing: send the metadata harness-subject."
            )
        return self.subject

    def require_capability(self, audience: str = "") -> Capability:
        """The verified capability of a worker, or `unauthenticated`. A listener with several facades takes tokens of each: there `audience` says which of
        them is called.
        """
        if self.capability is None:
            raise HarnessError(Reason.UNAUTHENTICATED, "This call needs a capability token.")
        if audience and self.capability.audience != audience:
            # I28: a token opens its own facade and no other.
            raise HarnessError(Reason.UNAUTHENTICATED, "The capability token is not valid here.")
        return self.capability


_current: ContextVar[Caller | None] = ContextVar("harness_caller", default=None)


def caller() -> Caller:
    """The caller of the current RPC; `unauthenticated` outside of one."""
    current = _current.get()
    if current is None:
        raise HarnessError(Reason.UNAUTHENTICATED, "No authenticated caller.")
    return current


def set_caller(current: Caller) -> None:
    """For the auth interceptor alone. An RPC is one task, so the value ends with it."""
    _current.set(current)
