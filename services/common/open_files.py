"""Open files of a process that serves many connections, each of which is one."""

import resource

from services.common.errors import ConfigurationError
from services.common.logs import get_logger

_log = get_logger(__name__)


def room_for(connections: int, others: int, setting: str, *, asked_for: bool) -> int:
    """How many connections there is room for beside `others` open files, having raised the process's limit to that. Where the machine does not allow
    enough, a bound that the operator set (`asked_for`) is refused with `ConfigurationError`, and a default is lowered, with a warning.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and connections + others > hard:
        if asked_for or hard <= others:
            raise ConfigurationError(
                f"{setting}: {connections} connections need {connections + others} open files, the system allows {hard}: "
                "lower the setting or raise the limit."
            )
        connections = hard - others
        _log.warning("connections_limited_by_open_files", max_connections=connections, open_files=hard)
    if soft != resource.RLIM_INFINITY and soft < connections + others:
        resource.setrlimit(resource.RLIMIT_NOFILE, (connections + others, hard))
    return connections
