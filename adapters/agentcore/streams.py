"""Streams that are not what they should be. Apart from the other failures, which need the provider's SDK to be told from each other."""

from adapters.sdk.errors import POSSIBLE_SIDE_EFFECTS, ProtocolError


def malformed(what: str) -> ProtocolError:
    """The provider sent something that its own model does not have, or not there."""
    return ProtocolError(
        "The provider's stream is malformed.",
        code="stream_malformed",
        side_effects=POSSIBLE_SIDE_EFFECTS,
        diagnostic=what,
    )


def incomplete() -> ProtocolError:
    """The stream ended, and the turn did not."""
    return ProtocolError(
        "The provider's stream ended before its turn did.",
        code="stream_incomplete",
        side_effects=POSSIBLE_SIDE_EFFECTS,
    )
