"""The question to sessions."""

from harness.session.v1 import session_service_pb2, session_service_pb2_grpc
from services.common.channels import Peer
from services.egress.admission import Holder

GET_BINDING = "harness.session.v1.SessionService/GetBinding"
LOOKUP_SECONDS = 5.0


class SessionsClient:
    """Who holds a conversation."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = session_service_pb2_grpc.SessionServiceStub(peer.channel)

    async def holder_of(self, binding_id: str) -> Holder:
        """As `HolderOf`. An archived epoch is held by nobody."""
        request = session_service_pb2.GetBindingRequest(binding_id=binding_id)
        answer: session_service_pb2.GetBindingResponse = await self._peer.call(
            self._stub.GetBinding, request, timeout=LOOKUP_SECONDS
        )
        binding = answer.binding
        run_id = binding.active.run_id if binding.HasField("active") and not answer.archived else ""
        return Holder(binding.epoch, run_id, binding.runtime_generation)
