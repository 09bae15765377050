"""Arguments of bubblewrap that all sandboxes share, and the probe of whether it works here."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

from verl_agent.errors import ConfigError

INSTALL = "sudo apt-get install bubblewrap"
PYTHON = "/usr/bin/python3"
NOBODY = 65534
PROBE_S = 20.0
START = (
    "/bin/sh",
    "-c",
    'echo 1000 > /proc/self/oom_score_adj; if [ "$0" != - ]; then echo 0 >&"$0" || exit 1; fi; exec bwrap "$@"',
)
"""Command before the arguments of bubblewrap: the descriptor of a control group to enter, or `-`.

The kernel ends a sandbox first when memory is short. The sandbox cannot change that: its /proc is read-only.
"""
ZEROS_BYTES = 1 << 40


def shared_arguments() -> list[str]:
    """Return the arguments of bubblewrap that all sandboxes share."""
    arguments = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    arguments += ["--as-pid-1", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    arguments += ["--clearenv", "--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local", "--remount-ro", "/usr/local"]
    for path in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        arguments += ["--ro-bind-try", path, path]
    return [*arguments, "--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--ro-bind", zeros(), "/dev/zero"]


def zeros() -> str:
    """Return the path of a file of zeros without content, which takes the place of /dev/zero.

    Shared mappings of the device itself are memory that belongs to no process and no file.

    Raises:
        ConfigError: another user has made the file.
    """
    path = os.path.join(tempfile.gettempdir(), f"verl-agent-zeros-{os.geteuid()}")
    try:
        with open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644), "rb+") as file:
            made = os.fstat(file.fileno())
            if made.st_uid == os.geteuid() and stat.S_ISREG(made.st_mode) and made.st_blocks == 0:
                os.fchmod(file.fileno(), 0o644)  # bubblewrap reads it as `nobody`
                file.truncate(ZEROS_BYTES)
                return path
    except OSError as error:
        raise ConfigError(f"env.options.runtime='bubblewrap': {path} cannot be made: {error}. Set TMPDIR.") from error
    raise ConfigError(f"env.options.runtime='bubblewrap': {path} is another file. Remove it, or set TMPDIR.")


def readable(content: bytes) -> int:
    """Return a descriptor from which a child process reads `content`."""
    end, other = os.pipe()
    os.write(other, content)
    os.close(other)
    return end


def bubblewrap_problem(bwrap: str | None, python: str) -> str:
    """Return why bubblewrap cannot start a sandbox, and the remedy, or "".

    Args:
        bwrap: path of the program; None if it is not installed.
        python: interpreter of the system, which runs the first process of a sandbox.
    """
    if bwrap is None:
        return f"the program bwrap is not installed. Install it ({INSTALL}), or set env.options.runtime=docker."
    if not os.access(python, os.X_OK) or not os.access("/bin/bash", os.X_OK):
        return f"a sandbox needs {python} and /bin/bash of the system: sudo apt-get install python3 bash."
    user = NOBODY if os.geteuid() == 0 else None
    command = [bwrap, *shared_arguments(), "--remount-ro", "/", "--", python, "-I", "-S", "-c", "import ctypes"]
    try:
        done = subprocess.run(
            command, user=user, group=user, extra_groups=[] if user else None, capture_output=True, cwd="/",
            timeout=PROBE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not run: {error}."
    if done.returncode == 0:
        return ""
    said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    if "disable-userns" in said or "Unknown option" in said:
        return f"bwrap is too old ({said}). Version 0.8 or later is needed: {INSTALL}."
    return (
        f"bwrap may not make namespaces ({said}). "
        f"Allow them: {' or '.join(_switches()) or 'a kernel with CONFIG_USER_NS'}; start a container with "
        "--security-opt seccomp=unconfined --security-opt systempaths=unconfined. Or set env.options.runtime=docker."
    )


def _switches() -> list[str]:
    """Return commands for the settings of this kernel that forbid namespaces of users."""
    wanted = (
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user/max_user_namespaces", "0", "10000"),
    )
    found = []
    for name, forbids, allows in wanted:
        file = Path("/proc/sys", name)
        if file.is_file() and file.read_text(encoding="utf-8").strip() == forbids:
            found.append(f"sudo sysctl -w {name.replace('/', '.')}={allows}")
    return found
