"""Reading refusals off the wire."""

from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from adapters.sdk.testing import END


def details(error: Any) -> tuple[str, error_details_pb2.ErrorInfo, status_pb2.Status]:
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "harness"
    return error.code().name, info, status


async def refused(awaitable, code: str, reason: str) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of a call, or of the first read of a stream, that must be refused just so."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    name, info, _ = details(caught.value)
    assert (name, info.reason) == (code, reason), caught.value
    return info


async def drained(call) -> list:
    responses = []
    while (response := await call.read()) is not END:
        responses.append(response)
    return responses
