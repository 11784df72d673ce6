"""Which files of the machine a sandbox sees: the interpreter, its packages, the product's own packages, system libraries; all read-only."""

import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import HarnessError, Reason

# The adapters and the generated contracts; the worker's own top-level package comes on top. Never `services`.
_PRODUCT_PACKAGES = ("adapters", "harness", "buf")
# Where the system keeps programs and libraries. Links among them (merged /usr) stay links.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")


@dataclass(frozen=True, slots=True)
class Shown:
    """A file or folder of the machine and where it is inside."""

    source: Path
    inside: str


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link inside."""

    target: str
    inside: str


@dataclass(frozen=True, slots=True)
class View:
    """What is shown, and how Python is called in it."""

    shown: tuple[Shown, ...]
    links: tuple[Link, ...]
    python: str
    python_path: tuple[str, ...]


def python_view(worker_module: str) -> View:
    """The view for a worker of this module. `HarnessError` configuration_invalid when its package is not installed here."""
    packages, parents = _packages(worker_module)
    site = _site_folders()
    folders = [Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve(), *site, *packages]
    shown = [Shown(Path(path), path) for path in _SYSTEM if Path(path).is_dir() and not Path(path).is_symlink()]
    links = [Link(str(Path(path).readlink()), path) for path in _SYSTEM if Path(path).is_symlink()]
    shown += [Shown(Path(path), path) for path in _SYSTEM_FILES if Path(path).exists()]
    for folder in sorted(set(folders)):
        # At the same place as outside, since installations know their own paths; what lies in something shown is there already.
        if folder.is_dir() and not any(folder.is_relative_to(other.inside) for other in shown):
            shown.append(Shown(folder, str(folder)))
    executable = getattr(sys, "_base_executable", None) or sys.executable
    return View(
        tuple(shown),
        tuple(links),
        str(Path(executable).resolve()),
        tuple(_unique([*parents, *(str(path) for path in site)])),
    )


def _site_folders() -> list[Path]:
    """Where this process's installed packages are; the worker's are the same."""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    on_path = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return [Path(path).resolve() for path in _unique([*installed, *on_path])]


def _packages(worker_module: str) -> tuple[list[Path], list[str]]:
    """The folders of the packages, and the folders they are imported from."""
    own = worker_module.partition(".")[0]
    folders: list[Path] = []
    for name in dict.fromkeys((own, *_PRODUCT_PACKAGES)):
        # Of a top-level name: finds it without running any of its code.
        spec = importlib.util.find_spec(name)
        locations = spec.submodule_search_locations if spec is not None else None
        if not locations:
            if name == own:
                raise HarnessError(
                    Reason.CONFIGURATION_INVALID,
                    f"The profile's worker_module {worker_module} is not installed where the sandbox service runs: "
                    f"no package {own}.",
                )
            continue
        folders += [Path(location).resolve() for location in locations]
    return folders, list(_unique(str(folder.parent) for folder in folders))


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
