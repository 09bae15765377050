"""A host as its pool sees it, and the one that lives in the pool's own process."""

import logging
from dataclasses import replace
from typing import Any, Protocol

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits, Host
from verl_agent.errors import AgentError, EnvError

log = logging.getLogger(__name__)


class HostLink(Protocol):
    """A running host, wherever it is."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `Host`.

        Raises:
            HostLostError: the host is dead.
            AgentError: what the method raised.
        """
        ...

    async def end(self, why: str) -> None:
        """End the host; it is asked to close its sessions first. One that is dead is no error.

        Calls that are still waited for raise `HostLostError` with the reason.
        """
        ...


async def answer(host: Host, method: str, arguments: tuple[Any, ...]) -> Any:
    """What a call into a host returns, or the error of ours that it raises: both can be sent."""
    try:
        return await getattr(host, method)(*arguments)
    except AgentError as error:
        return error
    except Exception as error:  # the caller must hear of our own faults too, or it waits for ever
        log.exception("%s failed", method)
        return EnvError(f"{method} failed in its host: {type(error).__name__}: {error}")


class InlineLink:
    """A host in this process: nothing to start, and nothing that could be killed."""

    def __init__(self, env: EnvAdapter, hosting: Hosting, limits: CallLimits) -> None:
        threaded = hosting if hosting.threads else replace(hosting, threads=None)  # this loop is not the host's
        self._host = Host(env, threaded, limits)

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `HostLink.call`."""
        return await getattr(self._host, method)(*arguments)

    async def end(self, why: str) -> None:
        """See `HostLink.end`; calls that are waited for raise `UnknownSessionError`."""
        await self._host.shutdown()
