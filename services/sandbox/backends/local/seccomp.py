"""The system call filter of a strict sandbox, as the kernel takes it: allow by default, minus what leads out or deeper in.

Refused: sockets that are not unix sockets (a network namespace does not cover AF_VSOCK), new namespaces and mounts, looking into or
steering other processes, kernel modules, keys, BPF, performance events, user-space faults, clocks, and io_uring, whose requests pass no
filter. `clone3` is unknown (ENOSYS), because a filter cannot see its flags; the C library falls back to `clone`, whose flags are checked.
"""

import errno
import platform
import struct

# name: (x86_64, aarch64); None where the architecture has no such call
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "modify_ldt": (154, None),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "migrate_pages": (256, 238),
    "unshare": (272, 97),
    "move_pages": (279, 239),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
}
_UNKNOWN = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}
_SOCKET = ((41, 198), (53, 199))  # socket, socketpair
_CLONE = (56, 220)
_IOCTL = (16, 29)
_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_ARCHITECTURES = ("x86_64", "aarch64")
_X32_BIT = 0x4000_0000
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES = 0x7E02_0000
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_AF_UNIX = 1

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24
_ALLOW = 0x7FFF_0000
_KILL = 0x8000_0000


def supported(machine: str | None = None) -> bool:
    """Whether the filter is known for this machine's architecture."""
    return (machine or platform.machine()) in _ARCHITECTURES


def filter_program(machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`. `ValueError` on an architecture it is not known for."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system call filter for {machine}")
    column = _ARCHITECTURES.index(machine)
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        # Calls of the x32 variant have other numbers for the same things.
        program += _if_then(_AT_LEAST, _X32_BIT, _KILL)
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += _if_then(_EQUAL, number, _error(errno.EPERM))
    for number in _UNKNOWN.values():
        program += _if_then(_EQUAL, number, _error(errno.ENOSYS))
    for numbers in _SOCKET:
        allowed = _if_then(_EQUAL, _AF_UNIX, _ALLOW)
        program += _with_argument(numbers[column], _ARGUMENT_0, [*allowed, _step(_RETURN, _error(errno.EAFNOSUPPORT))])
    new_namespace = _if_then(_ANY_BIT, _NEW_NAMESPACES, _error(errno.EPERM))
    program += _with_argument(_CLONE[column], _ARGUMENT_0, [*new_namespace, _step(_RETURN, _ALLOW)])
    typing = [*_if_then(_EQUAL, _TIOCSTI, _error(errno.EPERM)), *_if_then(_EQUAL, _TIOCLINUX, _error(errno.EPERM))]
    program += _with_argument(_IOCTL[column], _ARGUMENT_1, [*typing, _step(_RETURN, _ALLOW)])
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _if_then(test: int, value: int, verdict: int) -> list[bytes]:
    return [_step(test, value, 0, 1), _step(_RETURN, verdict)]


def _with_argument(number: int, argument: int, body: list[bytes]) -> list[bytes]:
    """`body` on the low half of an argument, for one call; `body` always returns."""
    return [_step(_EQUAL, number, 0, len(body) + 1), _step(_LOAD, argument), *body]


def _error(number: int) -> int:
    return 0x0005_0000 | number
