"""Watch on the Ray actors of a run, on all machines: it reports the first one that dies.

A dead actor raises an error in its callers only. Some processes of a run wait for others without calling them.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import ray
from ray._private import state
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import RayActorError

from verl_agent.errors import AgentError
from verl_agent.runs.child import Link
from verl_agent.runs.deaths import ACTORS, NODE_MANAGER, REPLACED_ACTORS, Death, command_line, name_process
from verl_agent.runs.hang_watch import STATES

logger = logging.getLogger(__name__)

POLL_S = 1.0
CONFIRM_S = 3.0
"""Seconds after a failure of the run in which Ray may report the death of an actor that caused it."""
UNREACHABLE_S = 90.0
"""The same after a call of an actor or a connection failed: Ray declares a machine lost after five missed checks."""
LOST_PEER = re.compile(r"[Cc]onnection (reset|closed|refused)|Broken pipe|[Ss]ocket [Tt]imeout|nccl\w*Error")
"""Errors of gloo and NCCL in a rank whose peer is gone; they come before Ray knows that a machine is lost."""
UNEXPECTED = {
    ActorDiedErrorContext.WORKER_DIED: "ended unexpectedly",
    ActorDiedErrorContext.NODE_DIED: "was lost with its machine",
}
"""Reasons of a death that nobody intended; Ray also records that an actor was killed or is no longer used."""
START_S = 60.0
INTENDED = "INTENDED"
"""Part of Ray's message about a process that exited by itself (src/ray/protobuf/common.proto, WorkerExitType)."""


@contextmanager
def watch_actors(link: Link | None) -> Iterator[None]:
    """Report the first death of an actor to the supervisor while the block runs, and then that the run ends."""
    if link is None:
        yield
        return
    ended, start = threading.Event(), WorkerStart()

    def poll_until_ended() -> None:
        while not ended.wait(POLL_S):
            _report(find_death, link)
            _report(start.failure, link)

    threading.Thread(target=poll_until_ended, daemon=True).start()
    try:
        yield
    except Exception as error:  # raised again, unless the death of an actor is its cause
        lost = any(isinstance(one, RayActorError) for one in (error, getattr(error, "cause", None)))
        lost = lost or LOST_PEER.search(str(error)) is not None
        deadline = time.monotonic() + (UNREACHABLE_S if lost else CONFIRM_S)
        while not isinstance(getattr(error, "cause", error), AgentError) and time.monotonic() < deadline:
            _report(find_death, link)
            time.sleep(POLL_S / 4)
        raise
    finally:
        ended.set()
        link.leave()


class WorkerStart:
    """Wait for the first worker process of a Ray that this process has started.

    Ray starts a worker that fails again and again, while whoever asked for it waits forever.
    """

    def __init__(self, limit_s: float = START_S) -> None:
        self._limit_s, self._asked_s, self._done = limit_s, 0.0, False

    def failure(self) -> Death | None:
        """Return the failure if no worker has started for `limit_s` seconds after the run asked for its first actor.

        It counts as the death of Ray's node manager, which starts the workers and has their output.
        """
        if self._done:
            return None
        actors, manager = state.actors().values(), own_node_manager()
        # An actor has a process before its class is imported, which takes minutes on a busy machine.
        self._done = any(actor["Pid"] for actor in actors)
        if self._done or manager is None:  # the run has joined a Ray that was running before
            return None
        if not self._asked_s and actors:
            self._asked_s = time.monotonic()
        if not self._asked_s or time.monotonic() - self._asked_s < self._limit_s:
            return None
        return Death(NODE_MANAGER, manager.pid, cause=f"started no worker within {self._limit_s:.0f} s")


def own_node_manager() -> psutil.Process | None:
    """Return the node manager of a Ray that this process has started; None if the run has joined another one."""
    children = psutil.Process().children(recursive=True)
    return next((process for process in children if name_process(command_line(process)) == NODE_MANAGER), None)


def _report(find: Callable[[], Death | None], link: Link) -> None:
    try:
        death = find() if ray.is_initialized() else None
    except Exception:  # boundary: Ray is starting, ending or overloaded; the next poll asks again
        logger.debug("asking Ray for dead actors failed", exc_info=True)
        return
    if death is not None:
        link.report(death)


def find_death() -> Death | None:
    """Return the earliest unexpected death among the actors of this job, or None."""
    job = ray.get_runtime_context().get_job_id()
    # ray.util.state, the public call, needs the dashboard. ray 2.60.0, _private/state.py:1133 asks Ray itself.
    dead = state.actors(job_id=ray.JobID(bytes.fromhex(job)), actor_state_name="DEAD").values()
    deaths = [(actor["EndTime"], death) for actor in dead if (death := to_death(actor)) is not None]
    return min(deaths, key=lambda pair: pair[0])[1] if deaths else None


def to_death(actor: Mapping[str, Any]) -> Death | None:
    """Return the death of an actor of Ray's table; None if it was intended, or if its pool replaces it."""
    cause, name = actor["DeathCause"], actor["ActorClassName"]
    context = cause.actor_died_error_context
    how = UNEXPECTED.get(context.reason)
    if cause.HasField("oom_context"):
        how = "was killed by Ray because the memory of its machine ran out"
    if how is None or name in REPLACED_ACTORS or INTENDED in context.error_message:
        return None
    here = ray.util.get_node_ip_address()
    node = actor["Address"]["IPAddress"] or context.node_ip_address
    if context.reason == ActorDiedErrorContext.NODE_DIED and node == here and (manager := own_node_manager()):
        state = STATES.get(manager.status(), "no longer answers Ray's control service")
        return Death(NODE_MANAGER, manager.pid, cause=state)  # this machine is not lost
    kind = name.rpartition(".")[2]  # verl makes some classes inside of functions
    return Death(ACTORS.get(kind, f"the actor {kind}"), actor["Pid"], "" if node == here else node, how)
