"""Assignment of requests to rollout servers within an agent-loop worker.

verl's own (workers/rollout/router.py) is an actor. Its process imports verl, and vLLM with the handles of servers, for
one dictionary: half a GB. On a CPU one agent-loop worker sends all requests, so the dictionary can be there.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from typing import Any

from ray.actor import ActorClass

REMEMBERED = 10_000
"""Number of latest requests whose server is remembered."""


class RequestRouter:
    """Sends a request to the server of its earlier turns, and a new one to the server with the fewest requests.

    Later turns find the earlier ones in the prefix cache of their server. Methods have the interface of an actor's,
    and are those that verl's `LLMServerClient` calls.
    """

    def __init__(self, servers: Mapping[str, Any]) -> None:
        self._servers = dict(servers)
        self._running = dict.fromkeys(servers, 0)
        self._chosen: OrderedDict[str, str] = OrderedDict()
        self.acquire_server = _Method(self._acquire)
        self.release_server = _Method(self._release)
        self.require_acquire_fields = self.require_release_fields = _Method(list)

    def __reduce__(self) -> tuple[type["RequestRouter"], tuple[dict[str, Any]]]:
        """Pickle the servers; the receiver has no running requests."""
        return RequestRouter, (self._servers,)

    def _acquire(self, request_id: str) -> tuple[str, Any]:
        """Return address and handle of the server for a request."""
        server = self._chosen.get(request_id) or min(self._running, key=self._running.__getitem__)
        self._chosen[request_id] = server
        self._chosen.move_to_end(request_id)
        if len(self._chosen) > REMEMBERED:
            self._chosen.popitem(last=False)
        self._running[server] += 1
        return server, self._servers[server]

    def _release(self, server_id: str) -> None:
        """Note the end of a request."""
        self._running[server_id] -= 1


class _Method:
    """Method that `remote` runs at once, in the caller."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def remote(self, *args: Any, **kwargs: Any) -> "_Result":
        """Return the result, to be awaited as that of an actor."""
        return _Result(self._call(*args, **kwargs))


class _Result:
    """Awaitable with a value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._value


class _RouterClass(ActorClass[Any]):
    """Class of actors, as verl expects it in `router_class`, that returns a `RequestRouter` instead."""

    def __init__(self) -> None:
        """Do nothing; ray's class is not meant to be called."""

    def remote(self, servers: Mapping[str, Any], config: Mapping[str, Any]) -> RequestRouter:
        """Return a router; the content of the YAML file that names it has no settings."""
        return RequestRouter(servers)


ROUTER_CLASS = _RouterClass()
"""Value of `router_class` in the file that `rollout.router_config_path` names."""
