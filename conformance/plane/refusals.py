"""Refusals as the contract has them: made by the kit's facades, and read from what the target answered."""

from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

TRAILER = "grpc-status-details-bin"
DOMAIN = "harness"


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a call was refused. `reason` is empty where no ErrorInfo came, whatever its domain."""

    method: str
    code: str
    message: str
    reason: str = ""
    domain: str = ""
    # Code of the google.rpc.Status in the trailer; None: there was none.
    status_code: int | None = None

    def __str__(self) -> str:
        return f"{self.code} {self.reason!r}" if self.reason else f"{self.code} without a reason"


def read_refusal(error: grpc.aio.AioRpcError, method: str) -> Refusal:
    """The refusal behind a failed call."""
    code, message = error.code().name, error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == TRAILER and isinstance(value, bytes):
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                return Refusal(method, code, message)
            information = error_details_pb2.ErrorInfo()
            found = any(detail.Unpack(information) for detail in status.details)
            if not found:
                return Refusal(method, code, message, status_code=status.code)
            return Refusal(method, code, message, information.reason, information.domain, status.code)
    return Refusal(method, code, message)


async def refuse(context: Any, code: grpc.StatusCode, reason: str, message: str) -> NoReturn:
    """Ends a facade call of the target with a google.rpc.Status."""
    number, _ = code.value
    status = status_pb2.Status(code=number, message=message)
    information = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    information.metadata["retryable"] = "false"
    status.details.add().Pack(information)
    await context.abort(code, message, ((TRAILER, status.SerializeToString()),))
    raise AssertionError("abort returned")
