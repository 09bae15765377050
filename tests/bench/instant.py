"""Engine that answers at once, for `tests.bench.scale --instant`.

`actor_rollout_ref.rollout.router_config_path` is verl's setting for the choice of a server. The router of this module
chooses a server in the agent-loop worker that returns constant tokens. The engine of the run is idle, and only receives
the weights. What remains is agent loop, hosts, TransferQueue and driver. Left out are the engine, its server, and the
request to the server: a call to another process, for which the agent loop spends CPU time in every turn, too.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override
from verl.workers.rollout.replica import TokenOutput

from verl_agent.platform.router import RequestRouter, _RouterClass

TOKEN = 100
"""Id of all tokens but the last one of a reply."""


class InstantServer:
    """Handle of a server, as verl's client calls it, that returns as many tokens as a reply may have."""

    def __init__(self) -> None:
        self.generate = self

    async def remote(self, *, sampling_params: Mapping[str, Any], **request: Any) -> TokenOutput:
        """Return a reply that ends by itself."""
        ids = [TOKEN] * (sampling_params["max_tokens"] - 1) + sampling_params["stop_token_ids"][:1]
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed")


class _InstantRouterClass(_RouterClass):
    """Class of actors, as verl expects it in `router_class`."""

    @override
    def remote(self, servers: Mapping[str, Any], config: Mapping[str, Any]) -> RequestRouter:
        """Return a router to an `InstantServer` for each server of the run."""
        return RequestRouter({address: InstantServer() for address in servers})


INSTANT_ROUTER = _InstantRouterClass()
