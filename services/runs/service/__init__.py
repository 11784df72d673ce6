"""The servicers of the runs service: runs for its clients, the tool broker for runtimes."""

from services.runs.service.run_service import RUN_SERVICE, Parts, RunServicer, add_run_servicer
from services.runs.service.tool_service import TOOL_BROKER_SERVICE, ToolBrokerServicer, add_tool_broker_servicer

__all__ = [
    "RUN_SERVICE",
    "TOOL_BROKER_SERVICE",
    "Parts",
    "RunServicer",
    "ToolBrokerServicer",
    "add_run_servicer",
    "add_tool_broker_servicer",
]
