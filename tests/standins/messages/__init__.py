"""A stand-in of the Anthropic Messages API: a real HTTP server that answers what a script says, with every fault that a provider may have."""

from tests.standins.messages.script import MARK, marked
from tests.standins.messages.server import MessagesServer, Seen, serving, serving_in_thread

__all__ = ["MARK", "MessagesServer", "Seen", "marked", "serving", "serving_in_thread"]
