"""File systems of clusters: a folder in which a process finds no file locks, or no shared memory through files.

A small library in C, which processes load before all others (LD_PRELOAD), answers the system calls for files below the
folder as NFS without a lock service and Lustre without the mount option `flock` do.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

/* Return the error for a call of this kind, or 0 if the file lies elsewhere. */
static int refused(const char *kind, int fd) {
  const char *folder = getenv("REFUSE_BELOW"), *kinds = getenv("REFUSE_KINDS"), *number = getenv("REFUSE_ERRNO");
  char link[64], path[4096];
  if (!folder || !kinds || !number || !strstr(kinds, kind)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return strncmp(path, folder, strlen(folder)) ? 0 : atoi(number);
}
int flock(int fd, int operation) {
  int error = refused("flock", fd);
  if (error) { errno = error; return -1; }
  return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, operation);
}
static int lock_command(int command) {
  return command == F_SETLK || command == F_SETLKW || command == F_GETLK || command == F_OFD_SETLK ||
         command == F_OFD_SETLKW || command == F_OFD_GETLK;
}
#define FCNTL(name)                                                                      \
  int name(int fd, int command, ...) {                                                   \
    va_list rest; va_start(rest, command); void *argument = va_arg(rest, void *); va_end(rest); \
    int error = lock_command(command) ? refused("fcntl", fd) : 0;                        \
    if (error) { errno = error; return -1; }                                             \
    return ((int (*)(int, int, void *))dlsym(RTLD_NEXT, #name))(fd, command, argument);  \
  }
FCNTL(fcntl)
FCNTL(fcntl64)
#define MMAP(name)                                                                       \
  void *name(void *at, size_t size, int access, int flags, int fd, off_t offset) {       \
    int error = fd >= 0 && (flags & MAP_SHARED) ? refused("mmap", fd) : 0;               \
    if (error) { errno = error; return MAP_FAILED; }                                     \
    void *(*real)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, #name);       \
    return real(at, size, access, flags, fd, offset);                                    \
  }
MMAP(mmap)
MMAP(mmap64)
"""


@cache
def _library() -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is installed: apt-get install gcc")
    folder = Path(mkdtemp(prefix="refusing-"))
    (folder / "refusing.c").write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", "refusing.so", "refusing.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(folder / "refusing.so")


def refusing(folder: Path, kinds: str, number: int) -> dict[str, str]:
    """Return the environment of a process for which calls on files below a folder fail.

    Args:
        kinds: words among flock, fcntl (locks of POSIX, which SQLite and run folders use) and mmap (shared).
        number: error of the calls.
    """
    own = {"LD_PRELOAD": _library(), "REFUSE_BELOW": str(folder), "REFUSE_KINDS": kinds, "REFUSE_ERRNO": str(number)}
    return {**os.environ, **own}
