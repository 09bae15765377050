"""System calls that a sandbox refuses, as a filter for the kernel.

They reach other processes or kernel parts with a long history of flaws, or hold memory that no process shows: shared
memory without a file, watches, pages in a pipe, large buffers of sockets.
"""

import platform
import struct
from collections.abc import Mapping

ARCHITECTURES: Mapping[str, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Kernel's number of the architecture, and the column of its calls below."""
UNKNOWN = 0xFFFF
"""Number of a call that an architecture does not have."""
CALLS: Mapping[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_setup": (206, 0),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "inotify_init": (253, UNKNOWN),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
}
"""Number of each refused call on x86_64 and on aarch64."""
MMAP, SOCKET, SOCKETPAIR, SETSOCKOPT = (9, 222), (41, 198), (53, 199), (54, 208)
MAP_SHARED_ANONYMOUS = 0x21
FAMILIES = (1, 2, 10, 16)
"""Families of sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
LAST_PROTOCOL = 17
"""UDP; the numbers above belong to protocols whose buffers nothing counts."""
SOL_SOCKET, SIZES = 1, (7, 8)
"""Options SO_SNDBUF and SO_RCVBUF."""
X32 = 0x40000000
"""First number of a second set of calls on x86_64."""
ALLOW, EPERM, NO_EFFECT = 0x7FFF0000, 0x00050001, 0x00050000
LOAD, AND, EQUAL, ABOVE, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in the kernel's description of a call."""
Instruction = tuple[int, int, int, int]


def _argument(index: int) -> Instruction:
    """Return the instruction that loads the lower half of an argument."""
    return LOAD, 0, 0, ARGUMENTS + 8 * index


def _conditional(column: int) -> list[tuple[int, list[Instruction]]]:
    """Return the calls that are refused for some arguments: number, and instructions that decide."""
    refused, allowed = (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)
    family = [(EQUAL, len(FAMILIES) - index, 0, one) for index, one in enumerate(FAMILIES)]
    return [
        (
            MMAP[column],
            [_argument(3), (AND, 0, 0, MAP_SHARED_ANONYMOUS), (EQUAL, 0, 1, MAP_SHARED_ANONYMOUS), refused, allowed],
        ),
        (
            SOCKET[column],
            [_argument(0), *family, refused, _argument(2), (ABOVE, 0, 1, LAST_PROTOCOL), refused, allowed],
        ),
        (SOCKETPAIR[column], [_argument(0), (EQUAL, 1, 0, FAMILIES[0]), refused, allowed]),
        (
            SETSOCKOPT[column],
            [
                *(_argument(1), (EQUAL, 0, 4, SOL_SOCKET), _argument(2)),
                *((EQUAL, 1, 0, SIZES[0]), (EQUAL, 0, 1, SIZES[1]), (RETURN, 0, 0, NO_EFFECT), allowed),
            ],
        ),
    ]


def seccomp_filter(machine: str = "") -> bytes:
    """Return the filter as BPF instructions of 8 bytes, or nothing for an architecture without a table."""
    if (machine or platform.machine()) not in ARCHITECTURES:
        return b""
    architecture, column = ARCHITECTURES[machine or platform.machine()]
    numbers = [numbers[column] for numbers in CALLS.values()]
    program: list[Instruction] = [
        *((LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, EPERM)),
        *((LOAD, 0, 0, NUMBER), (AT_LEAST, len(numbers), 0, X32)),
        *((EQUAL, len(numbers) - index - 1, 0, number) for index, number in enumerate(numbers)),
    ]
    program[-1] = (EQUAL, 0, 1, numbers[-1])
    program.append((RETURN, 0, 0, EPERM))
    for number, decide in _conditional(column):
        program += [(EQUAL, 0, len(decide), number), *decide]
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
