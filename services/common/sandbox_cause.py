"""Why a sandbox was not to be had, in words anybody may read: the service that makes sandboxes names the cause, the one that runs turns tells it.

The words are fixed, so that nothing of the operator's configuration and nothing a worker said is in them (I18, I22).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from services.common.errors import HarnessError, Reason

CAUSE_KEY: Final = "cause"
"""Of an error's metadata."""


class SandboxCause(StrEnum):
    """What stood in the way."""

    NO_ISOLATION = "no_isolation"
    NO_RESOURCES = "no_resources"
    PROFILE_INVALID = "profile_invalid"
    NOT_INSTALLED = "worker_not_installed"
    NOT_STARTED = "worker_not_started"
    TOO_SLOW = "worker_too_slow"
    NOT_READY = "worker_not_ready"
    NO_FACADE = "facade_unreachable"


_SEE: Final = " An operator sees more with `harness sandboxes list --ended` and in the log of the sandbox service."
_NO_ISOLATION: Final = (
    "The profile asks for strict isolation, and the machine of the sandbox service cannot give it. An operator sees what is missing with "
    "`harness sandboxes list`, and provides that or offers a profile with another placement."
)
_NOT_INSTALLED: Final = "The profile's worker is not installed where the sandbox service runs. An operator installs it there or corrects the profile."
_TOO_SLOW: Final = "The worker in the sandbox was not ready in time. An operator looks why, or sets a larger HARNESS_SANDBOX_START_SECONDS."
_PROFILE_INVALID: Final = (
    "The profile does not describe a sandbox that can be made. An operator corrects it in the operator file."
)
_NO_FACADE: Final = (
    "A service that the sandbox has to reach does not listen where a sandbox can reach it. An operator sees which with "
    "`harness sandboxes list --ended`."
)
_CAPACITY: Final = "All sandboxes are in use: try again later. An operator allows more with HARNESS_MAX_SANDBOXES, where the machine has room."
_MISMATCH: Final = (
    "The harness's process is not the one that the profile promises: another harness, adapter or protocol version. An operator corrects "
    "the profile or the adapter."
)
_OF_CAUSE: Final[Mapping[SandboxCause, str]] = MappingProxyType(
    {
        SandboxCause.NO_ISOLATION: _NO_ISOLATION,
        SandboxCause.NO_RESOURCES: "The machine of the sandbox service refused a sandbox its resources." + _SEE,
        SandboxCause.PROFILE_INVALID: _PROFILE_INVALID + _SEE,
        SandboxCause.NOT_INSTALLED: _NOT_INSTALLED,
        SandboxCause.NOT_STARTED: "The worker in the sandbox did not start." + _SEE,
        SandboxCause.TOO_SLOW: _TOO_SLOW + _SEE,
        SandboxCause.NOT_READY: "The worker in the sandbox started and says that it is not ready." + _SEE,
        SandboxCause.NO_FACADE: _NO_FACADE,
    }
)
_OF_REASON: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.SANDBOX_NOT_READY: "The conversation's sandbox did not come up." + _SEE,
        Reason.SANDBOX_CAPACITY: _CAPACITY,
        Reason.SANDBOX_EVICTED: "The conversation's sandbox ended." + _SEE,
        Reason.SANDBOX_LIMIT: "The conversation's sandbox reached a limit of its profile." + _SEE,
        Reason.WORKER_MISMATCH: _MISMATCH,
    }
)


def told(error: HarnessError) -> str | None:
    """What anybody may read of the error and what an operator can do; None when it is not about a sandbox."""
    try:
        return _OF_CAUSE[SandboxCause(error.metadata.get(CAUSE_KEY, ""))]
    except ValueError:
        return _OF_REASON.get(error.reason)


def caused(
    cause: SandboxCause, message: str, *, reason: Reason = Reason.SANDBOX_NOT_READY, retryable: bool | None = None
) -> HarnessError:
    """The error of a sandbox that was not to be had. `message` is for the operator."""
    return HarnessError(reason, message, metadata={CAUSE_KEY: cause.value}, retryable=retryable)
