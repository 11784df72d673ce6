"""The gRPC side of the sessions service: translate, call, translate back."""

from services.sessions.service.file_library_service import (
    FILE_LIBRARY_SERVICE,
    FileLibraryServicer,
    add_file_library_servicer,
)
from services.sessions.service.file_service import FILE_SERVICE, FileServicer, add_file_servicer
from services.sessions.service.session_service import SESSION_SERVICE, SessionServicer, add_session_servicer
from services.sessions.service.thread_state_service import (
    THREAD_STATE_SERVICE,
    ThreadStateServicer,
    add_thread_state_servicer,
)

__all__ = [
    "FILE_LIBRARY_SERVICE",
    "FILE_SERVICE",
    "SESSION_SERVICE",
    "THREAD_STATE_SERVICE",
    "FileLibraryServicer",
    "FileServicer",
    "SessionServicer",
    "ThreadStateServicer",
    "add_file_library_servicer",
    "add_file_servicer",
    "add_session_servicer",
    "add_thread_state_servicer",
]
