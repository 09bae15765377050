"""Assignment of requests to rollout servers on a CPU."""

import asyncio
import pickle

from verl_agent.platform.router import REMEMBERED, ROUTER_CLASS, RequestRouter

SERVERS = {"a": "handle of a", "b": "handle of b"}


def acquire(router: RequestRouter, request: str) -> tuple[str, str]:
    async def call() -> tuple[str, str]:
        return await router.acquire_server.remote(request_id=request)

    return asyncio.run(call())


def test_a_new_request_goes_to_the_server_with_the_fewest_and_its_later_turns_to_the_same():
    router = ROUTER_CLASS.remote(SERVERS, {"router_class": "this"})
    assert acquire(router, "first") == ("a", "handle of a")
    assert acquire(router, "second") == ("b", "handle of b")
    router.release_server.remote(server_id="b")
    assert acquire(router, "third")[0] == "b"
    router.release_server.remote(server_id="a")
    assert acquire(router, "second")[0] == "b"


def test_a_router_arrives_in_another_process_without_running_requests():
    router = RequestRouter(SERVERS)
    acquire(router, "first")
    assert acquire(pickle.loads(pickle.dumps(router)), "second")[0] == "a"


def test_the_oldest_requests_are_forgotten():
    router = RequestRouter(SERVERS)
    for number in range(REMEMBERED + 5):
        router.acquire_server.remote(request_id=str(number))
    assert len(router._chosen) == REMEMBERED and "4" not in router._chosen
