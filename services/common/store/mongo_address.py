"""A MongoDB address as people write it: which database it names, and what it may not ask for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from services.common.store.errors import StoreRefused

DEFAULT_DATABASE: Final = "harness"
_DATABASE: Final = re.compile(r"[A-Za-z0-9_-]{1,38}\Z")

_FREE: Final = frozenset(
    {
        "appname", "authmechanism", "authmechanismproperties", "authsource", "compressors", "directconnection", "loadbalanced", "replicaset",
        "srvmaxhosts", "srvservicename", "ssl", "tls", "tlsallowinvalidcertificates", "tlsallowinvalidhostnames", "tlscafile",
        "tlscertificatekeyfile", "tlscertificatekeyfilepassword", "tlsinsecure", "zlibcompressionlevel",
    }
)  # fmt: skip
"""Options that say how to get to the server. All others would change what the services rest upon."""

_OURS: Final = {
    "journal": "true",
    "readconcernlevel": "majority",
    "readpreference": "primary",
    "retryreads": "true",
    "retrywrites": "true",
    "w": "majority",
}
"""What is asked of the server whatever the address says; an address may repeat it."""


@dataclass(frozen=True, slots=True)
class MongoAddress:
    """`shown` is for people: hosts and database, never a credential. `url` is for the driver alone."""

    url: str = field(repr=False)
    database: str
    shown: str


def read_address(url: str) -> MongoAddress:
    """Errors: `StoreRefused` with what to change; never with any part of the address that can hold a credential (I18, I32)."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    database = unquote(parts.path.removeprefix("/")) or DEFAULT_DATABASE
    if not hosts or parts.fragment:
        raise StoreRefused(
            "store address mongodb://…: write mongodb://[user:password@]host[:port][,…]/database[?options]"
        )
    if not _DATABASE.match(database):
        raise StoreRefused("store address mongodb://…: a database is named with 1 to 38 of A-Z, a-z, 0-9, _ and -")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        _check_option(name, value)
    return MongoAddress(url, database, f"{parts.scheme}://{hosts}/{database}")


def _check_option(name: str, value: str) -> None:
    known = name.lower()
    if known in _FREE or _OURS.get(known) == value.lower():
        return
    if known in _OURS:
        raise StoreRefused(f"store address mongodb://…: option {name} can only be {_OURS[known]}; leave it out")
    raise StoreRefused(
        f"store address mongodb://…: option {name[:40]!r} cannot be given here; bounds are set with HARNESS_STORE_POOL_SIZE "
        f"and HARNESS_STORE_TIMEOUT_SECONDS"
    )
