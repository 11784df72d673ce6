"""How an exception of a servicer becomes the call's status; nothing unexpected reaches a client (I22)."""

from typing import Any, NoReturn

import grpc.aio

from services.common.errors import HarnessError, internal
from services.common.logs import get_logger, log_incident
from services.common.status import GRPC_STATUS_CODES, from_rpc_error, to_status, trailing_metadata

_log = get_logger(__name__)


def classified(error: Exception, method: str) -> HarnessError:
    """The safe form of what a servicer raised: itself, a peer's classified error, or `internal` with an incident id."""
    if isinstance(error, HarnessError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        # A peer's failure that nobody translated on the way: still classified, never quoted.
        return from_rpc_error(error)
    # I22: the exception goes to the log, by type and place; the client gets the incident id.
    return internal(log_incident(_log, "rpc_failed_unexpectedly", error, method=method))


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: HarnessError) -> NoReturn:
    """Ends the call with the error's status."""
    status = to_status(error)
    await context.abort(GRPC_STATUS_CODES[status.code], error.message, trailing_metadata(status))
    raise AssertionError("unreachable: abort raises")
