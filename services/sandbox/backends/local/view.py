"""Which files of the machine a sandbox sees: the interpreter, its packages, the product's own packages, system libraries; all read-only."""

import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import Reason
from services.common.sandbox_cause import SandboxCause, caused

# The adapters and the generated contracts; the worker's own top-level package comes on top. Never `services`.
_PRODUCT_PACKAGES = ("adapters", "harness", "buf")
# Where the system keeps programs and libraries. Links among them (merged /usr) stay links.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
PRODUCT_FOLDER = "/opt/product"
SITE_FOLDER = "/opt/site"
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
    """Where Python finds packages inside."""
    python_path_outside: tuple[str, ...]
    """Where it finds the same ones without a sandbox."""


def python_view(worker_module: str) -> View:
    """The view for a worker of this module. `HarnessError` configuration_invalid when its package is not installed here."""
    shown = [Shown(Path(path), path) for path in _SYSTEM if Path(path).is_dir() and not Path(path).is_symlink()]
    links = [Link(str(Path(path).readlink()), path) for path in _SYSTEM if Path(path).is_symlink()]
    shown += [Shown(Path(path), path) for path in _SYSTEM_FILES if Path(path).exists()]
    for folder in sorted({Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve()}):
        # At the same place as outside, since an installation knows its own paths; what lies in something shown is there already.
        if folder.is_dir() and not any(folder.is_relative_to(other.inside) for other in shown):
            shown.append(Shown(folder, str(folder)))
    packages = _product_packages(worker_module)
    site = [
        Shown(folder, f"{SITE_FOLDER}/{number}") for number, folder in enumerate(_site_folders()) if folder.is_dir()
    ]
    executable = getattr(sys, "_base_executable", None) or sys.executable
    inside = [*(str(Path(package.inside).parent) for package in packages), *(folder.inside for folder in site)]
    outside = [*(str(package.source.parent) for package in packages), *(str(folder.source) for folder in site)]
    return View(
        (*shown, *packages, *site),
        tuple(links),
        str(Path(executable).resolve()),
        tuple(_unique(inside)),
        tuple(_unique(outside)),
    )


def _site_folders() -> list[Path]:
    """Where this process's installed packages are; the worker's are the same."""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    on_path = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return [Path(path) for path in _unique(str(Path(path).resolve()) for path in [*installed, *on_path])]


def _product_packages(worker_module: str) -> list[Shown]:
    """The packages a worker needs, at places of their own: a checkout may be in any folder, and its name is nobody's business inside."""
    own = worker_module.partition(".")[0]
    parents: list[Path] = []
    packages: list[Shown] = []
    for name in dict.fromkeys((own, *_PRODUCT_PACKAGES)):
        # Of a top-level name: finds it without running any of its code.
        spec = importlib.util.find_spec(name)
        locations = spec.submodule_search_locations if spec is not None else None
        if not locations:
            if name == own:
                raise caused(
                    SandboxCause.NOT_INSTALLED,
                    f"The profile's worker_module {worker_module} is not installed where the sandbox service runs: "
                    f"no package {own}.",
                    reason=Reason.CONFIGURATION_INVALID,
                )
            continue
        for folder in (Path(location).resolve() for location in locations):
            if folder.parent not in parents:
                parents.append(folder.parent)
            packages.append(Shown(folder, f"{PRODUCT_FOLDER}/{parents.index(folder.parent)}/{folder.name}"))
    return packages


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
