"""Which turns were rehearsals: the adapter itself played what its provider was to say, and the report says so (certification, Rehearsals)."""

import json

KEY = "rehearse"
# Where the key stands in a message that is one; longer messages are not read for it.
_LOOK_CHARACTERS = 64


def is_rehearsal(message: str) -> bool:
    """Whether a message is a rehearsal, whatever driver made it."""
    if not message.startswith("{") or f'"{KEY}"' not in message[:_LOOK_CHARACTERS]:
        return False
    try:
        document: object = json.loads(message)
    except ValueError:
        return False
    return isinstance(document, dict) and KEY in document
