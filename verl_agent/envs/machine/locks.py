"""Locks between processes by files, also on file systems that have no `flock`.

NFS without its lock service and Lustre without the mount option `flock` refuse the call with one of `REFUSALS`. There
a file beside the lock names the holder: host, space of process ids, process and its start, and a time stamp that the
holder renews. Whoever finds it waits, and takes it over when the holder has ended or has not renewed it for `STALE_S`.
"""

import atexit
import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from verl_agent.envs.machine.processes import process_space, process_started
from verl_agent.errors import ConfigError

REFUSALS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of a file system without `flock`."""
HELD = (errno.EACCES, errno.EAGAIN)
POLL_S = 0.05
RENEW_S = 10.0
"""Seconds between two renewals of a holder's file."""
STALE_S = 90.0
"""Seconds without a renewal after which another machine takes a lock over. Clocks of machines may differ by some."""
logger = logging.getLogger(__name__)


class FileLock:
    """Lock of a file or folder. It ends with the process that holds it.

    Args:
        path: folder, or a file, which is created if it is missing and keeps its content.
        of_process: a process that is forked does not hold it too (`fcntl.lockf` rather than `flock`).
    """

    def __init__(self, path: Path, of_process: bool = False) -> None:
        self.path, self._lock = path, fcntl.lockf if of_process else fcntl.flock
        self._descriptor: int | None = None
        self._owner: _OwnerFile | None = None

    def acquire(self, wait: bool = True, say: Callable[[], None] | None = None) -> bool:
        """Acquire the lock; return False if another process holds it and `wait` is False.

        Args:
            wait: wait until it is free.
            say: called once before the first wait.

        Raises:
            ConfigError: the folder cannot be written.
        """
        if self._try():
            return True
        if wait and say is not None:
            say()
        while wait:
            if self._try(fcntl.LOCK_EX):
                return True
            time.sleep(POLL_S)  # an owner file cannot be waited for
        return False

    def release(self) -> None:
        """Release the lock; a lock that is not held is ignored."""
        descriptor, owner, self._descriptor, self._owner = self._descriptor, self._owner, None, None
        if owner is not None:
            owner.remove()
        if descriptor is not None:
            os.close(descriptor)

    def _try(self, operation: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool:
        mode = os.O_RDONLY if self.path.is_dir() else os.O_RDWR | os.O_CREAT
        try:
            descriptor = os.open(self.path, mode | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise not_writable(self.path.parent, error) from error
        try:
            self._lock(descriptor, operation)
        except BaseException as error:  # or Ctrl-C during the wait
            os.close(descriptor)
            if not isinstance(error, OSError):
                raise
            if error.errno in HELD:
                return False
            if error.errno not in REFUSALS:
                raise
            _report_missing_locks(self.path if self.path.is_dir() else self.path.parent)
            owner = _OwnerFile(self.path)
            if not owner.create():
                return False
            self._owner = owner
            return True
        self._descriptor = descriptor
        return True

    def write(self, text: str) -> None:
        """Replace the content of the file; closing another descriptor of it would release a lock of `lockf`.

        A byte of a command line that is not UTF-8 is written as an escape.
        """
        if self._descriptor is None:
            self.path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(errors="backslashreplace"), 0)


@contextmanager
def locked(path: Path, say: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a file or folder while the block runs; wait until it is free.

    Args:
        path: see `FileLock`.
        say: called once before a wait.

    Raises:
        ConfigError: the folder cannot be written.
    """
    lock = FileLock(path)
    lock.acquire(say=say)
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Return True if a process holds the lock of a file; it does not disturb one that acquires it."""
    if has_owner_file(path):
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two questions do not meet
    except OSError as error:
        return error.errno in HELD
    finally:
        os.close(descriptor)
    return False


def has_owner_file(path: Path) -> bool:
    """Return True if a process holds the lock of a file by the file that names it; the lock is not opened."""
    owner = _OwnerFile(path)
    return owner.path.exists() and not owner.stale()


def not_writable(folder: Path, error: OSError) -> ConfigError:
    """Return the error of a folder in which no lock can be made."""
    return ConfigError(
        f"{folder} cannot be written ({error.strerror or error}), so it cannot be locked. Allow writing there, or "
        "choose another folder."
    )


@cache
def _report_missing_locks(folder: Path) -> None:
    """Log once for each folder that its file system has no locks."""
    logger.warning(
        "%s has no file locks (for example, NFS without a lock service, or Lustre without the mount option flock): a "
        "file names the holder instead. After a crash on another machine, a start waits up to %.0f s.",
        folder,
        STALE_S,
    )


class _OwnerFile:
    """File beside a lock that names its holder, created exclusively."""

    def __init__(self, lock: Path) -> None:
        self.path = lock / ".lock.owner" if lock.is_dir() else lock.with_name(f"{lock.name}.owner")
        self._me = {
            "host": socket.gethostname(),
            "space": process_space(),
            "pid": os.getpid(),
            "started": process_started(os.getpid()),
            "token": secrets.token_hex(8),
        }
        self._removed = threading.Event()

    def create(self) -> bool:
        """Create the file, in place of one whose holder has ended; return False if another process holds it."""
        if self.path.exists() and self.stale():
            self._take_away()
        draft = self.path.with_name(f".{self.path.name}.{self._me['token']}")
        try:
            draft.write_text(json.dumps(self._me), encoding="utf-8")
            _link_exclusively(draft, self.path)
        except FileExistsError:
            return False
        except OSError as error:
            raise not_writable(self.path.parent, error) from error
        finally:
            draft.unlink(missing_ok=True)
        threading.Thread(target=self._renew, name="lock", daemon=True).start()
        atexit.register(self.remove)
        return True

    def remove(self) -> None:
        """Remove the file if it is still this holder's; a forked process is not the holder."""
        self._removed.set()
        if self._me["pid"] == os.getpid() and self._read() == self._me:
            self.path.unlink(missing_ok=True)

    def stale(self) -> bool:
        """Return True if the holder has ended, or has not renewed the file for too long.

        Only a holder whose process id counts here can be looked up.
        """
        owner = self._read() or {}
        here = self._me["space"] and all(owner.get(key) == self._me[key] for key in ("host", "space"))
        if here and type(pid := owner.get("pid")) is int:
            started = process_started(pid)
            return not started or started != owner.get("started")
        with suppress(OSError):
            return self._now() - self.path.stat().st_mtime > STALE_S
        return False

    def _take_away(self) -> None:
        """Remove a stale file; of several processes that try, the rename lets one succeed."""
        away = _OwnerFile(self.path.with_name(f".{self.path.name}.{self._me['token']}"))
        with suppress(OSError):
            self.path.rename(away.path)
            if not away.stale():  # another process took the lock over in the meantime
                _link_exclusively(away.path, self.path)
            away.path.unlink()

    def _now(self) -> float:
        """Return the time of the file system, whose clock may be that of another machine."""
        probe = self.path.with_name(f".{self.path.name}.{self._me['token']}.now")
        try:
            probe.touch()
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        try:
            owner = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return owner if isinstance(owner, dict) else None

    def _renew(self) -> None:
        while not self._removed.wait(RENEW_S):
            with suppress(OSError):
                os.utime(self.path)


def _link_exclusively(draft: Path, target: Path) -> None:
    """Give a complete file its name unless that exists; some file systems have no hard links."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:
        with target.open("x", encoding="utf-8") as file:
            file.write(draft.read_text(encoding="utf-8"))
