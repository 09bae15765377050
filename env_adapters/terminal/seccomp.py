"""System calls that a sandbox refuses, as a filter for the kernel.

They reach other processes or kernel parts with a long history of flaws, or take memory that no limit counts.
"""

import platform
import struct
from collections.abc import Mapping

ARCHITECTURES: Mapping[str, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Kernel's number of the architecture, and the column of its calls below."""
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
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
"""Number of each refused call on x86_64 and on aarch64."""
SOCKET = (41, 198)
"""Number of `socket` on each architecture."""
AF_VSOCK = 40
"""Family of sockets to the host of a virtual machine, which no namespace keeps away."""
X32 = 0x40000000
"""First number of a second set of calls on x86_64."""
ALLOW, EPERM = 0x7FFF0000, 0x00050001
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
FIRST_ARGUMENT = 16
"""Offset of the lower half of a call's first argument."""


def seccomp_filter(machine: str = "") -> bytes:
    """Return the filter as BPF instructions of 8 bytes, or nothing for an architecture without a table."""
    if (machine or platform.machine()) not in ARCHITECTURES:
        return b""
    architecture, column = ARCHITECTURES[machine or platform.machine()]
    numbers = [numbers[column] for numbers in CALLS.values()]
    program = [(LOAD, 0, 0, 4), (EQUAL, 0, 0, architecture), (LOAD, 0, 0, 0)]
    program.append((AT_LEAST, 0, 0, X32))
    for index, number in enumerate(numbers):
        program.append((EQUAL, len(numbers) - index + 3, 0, number))
    program += [(EQUAL, 0, 2, SOCKET[column]), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, AF_VSOCK)]
    # Without a match the call is allowed; the next instruction refuses.
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, EPERM)]
    program[1] = (EQUAL, 0, len(program) - 3, architecture)
    program[3] = (AT_LEAST, len(program) - 5, 0, X32)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
