"""The rules of a run's events, once: the SDK enforces them at the adapter's edge, the runs service at the log (I19)."""

from adapters.sdk.lifecycle.limits import DEFAULT_LIMITS, EventLimits
from adapters.sdk.lifecycle.machine import RunLifecycle
from adapters.sdk.lifecycle.open_state import OpenCall, OpenMessage, OpenNamespace, OpenState
from adapters.sdk.lifecycle.projection import public_payload
from adapters.sdk.lifecycle.violation import ProtocolViolation, failed_draft, missing_terminal
from adapters.sdk.lifecycle.wellformed import TERMINAL_KINDS, wire_name

__all__ = [
    "DEFAULT_LIMITS",
    "TERMINAL_KINDS",
    "EventLimits",
    "OpenCall",
    "OpenMessage",
    "OpenNamespace",
    "OpenState",
    "ProtocolViolation",
    "RunLifecycle",
    "failed_draft",
    "missing_terminal",
    "public_payload",
    "wire_name",
]
