"""Drivers by name: each turns scenarios into messages that one kind of backend understands."""

from conformance.drivers.driver import Driver
from conformance.drivers.reference import ReferenceDriver
from conformance.failure import TargetError

DRIVERS: dict[str, type[Driver]] = {"reference": ReferenceDriver}


def driver_named(name: str) -> Driver:
    """The driver. Raises TargetError for a name that is none."""
    if name not in DRIVERS:
        raise TargetError(f"There is no scenario driver {name!r}.", f"Use one of: {', '.join(sorted(DRIVERS))}.")
    return DRIVERS[name]()
