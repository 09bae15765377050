"""Environment `http`: sessions on servers of `verl-agent serve` or of AgentGym."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, TypeVar
from urllib.parse import quote

from verl_agent.envs.action_format import ActionFormat, action_format_from_json
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.http.agentgym import DIALECTS, AgentGymProtocol
from verl_agent.envs.http.protocols import ServerProtocol, read_field, read_number
from verl_agent.envs.http.server_pool import get_from_all, server_pool
from verl_agent.envs.http.settings import OWN, HttpSettings
from verl_agent.envs.http.transport import UnreachableError, transport
from verl_agent.errors import ConfigError, EnvError
from verl_agent.sections import section
from verl_agent.types import Message, StepResult, TaskItem

T = TypeVar("T")
CLOSE_TIMEOUT_S = 10.0
INFO_TIMEOUT_S = 30.0


class HttpEnv(EnvAdapter):
    """Environment whose tasks and sessions are on one or several servers. See docs/guides/http.md."""

    hosting = Hosting(threads=1, sessions=512, busy=512)  # sessions only wait and share connections

    def __init__(
        self,
        env: str,
        urls: Sequence[str] | str,
        protocol: str = OWN,
        items: Mapping[str, str] | None = None,
        instructions: str | None = None,
        timeout_s: float = 300.0,
        success_reward: float | None = None,
    ) -> None:
        """Check the options, which are those of `HttpSettings`, without a request to the servers."""
        options = {"env": env, "urls": urls, "protocol": protocol, "items": items, "instructions": instructions}
        numbers = {"timeout_s": timeout_s, "success_reward": success_reward}
        self.settings = section("env.options", HttpSettings, options | numbers)
        self.protocol = server_protocol(self.settings)
        self._url = ""
        self._session: Any = None
        self._score = 0.0

    @cached_property
    def splits(self) -> Sequence[str]:  # type: ignore[override]  # first use calls the servers
        """Splits that the servers offer."""
        if self.settings.protocol != OWN:
            return tuple(self.settings.item_numbers)
        return tuple(read_field(fetch_info(self.settings.env, self.settings.servers), "splits"))

    @cached_property
    def success_reward(self) -> float:  # type: ignore[override]  # first use calls the servers
        """Success threshold of the servers' environment."""
        settings = self.settings
        if settings.protocol == OWN:
            return read_number(fetch_info(settings.env, settings.servers), "success_reward")
        chosen = settings.success_reward
        return DIALECTS[settings.env].success_reward if chosen is None else chosen

    @cached_property
    def deterministic(self) -> bool:  # type: ignore[override]  # first use calls the servers
        """True if the servers declare it, which those of AgentGym and of earlier versions do not."""
        return self._declared("deterministic", unknown=False)

    @cached_property
    def seeded(self) -> bool:  # type: ignore[override]  # first use calls the servers
        """False if the servers declare that two episodes of one task may begin differently."""
        return self._declared("seeded", unknown=True)

    @cached_property
    def ends_failed_tasks(self) -> bool:  # type: ignore[override]  # first use calls the servers
        """False if the servers declare that only success ends an episode."""
        return self._declared("ends_failed_tasks", unknown=True)

    @cached_property
    def action_format(self) -> ActionFormat:  # type: ignore[override]  # first use calls the servers
        """Action format of the servers' environment."""
        if self.settings.protocol != OWN:
            return DIALECTS[self.settings.env].action_format
        try:
            return action_format_from_json(read_field(fetch_info(self.settings.env, self.settings.servers), "form"))
        except EnvError as error:
            raise ConfigError(f"env.options.urls: {error} Serve with the same version of verl-agent.") from error

    def _declared(self, name: str, unknown: bool) -> bool:
        """Return what the servers declare about their environment, or `unknown`."""
        if self.settings.protocol != OWN:
            return unknown
        return bool(fetch_info(self.settings.env, self.settings.servers).get(name, unknown))

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the items of `split`: names from `verl-agent serve`, configured numbers for AgentGym's servers."""
        settings = self.settings
        if settings.protocol != OWN:
            return [TaskItem(settings.env, f"{settings.env}_{number}") for number in settings.item_numbers[split]]
        fetch_info(settings.env, settings.servers)  # rejects servers that offer different tasks
        return fetch_tasks(settings.env, settings.servers, split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item`; the first reset opens a session on a server."""
        return await _in_transport_loop(self._reset(item.id))

    async def step(self, action: str) -> StepResult:
        """Send the action once, without a retry: the server may have carried it out even if its answer was lost."""
        if self._session is None:
            raise EnvError("step came before the first reset.")
        valid = action.encode(errors="replace").decode()  # servers reject JSON with a lone surrogate
        answer = await _in_transport_loop(self._post("/step", self.protocol.step_body(valid)))
        result, self._score = self.protocol.read_step(answer, self._score)
        return result

    async def keep_alive(self) -> None:
        """Ask for the last observation again, which restarts the server's time limit of idle sessions."""
        if self._session is not None:
            await _in_transport_loop(self._observe())

    async def close(self) -> None:
        """Close the session on its server; a session that has ended is ignored."""
        if self._session is not None:
            closing = transport().submit(self._close())
            await asyncio.shield(asyncio.wrap_future(closing))  # it completes even if the caller is cancelled

    async def _reset(self, item: str) -> list[Message]:
        protocol = self.protocol
        if self._session is None:
            servers = server_pool(self.settings.servers)
            self._url, answer = await servers.create("/create", protocol.create_body, self.settings.timeout_s)
            try:
                self._session = protocol.read_session(answer)
            except EnvError:
                servers.release(self._url)
                raise
        self._score = 0.0
        answer, observation = await self._post("/reset", protocol.reset_body(item)), None
        if protocol.needs_observation:
            observation = await self._observe()
        return protocol.read_prompt(answer, observation)

    async def _observe(self) -> Any:
        url = f"{self._url}/observation?{self.protocol.session_field}={quote(str(self._session))}"
        return await transport().request("GET", url, timeout_s=self.settings.timeout_s)

    async def _post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        body[self.protocol.session_field] = self._session
        return await transport().request("POST", self._url + path, body, timeout_s or self.settings.timeout_s)

    async def _close(self) -> None:
        try:
            with suppress(EnvError):  # the server closes idle sessions itself
                try:
                    await self._post("/close", {}, CLOSE_TIMEOUT_S)
                except UnreachableError:
                    await self._post("/close", {}, CLOSE_TIMEOUT_S)
        finally:
            server_pool(self.settings.servers).release(self._url)
            self._session = None


@cache
def fetch_tasks(env: str, servers: tuple[str, ...], split: str) -> tuple[TaskItem, ...]:
    """Return the tasks of one split, from the first server that answers."""
    answers = _get(env, servers, f"/tasks?split={quote(split)}")
    tasks = next(iter(answers.values()))
    return tuple(TaskItem(env, task["id"], {}, task["category"]) for task in tasks)


@cache
def fetch_info(env: str, servers: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the servers' description of their environment; unreachable servers are ignored.

    Raises:
        ConfigError: no server answers, a server has another environment, or the servers offer different tasks.
    """
    answers = _get(env, servers, "/info")
    first = next(iter(answers))
    for url, info in answers.items():
        if read_field(info, "env") != env:
            raise ConfigError(f"env.options.env={env!r}, but {url} serves {info['env']!r}. Change env or urls.")
        if read_field(info, "digest") != answers[first]["digest"]:
            raise ConfigError(f"{first} and {url} offer different tasks. Serve the same version with the same options.")
    info = answers[first]
    assert isinstance(info, Mapping)  # read_field() has checked it
    return info


def server_protocol(settings: HttpSettings) -> ServerProtocol:
    """Return the protocol of the servers."""
    if settings.protocol == OWN:
        return ServerProtocol()
    return AgentGymProtocol(settings.env, settings.instructions)


def _get(env: str, servers: tuple[str, ...], path: str) -> dict[str, Any]:
    try:
        return transport().submit(get_from_all(servers, path, INFO_TIMEOUT_S)).result()
    except EnvError as error:
        raise ConfigError(
            f"env.options.urls: {error}. Start a server with: verl-agent serve {env} "
            "(for AgentGym's own servers set env.options.protocol=agentgym)."
        ) from error


async def _in_transport_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop of all requests; cancelling the caller cancels it."""
    return await asyncio.wrap_future(transport().submit(work))
