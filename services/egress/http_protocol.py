"""The egress's connections: their bounds, and how they are refused (I35)."""

from typing import Final

from services.common.http_protocol import Answer, BoundedHttpProtocol, Bounds, Fault
from services.egress.refusal import Refusal
from services.egress.settings import EgressSettings

MAX_HEADER_BYTES: Final = 65_536
HEADER_SECONDS: Final = 10.0


def protocol(settings: EgressSettings) -> type[BoundedHttpProtocol]:
    """The protocol class with the bounds of these settings."""
    bounds = Bounds(settings.max_connections, MAX_HEADER_BYTES, HEADER_SECONDS)
    return type("BoundEgressHttpProtocol", (BoundedHttpProtocol,), {"bounds": bounds, "answer": staticmethod(_answer)})


def _answer(fault: Fault) -> Answer:
    refusal = _refusal(fault)
    body = refusal.body()
    headers = {**refusal.headers(), "content-length": str(len(body)), "connection": "close"}
    return Answer(refusal.status, [(name.encode(), value.encode()) for name, value in headers.items()], body)


def _refusal(fault: Fault) -> Refusal:
    match fault:
        case Fault.ALL_CONNECTIONS_USED:
            return Refusal(529, "All connections to models are in use; ask again.", again=True)
        case Fault.HEAD_TOO_LARGE:
            return Refusal(431, f"The request line and headers may have {MAX_HEADER_BYTES} bytes together.")
        case Fault.UPGRADE_WITH_BODY:
            return Refusal(400, "Send a request that has a body without the header Upgrade.")
        case Fault.NO_HTTP:
            return Refusal(400, "This is not a valid HTTP request.")
