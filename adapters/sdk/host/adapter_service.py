"""`harness.adapter.v1.AdapterService`: what the harness is, whether it is well, and the runtimes it hosts."""

from typing import Any

from adapters.sdk.contract import HarnessAdapter, plain
from adapters.sdk.errors import HarnessError
from adapters.sdk.events import struct
from adapters.sdk.host.bounds import call_seconds, within
from adapters.sdk.host.health import HealthLooks
from adapters.sdk.host.native_session import open_session
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.lifecycle.text import cleaned
from adapters.sdk.session import BindingView, ClosedSession, ProviderSessionContext
from harness.adapter.v1 import adapter_service_pb2 as pb2
from harness.adapter.v1 import adapter_service_pb2_grpc
from harness.common.v1 import error_pb2, fence_pb2

MAX_ISSUES = 256
Context = Any


class AdapterServicer(adapter_service_pb2_grpc.AdapterServiceServicer):
    """One adapter as the control plane sees it."""

    def __init__(self, adapter: HarnessAdapter, registry: RuntimeRegistry) -> None:
        self._adapter = adapter
        self._registry = registry
        self._health = HealthLooks(adapter, registry)

    async def GetDescriptor(self, request: pb2.GetDescriptorRequest, context: Context) -> pb2.GetDescriptorResponse:
        """What the adapter is."""
        return pb2.GetDescriptorResponse(descriptor=self._adapter.descriptor, incarnation=self._registry.incarnation)

    async def CheckHealth(self, request: pb2.CheckHealthRequest, context: Context) -> pb2.CheckHealthResponse:
        """How the adapter is."""
        left = context.time_remaining()
        bound = self._registry.limits.health_seconds
        report = await self._health.report(bound if left is None else min(left * 0.9, bound))
        return pb2.CheckHealthResponse(report=report)

    async def Evaluate(self, request: pb2.EvaluateRequest, context: Context) -> pb2.EvaluateResponse:
        """Whether a blueprint can run."""
        settings = plain(request.profile_settings)
        try:
            verdict = await self._adapter.evaluate(request.blueprint, request.placement, settings)
        except HarnessError as error:
            # An adapter may also just say what is wrong.
            issue = error_pb2.Issue(path="harness", code=error.code[:64], message=cleaned(error.message)[:1000])
            return pb2.EvaluateResponse(issues=[issue])
        response = pb2.EvaluateResponse(issues=verdict.issues[:MAX_ISSUES], capabilities=verdict.capabilities)
        if verdict.normalized_options is not None:
            response.normalized_options.CopyFrom(struct(verdict.normalized_options))
        return response

    async def CreateRuntime(self, request: pb2.CreateRuntimeRequest, context: Context) -> pb2.CreateRuntimeResponse:
        """Creates the runtime of a binding, or finds it."""
        created = await self._registry.create(request.fence, request.context, self._seconds(context))
        return pb2.CreateRuntimeResponse(incarnation=self._registry.incarnation, created=created)

    async def OpenSession(self, request: pb2.OpenSessionRequest, context: Context) -> pb2.OpenSessionResponse:
        """Opens the native session."""
        session = ProviderSessionContext(_binding(request.fence), request.context)
        async with within(self._seconds(context), "The session was not opened in time.", "open_session_timeout"):
            native_id = await open_session(self._adapter.session_manager, session)
        return pb2.OpenSessionResponse(native_session_id=native_id)

    async def CloseSession(self, request: pb2.CloseSessionRequest, context: Context) -> pb2.CloseSessionResponse:
        """Ends the native session."""
        async with within(self._seconds(context), "The session was not closed in time.", "close_session_timeout"):
            await self._adapter.session_manager.close(_closed(request))
        return pb2.CloseSessionResponse()

    def _seconds(self, context: Context) -> float:
        return call_seconds(context, self._registry.limits.restart_seconds)


def _closed(request: pb2.CloseSessionRequest) -> ClosedSession:
    settings = plain(request.profile_settings)
    return ClosedSession(_binding(request.fence), request.native_session_id, request.agent_id, settings)


def _binding(fence: fence_pb2.Fence) -> BindingView:
    return BindingView(fence.binding_id, fence.epoch, fence.runtime_generation)
