"""Files as they are: a request's body on its way to the sessions service, and content on its way to a client (REST API)."""

from services.gateway.content.transfers import Transfers

__all__ = ["Transfers"]
