"""Return of memory to the operating system; both functions need Linux and do nothing elsewhere."""

import ctypes
import mmap
import sys

from torch import Tensor

MADV_DONTNEED = 4
"""Linux, sys/mman.h: pages of private memory become free, and read as 0 afterwards."""


def release_pages(tensor: Tensor) -> None:
    """Free the memory of a CPU tensor's storage, and keep the storage: its values are lost and mostly read as 0."""
    storage = tensor.untyped_storage()
    first, page = storage.data_ptr(), mmap.PAGESIZE
    start, end = -(-first // page) * page, (first + storage.nbytes()) // page * page
    if sys.platform == "linux" and tensor.device.type == "cpu" and end > start:
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)


def trim_heap() -> None:
    """Free the memory that glibc's allocator keeps after tensors were freed; other allocators have no such call."""
    if sys.platform == "linux" and hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(ctypes.c_size_t(0))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
