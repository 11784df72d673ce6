"""A small disk of its own under the stores, that can be made full without a byte being written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SIZE: Final = 1 << 30
"""Bytes it may grow to while it is not full. It takes memory only as far as it is used."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted tmpfs."""

    folder: Path

    @classmethod
    def mount(cls, folder: Path) -> SmallDisk | str:
        """The disk, or why there can be none here."""
        folder.mkdir(parents=True, exist_ok=True)
        done = _mount("-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", str(folder))
        return f"no disk of its own can be mounted here: {done}" if done else cls(folder)

    def unmount(self) -> None:
        """Gives it back; what is on it is gone."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @asynccontextmanager
    async def full(self) -> AsyncGenerator[None]:
        """It has no room while the context lasts."""
        self._shrink()
        try:
            yield
        finally:
            self._resize(SIZE)

    def _shrink(self) -> None:
        for slack in (0, 1 << 14, 1 << 16, 1 << 18, 1 << 20):  # it may be written to between the look and the mount
            found = os.statvfs(self.folder)
            if not self._resize((found.f_blocks - found.f_bfree) * found.f_frsize + slack):
                return

    def _resize(self, size: int) -> str:
        return _mount("-o", f"remount,size={size}", str(self.folder))


def _mount(*arguments: str) -> str:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, timeout=10)
    return done.stderr.strip() or f"mount ended with {done.returncode}" if done.returncode else ""
