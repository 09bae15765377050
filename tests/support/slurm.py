"""Slurm of two nodes on this machine, in folders of its own: munged, slurmctld and two slurmd. It needs root."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
"""Programs of Debian's packages munge, slurmctld, slurmd and slurm-client."""
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool_%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd_%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd_%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
JobRequeue=1
ReturnToService=2
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeAddr=127.0.0.1 NodeHostname={host} Port=[{ports[1]}-{ports[2]}] CPUs=64 RealMemory=512000
PartitionName=low Nodes=n[1-2] Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
PartitionName=graced Nodes=n[1-2] PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 State=UP
PartitionName=high Nodes=n[1-2] PriorityTier=10 PreemptMode=OFF State=UP
"""
"""Two partitions whose jobs are preempted by those of the third: at once, or with 30 s of grace after SIGTERM."""


def missing_programs() -> list[str]:
    """Return the programs that a cluster needs and that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def run(*command: str, **variables: str) -> str:
    """Run a command of Slurm; return what it prints."""
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **variables}
    ).stdout.strip()


@contextmanager
def slurm(root: Path) -> Iterator[dict[str, str]]:
    """Run a cluster; yield the variables with which its commands find it.

    Args:
        root: empty folder with a short path, which holds sockets.
    """
    munge, conf = root / "munge", root / "slurm.conf"
    for folder in (munge, root / "state", root / "spool_n1", root / "spool_n2"):
        folder.mkdir(parents=True)
    munge.chmod(0o711)
    key = munge / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    ports = _free_ports()
    conf.write_text(CONF.format(host=socket.gethostname(), root=root, ports=ports))
    variables = {"SLURM_CONF": str(conf)}
    options = [f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *options],
        ["slurmctld", "-D", "-c"],
        *(["slurmd", "-D", "-c", "-N", node] for node in ("n1", "n2")),
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with (root / "output").open("wb") as output:
            for command in commands:
                processes.append(
                    subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **variables})
                )
                if command[0] == "munged":
                    wait_until((munge / "socket").exists, 20, (root / "output").read_text)
        wait_until(lambda: _idle(variables) == 2, 60, (root / "output").read_text, every_s=0.5)
        yield variables
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            process.kill()


def _idle(variables: dict[str, str]) -> int:
    try:
        return int(run("sinfo", "--noheader", "--partition=low", "--states=idle", "--format=%D", **variables) or 0)
    except subprocess.CalledProcessError:  # the controller does not listen yet
        return 0


def _free_ports() -> tuple[int, int, int]:
    """Return a free port, and two free ones that follow each other."""
    for first in range(16817, 18000, 3):
        ports = (first, first + 1, first + 2)
        with suppress(OSError):
            for port in ports:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return ports
    raise AssertionError("no free ports")
