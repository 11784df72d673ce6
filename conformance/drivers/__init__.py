"""Drivers by name: each turns scenarios into messages that one kind of backend understands."""

import importlib
import sys
from pathlib import Path

from conformance.drivers.agentcore import AgentCoreDriver
from conformance.drivers.claude import ClaudeDriver
from conformance.drivers.driver import Driver
from conformance.drivers.reference import ReferenceDriver
from conformance.drivers.rehearsal import RehearsalDriver
from conformance.failure import TargetError

DRIVERS: dict[str, type[Driver]] = {
    driver.name: driver for driver in (ReferenceDriver, RehearsalDriver, AgentCoreDriver, ClaudeDriver)
}


def driver_named(name: str) -> Driver:
    """The driver: one of ours, or `module:Class` of an author's own, looked for in the current folder too. Raises TargetError for what is none."""
    if ":" in name:
        return _own(name)
    if name not in DRIVERS:
        known = ", ".join(sorted(DRIVERS))
        raise TargetError(
            f"There is no scenario driver {name!r}.", f"Use one of: {known}; or module:Class of your own."
        )
    return DRIVERS[name]()


def file_of(name: str) -> Path | None:
    """The file of an author's own driver, which decides as much as the kit; None for one of ours, which is of the kit. Raises TargetError as `driver_named`."""
    if ":" not in name:
        return None
    driver_named(name)
    found = sys.modules[name.partition(":")[0]].__file__
    return None if found is None else Path(found)


def _own(name: str) -> Driver:
    module_name, _, class_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:  # noqa: BLE001 - an author's module may raise whatever it likes
        told = f"The scenario driver {name} cannot be imported: {type(error).__name__}: {error}."
        raise TargetError(told, "Name it as module:Class.") from None
    if not (isinstance(found, type) and issubclass(found, Driver)):
        hint = "A driver is a class that derives from conformance.drivers.driver.Driver."
        raise TargetError(f"There is no scenario driver {name}.", hint)
    try:
        return found()
    except Exception as error:  # noqa: BLE001 - as above
        told = f"The scenario driver {name} cannot be made: {type(error).__name__}: {error}."
        raise TargetError(told, "It is made without arguments, and implements all of Driver.") from None
