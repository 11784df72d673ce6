"""A person's decisions on calls that wait, held to what waits before the interrupt is consumed by them (run protocol, Resume; I25)."""

from __future__ import annotations

from harness.run.v1 import run_service_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import invalid_request
from services.runs.clients.catalog import CatalogClient
from services.runs.tools import approval
from services.runs.tools.record import CallRecord, key_of
from services.runs.tools.store import CallStore


class Approvals:
    """Looks up what a decision is about. A decision without calls costs nothing."""

    def __init__(self, calls: CallStore, catalog: CatalogClient) -> None:
        self._calls = calls
        self._catalog = catalog

    async def check(self, binding: binding_pb2.Binding, asked: run_service_pb2.ResumeRunRequest) -> None:
        """Whether the decisions fit the calls that wait. Errors: `invalid_request` with every problem, each at its field."""
        if asked.WhichOneof("answer") != "tool_decisions":
            return
        requested, decisions = binding.interrupt.requested, asked.tool_decisions.decisions
        if requested.interrupt_id != asked.interrupt_id or binding.interrupt.run_id != asked.run_id:
            return  # what is not pending, the reservation says
        records: dict[str, CallRecord] = {}
        for decision in decisions:
            found = await self._calls.get(key_of(binding.binding_id, binding.epoch, decision.tool_call_id))
            if found is not None:
                records[decision.tool_call_id] = found
        if not records:
            return
        granted = await self._catalog.grants(binding.agent_id, binding.pin.agent_version)
        grants = {grant.descriptor.tool_id: grant for grant in granted}
        if issues := approval.issues_of(requested, decisions, records, grants):
            raise invalid_request(issues, "The decision does not fit the tool calls that wait.")
