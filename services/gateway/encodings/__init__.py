"""How a run's events look in a stream: canonical, AG-UI, custom (events, "Other encodings").

All are made from the same log, and `id:` is the canonical sequence in each. An encoder is a small state machine over the events of one run: the same
events give the same bytes, wherever it began, so every replica, replay and resume agrees (I8).
"""

from services.gateway.encodings.encoding import CANONICAL, Encoder, Encoding

__all__ = ["CANONICAL", "Encoder", "Encoding"]
