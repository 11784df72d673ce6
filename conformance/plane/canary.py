"""Planted secrets, and the eye on everything the target says (I22): a secret that comes back is found wherever it appears."""

import secrets
from dataclasses import dataclass, field


@dataclass
class Canaries:
    """All secrets of one certification share a mark that nothing else contains, so that one search finds any of them."""

    mark: str = field(default_factory=lambda: f"hkc{secrets.token_hex(8)}")
    # Secrets that the kit was given rather than made.
    given: tuple[str, ...] = ()
    found: list[str] = field(default_factory=list[str])

    def plant(self, what: str) -> str:
        """A new secret; `what` says in the evidence where it had been planted."""
        return f"{self.mark}.{what}.{secrets.token_urlsafe(18)}"

    def look(self, where: str, data: bytes) -> None:
        """Notes a secret in what came from the target. At most 20 are kept."""
        for secret in (self.mark, *self.given):
            place = data.find(secret.encode())
            if place >= 0 and len(self.found) < 20:
                # Only the kind of the secret is told, never the secret.
                what = data[place + len(self.mark) :].split(b".")[1:2] if secret == self.mark else [b"bearer"]
                self.found.append(f"{where}: {what[0].decode(errors='replace')[:40] if what else 'canary'}")
