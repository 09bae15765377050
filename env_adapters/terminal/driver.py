"""First process of a sandbox: keeps a shell, runs commands within limits, and hands files in and out.

Its caller sends this text to a bare interpreter (`BOOT` in `runtimes.py`), so it imports only the standard library. It
reads a call a line from its standard input, as JSON, and answers each with a line. At the end of the input it exits,
and the kernel ends all other processes of the sandbox with it. The caller trusts none of its answers.
"""

import base64
import codecs
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import shlex
import signal
import stat
import sys
import time
from contextlib import suppress
from typing import Any

from env_adapters.terminal.usage import POLL_S, Usage, processes, text_of

DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD)
CHUNK = 1 << 16
NICE = 10
"""Priority of all processes but this one, which has to see in time that they exceed a limit."""
LIMITS = ("seconds", "memory", "processes", "files", "cpu")
MAX_DEPTH = 32  # of a file that is handed out


def pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors are above those that a child process gets."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def write_pipe(end: int, data: bytes) -> int:
    """Write to a pipe and return the number of bytes that it took; all if nobody reads them any more."""
    try:
        return os.write(end, data)
    except BrokenPipeError:
        return len(data)


class CommandOutput:
    """Text of a command, of which the middle is left out if it exceeds a limit."""

    def __init__(self, limit: int) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.head, self.tail, self.count, self.limit = "", "", 0, limit

    def add(self, data: bytes) -> None:
        """Take more bytes."""
        text = self.decoder.decode(data)
        self.count += len(text)
        free = self.limit // 2 - len(self.head)
        self.head, text = self.head + text[:free], text[free:]
        self.tail = (self.tail + text)[-(self.limit - self.limit // 2) :]

    def answer(self) -> dict[str, Any]:
        """Return the kept text and the number of characters left out between its two parts."""
        return {"head": self.head, "tail": self.tail, "left": self.count - len(self.head) - len(self.tail)}


class SandboxDriver:
    """State of a sandbox: its limits and its shell."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits, self.shell, self.number = limits, 0, 0
        # Sizes of these folders do not limit the number of files.
        self.usage = Usage([limits["folder"], "/tmp", *limits["writable"]], limits["memory_mb"] << 20)
        kinds = ("AS", "FSIZE", "NOFILE", "CORE", "MSGQUEUE", "MEMLOCK", "SIGPENDING", "NPROC")
        sizes = limits["memory_mb"] << 21, limits["disk_mb"] << 20, limits["open_files"]
        values = (*sizes, 0, 0, 0, 1000, limits["processes"] + 2)
        for kind, value in zip(kinds, values, strict=True):
            if kind not in ("SIGPENDING", "NPROC") or limits["own_user"]:
                resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (value, value))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide the CPU time of all processes
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no process of the sandbox may trace this one

    def spawn(self, argv: list[str], stdin: int, *outputs: tuple[int, int]) -> int:
        """Start a process with these descriptors and return its id."""
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), *((os.POSIX_SPAWN_DUP2, end, as_) for end, as_ in outputs)]
        pid = os.posix_spawn(argv[0], argv, self.limits["environ"], file_actions=actions, setsigdef=DEFAULT_SIGNALS)
        with suppress(ProcessLookupError, PermissionError):  # it may have ended; `exceeded` counts its seconds too
            os.setpriority(os.PRIO_PROCESS, pid, NICE)
            resource.prlimit(pid, resource.RLIMIT_CPU, (self.limits["cpu_s"],) * 2)
        return pid

    def start_shell(self) -> None:
        """Start a shell in the working folder; job control would need a terminal, and says so."""
        self.end_all()
        (read_in, self.shell_in), (self.shell_out, out), (self.control, control) = pipe(), pipe(), pipe()
        self.shell = self.spawn(
            ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"],
            read_in,
            (out, 1),
            (out, 2),
            (out, 8),
            (control, 9),
        )
        for end in (read_in, out, control):
            os.close(end)
        self.await_mark(self.send("set +H +o history"), CommandOutput(2), time.monotonic() + 10)

    def send(self, line: str) -> bytes:
        """Write a line to the shell and return the mark that it will write when the line is done."""
        self.number += 1
        lines = f"{line}\nbuiltin printf '%s %s\\n' {self.number} $? >&9\n"
        write_pipe(self.shell_in, lines.encode("utf-8", "replace"))
        return b"%d" % self.number

    def await_mark(self, mark: bytes, output: CommandOutput, until: float) -> tuple[int | None, str]:
        """Collect output until the shell has written `mark`; return the exit status, or None and the reason."""
        marks = b""
        while True:
            ready = select.select([self.shell_out, self.control], [], [], self.wait_s())[0]
            if self.shell_out in ready:
                output.add(os.read(self.shell_out, CHUNK))
            if self.control in ready:
                marks = (marks + os.read(self.control, CHUNK))[-CHUNK:]
                if found := re.search(rb"(?m)^%b (\d{1,3})$" % mark, marks):
                    return int(found[1]), ""
            if reason := self.exceeded(until):
                return None, reason
            if self.reap():
                return None, "exit"

    def exceeded(self, until: float) -> str:
        """Return the limit that is exceeded, or ""; look only when `usage` wants to."""
        now = time.monotonic()
        if now < self.usage.next_look:
            return ""
        memory, count, files, cpu = self.usage.look(now)
        limits, values = self.limits, (now - until, memory, count, files, cpu)
        most = (0, limits["memory_mb"] << 20, limits["processes"] + 1, limits["files"], limits["cpu_s"])
        return next((name for name, one, bound in zip(LIMITS, values, most, strict=True) if one > bound), "")

    def wait_s(self) -> float:
        """Return the seconds until the next look at the limits."""
        return min(max(self.usage.next_look - time.monotonic(), 0.0), POLL_S)

    def reap(self) -> bool:
        """Collect ended processes, as the first process of a system does; return True if the shell is one of them."""
        ended = False
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                ended |= pid == self.shell
        except ChildProcessError:
            ended = bool(self.shell)
        return ended

    def end_others(self) -> None:
        """End all processes but the shell; if they multiply faster than that, all."""
        for _ in range(50):
            pids = processes(self.shell)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.reap() or not pids:
                return
            time.sleep(0.002)
        self.end_all()

    def end_all(self) -> None:
        """End all processes but this one and forget the shell."""
        while processes():
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self.reap()
            time.sleep(0.002)
        self.reap()
        if self.shell:
            for end in (self.shell_in, self.shell_out, self.control):
                os.close(end)
        self.shell = 0

    def run(self, command: str, seconds: float, chars: int) -> dict[str, Any]:
        """Run a command in the shell. Processes that it leaves in the background end with it."""
        if self.shell:
            os.kill(self.shell, signal.SIGCONT)
        else:
            self.start_shell()
        self.usage.begin()
        output = CommandOutput(chars)
        mark = self.send(f"eval {shlex.quote(command)} </dev/null >&8 2>&8 8>&- 9>&-")
        status, reason = self.await_mark(mark, output, time.monotonic() + seconds)
        self.end_others()
        kept = bool(self.shell) and (status is not None or (reason != "exit" and self.recover(mark)))
        while kept and select.select([self.shell_out], [], [], 0)[0] and (data := os.read(self.shell_out, CHUNK)):
            output.add(data)
        if not kept:
            self.end_all()
        self.usage.next_look = 0.0
        reason = reason or self.exceeded(float("inf"))
        self.stop_shell()
        return {**output.answer(), "status": status, "reason": reason, "kept": kept}

    def stop_shell(self) -> None:
        """Stop the shell until the next command, so that nothing runs while nobody looks."""
        if not self.shell:
            return
        os.kill(self.shell, signal.SIGSTOP)
        while text_of(f"/proc/{self.shell}/stat").rpartition(")")[2][1:2] not in "TtZX":
            time.sleep(0.001)
        self.end_others()
        if self.shell not in processes():
            self.end_all()

    def recover(self, mark: bytes) -> bool:
        """Interrupt what the shell itself runs; return True if it takes commands again."""
        waste, until = CommandOutput(2), time.monotonic() + 0.3
        if self.shell and self.await_mark(mark, waste, until)[0] is None and self.shell:
            os.kill(self.shell, signal.SIGINT)
            return self.await_mark(self.send(":"), waste, until + 0.5)[0] is not None
        return bool(self.shell)

    def execute(self, argv: list[str], stdin: str, seconds: float, most: int) -> dict[str, Any]:
        """Run a program beside no other process until it closes its output, and return what it wrote."""
        self.end_all()
        self.usage.begin()
        (read_in, write_in), (read_out, out), waste = pipe(), pipe(), os.open(os.devnull, os.O_WRONLY)
        os.set_blocking(write_in, False)
        self.spawn([sys.executable if argv[0] == "python3" else argv[0], *argv[1:]], read_in, (out, 1), (waste, 2))
        for end in (read_in, out, waste):
            os.close(end)
        until, data, left, reason = time.monotonic() + seconds, b"", base64.b64decode(stdin), ""
        while not reason:
            ready = select.select([read_out], [write_in] if left else [], [], self.wait_s())
            if ready[1]:
                left = left[write_pipe(write_in, left[:CHUNK]) :]
            if not left and write_in >= 0:
                os.close(write_in)
                write_in = -1
            if ready[0]:
                data += (more := os.read(read_out, CHUNK))
                reason = "output" if len(data) > most else "" if more else "end"
            reason = reason or self.exceeded(until)
        self.end_all()
        os.close(read_out)
        if write_in >= 0:
            os.close(write_in)
        return {"output": base64.b64encode(data).decode(), "reason": "" if reason == "end" else reason}

    def put(self, files: dict[str, tuple[int, str]]) -> dict[str, Any]:
        """Write files; a name is relative to the working folder, or absolute."""
        for name, (mode, data) in files.items():
            path = os.path.join(self.limits["folder"], name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "wb") as file:
                file.write(base64.b64decode(data))
        return {}

    def take(self, folder: str, most: int) -> dict[str, Any]:
        """Return the regular files below a folder, after all other processes have ended; nothing is followed."""
        self.end_all()
        files: dict[str, tuple[int, str]] = {}
        for root, folders, names in os.walk(folder):
            if root.count("/") - folder.count("/") >= MAX_DEPTH:
                folders.clear()
            for name in names:
                path = os.path.join(root, name)
                with suppress(OSError):
                    info = os.lstat(path)
                    if not stat.S_ISREG(info.st_mode):
                        continue
                    most -= info.st_size + 1000
                    if most < 0:
                        return {"reason": "files"}
                    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                        data = base64.b64encode(file.read()).decode()
                    relative = os.path.relpath(path, folder).encode("utf-8", "replace").decode()
                    files[relative] = (info.st_mode & 0o777 | 0o600, data)
        return {"files": files}


def main(limits: dict[str, Any]) -> None:
    """Answer calls until the input ends."""
    driver = SandboxDriver(limits)
    calls: dict[str, Any] = {"run": driver.run, "execute": driver.execute, "put": driver.put, "take": driver.take}
    print("{}", flush=True)  # noqa: T201
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = calls[name](*arguments)
        except OSError as error:
            answer = {"error": f"{name}: {error}"}
        print(json.dumps(answer), flush=True)  # noqa: T201
