"""Which encoding a subscriber asked for, and an encoder of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.common.v1 import blueprint_pb2
from harness.event.v1 import event_pb2
from services.gateway.encodings.agui import AguiEncoder
from services.gateway.encodings.canonical import CanonicalEncoder
from services.gateway.encodings.custom import CustomEncoder


class Encoder(Protocol):
    """The frames of one run's events, taken in order, from the first or from where the encoder stands."""

    @property
    def encode(self) -> Callable[[event_pb2.Event], bytes]:
        """The frames of the next event; empty when the encoding does not show it. Never fails on an event of a valid log."""
        ...

    @property
    def cursor(self) -> int | None:
        """Sequence of the last event it has taken; None when its frames depend on nothing before."""
        ...


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoding of one run: all its subscribers share the frames."""

    protocol: "blueprint_pb2.StreamProtocol.ValueType"
    thread_id: str = ""
    """The conversation, which AG-UI calls a thread; a run never changes it."""

    @property
    def remembers(self) -> bool:
        """Whether frames depend on events before theirs, so that an encoder has to be brought to a cursor before it can go on there."""
        return self.protocol != blueprint_pb2.STREAM_PROTOCOL_CANONICAL

    def encoder(self) -> Encoder:
        """A new encoder, at the start of the run."""
        if self.protocol == blueprint_pb2.STREAM_PROTOCOL_AGUI:
            return AguiEncoder(self.thread_id)
        if self.protocol == blueprint_pb2.STREAM_PROTOCOL_CUSTOM:
            return CustomEncoder()
        return CanonicalEncoder()


CANONICAL = Encoding(blueprint_pb2.STREAM_PROTOCOL_CANONICAL)
