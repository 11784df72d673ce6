"""Every id the mesh makes, and the rule every id it accepts must meet (events, "Bounds")."""

import base64
import hashlib
import re
import secrets
import time

ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_DIGEST_BYTES = 20
MIN_IDENTITY_KEY_BYTES = 16
PLACE_CHARACTERS = 4


def is_valid_id(text: str) -> bool:
    """1 to 128 characters of `[A-Za-z0-9._:-]`."""
    return _ID.fullmatch(text) is not None


def _base32(data: bytes) -> str:
    # RFC 4648 "extended hex": its letters sort like the bytes they stand for.
    return base64.b32hexencode(data).rstrip(b"=").decode("ascii").lower()


class Identity:
    """Keyed digests of who and what (I1): same tuple and key, same id, on every replica; no raw identity in any id.

    The key must be the same on every replica of every service of an environment, at least 16 bytes, and must never change: a new key is a new
    identity for every conversation.
    """

    def __init__(self, key: bytes, environment: str) -> None:
        if len(key) < MIN_IDENTITY_KEY_BYTES:
            raise ValueError(f"the identity key needs at least {MIN_IDENTITY_KEY_BYTES} bytes")
        # blake2b takes keys up to 64 bytes; hashing first admits any length without cutting it.
        self._key = hashlib.blake2b(key, digest_size=64).digest()
        self._environment = environment

    def binding_id(self, owner: str, agent_id: str, conversation_id: str, epoch: int) -> str:
        """The id of a binding: `bnd_` and 32 characters (I1)."""
        return "bnd_" + self._digest(b"binding", owner, agent_id, conversation_id, str(epoch))

    def conversation_key(self, owner: str, agent_id: str, conversation_id: str) -> str:
        """The epoch-less key of a conversation, under which its current binding is found: `cnv_` and 32 characters."""
        return "cnv_" + self._digest(b"conversation", owner, agent_id, conversation_id)

    def owner_digest(self, owner: str) -> str:
        """What stands for a subject wherever the subject itself must not appear: `own_` and 32 characters (I1)."""
        return "own_" + self._digest(b"owner", owner)

    def _digest(self, kind: bytes, *parts: str) -> str:
        digest = hashlib.blake2b(key=self._key, digest_size=_DIGEST_BYTES, person=kind)
        for part in (self._environment, *parts):
            data = part.encode("utf-8")
            # I1: a length before each part, so that ("ab", "c") and ("a", "bc") differ.
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
        return _base32(digest.digest())


def _time_sortable() -> str:
    # 48 bits of milliseconds, then 80 random bits: sortable to the millisecond, unguessable within it.
    milliseconds = time.time_ns() // 1_000_000
    return _base32(milliseconds.to_bytes(6, "big") + secrets.token_bytes(10))


def new_run_id(holder: str = "") -> str:
    """`run_` and 26 characters that sort by creation time. The last four are the place of the process that stores the run, if it says its `holder` id:
    whoever has the run's id knows where it is most likely executed, and may ask there first. No more than that: any process answers.
    """
    run_id, place = "run_" + _time_sortable(), place_of(holder)
    return run_id[:-PLACE_CHARACTERS] + place if place else run_id


def place_of(holder: str) -> str:
    """What stands for a process in the ids of the runs it stores; empty where the holder has no `hld_` id."""
    return holder[4 : 4 + PLACE_CHARACTERS] if holder.startswith("hld_") else ""


def place_in(run_id: str) -> str:
    """The place in a run's id; where none was said, some text that is no process's."""
    return run_id[-PLACE_CHARACTERS:]


def new_lease_id() -> str:
    """`lse_` and 26 characters that sort by creation time."""
    return "lse_" + _time_sortable()


def new_file_id() -> str:
    """`fil_` and 26 characters that sort by creation time."""
    return "fil_" + _time_sortable()


def new_request_id() -> str:
    """`req_` and 26 random characters."""
    return "req_" + _base32(secrets.token_bytes(16))


def new_nonce() -> str:
    """A writer's mark on what it wrote: 26 random characters."""
    return _base32(secrets.token_bytes(16))


def new_holder_id() -> str:
    """`hld_` and 26 random characters: one life of one process that holds leases."""
    return "hld_" + _base32(secrets.token_bytes(16))


def new_incident_id() -> str:
    """`inc_` and 26 characters that sort by time: joins a client's error to the log entry."""
    return "inc_" + _time_sortable()
