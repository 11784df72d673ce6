"""What a profile's sandbox is made of: the operator's numbers, with defaults for what was left out and bounds for all (I35)."""

from dataclasses import dataclass

from services.common.errors import HarnessError, Reason
from services.common.sandbox_cause import SandboxCause, caused

STRICT = "strict"
NONE = "none"


@dataclass(frozen=True, slots=True)
class Profile:
    """How a sandbox of a profile is made. Zero CPU is no limit; every other number is positive."""

    worker_module: str
    isolation: str
    idle_seconds: int
    lifetime_seconds: int
    memory_mib: int
    max_pids: int
    workspace_mib: int
    cpu_millis: int


# field: default, least, most
_BOUNDS = {
    "idle_seconds": (600, 1, 86_400),
    "lifetime_seconds": (14_400, 1, 604_800),
    # A worker needs some 40 MiB and 20 threads before it has done anything.
    "memory_mib": (512, 64, 1 << 20),
    "max_pids": (64, 32, 32_768),
    "workspace_mib": (64, 1, 1 << 20),
}


def checked_profile(worker_module: str, isolation: str, cpu_millis: int, **numbers: int) -> Profile:
    """The profile with defaults in place. `HarnessError` configuration_invalid names the field that is out of bounds."""
    if not worker_module:
        raise _invalid("The profile's sandbox names no worker_module.")
    values: dict[str, int] = {}
    for name, (default, least, most) in _BOUNDS.items():
        value = numbers.get(name, 0) or default
        if not least <= value <= most:
            raise _invalid(f"The profile's sandbox.{name} is {value}: choose {least} to {most}.")
        values[name] = value
    if cpu_millis and not 10 <= cpu_millis <= 1_000_000:
        raise _invalid(f"The profile's sandbox.cpu_millis is {cpu_millis}: choose 10 to 1000000, or 0 for no limit.")
    return Profile(worker_module=worker_module, isolation=isolation, cpu_millis=cpu_millis, **values)


def _invalid(message: str) -> HarnessError:
    return caused(SandboxCause.PROFILE_INVALID, message, reason=Reason.CONFIGURATION_INVALID)
