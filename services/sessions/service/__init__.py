"""The gRPC side of the sessions service: translate, call, translate back."""

from services.sessions.service.session_service import SESSION_SERVICE, SessionServicer, add_session_servicer
from services.sessions.service.thread_state_service import (
    THREAD_STATE_SERVICE,
    ThreadStateServicer,
    add_thread_state_servicer,
)

__all__ = [
    "SESSION_SERVICE",
    "THREAD_STATE_SERVICE",
    "SessionServicer",
    "ThreadStateServicer",
    "add_session_servicer",
    "add_thread_state_servicer",
]
