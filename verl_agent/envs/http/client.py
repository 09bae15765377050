"""Environment `http`: sessions on servers of `verl-agent serve`, or of another protocol that a package registers.

A package registers its protocol as a subclass of `HttpEnv`, with an entry point of the group `verl_agent.http_clients`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeVar
from urllib.parse import quote

from verl_agent import registry
from verl_agent.actions import action_to_json
from verl_agent.envs.action_format import ActionFormat, action_format_from_json
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.http.connection import Connection, RefusedActionError
from verl_agent.envs.http.server_pool import get_from_all, server_pool
from verl_agent.envs.http.settings import OWN, HttpSettings
from verl_agent.envs.http.transport import transport
from verl_agent.envs.tasks import stable_hash
from verl_agent.errors import ConfigError, EnvError
from verl_agent.sections import section
from verl_agent.types import Action, Message, StepResult, TaskItem
from verl_agent.values import to_number

T = TypeVar("T")
CLIENTS = "verl_agent.http_clients"
"""Group of entry points: subclasses of `HttpEnv`, by the values of `env.options.protocol`."""
INFO_TIMEOUT_S = 30.0
DIGEST = "digest"
"""Key of the digest of a server's tasks and properties, and of the digest of both and an id in a task's data."""
SAME = "Serve the same version with the same options."


class HttpEnv(EnvAdapter):
    """Environment whose tasks and sessions are on one or several servers. See docs/guides/http.md."""

    hosting = Hosting(threads=1, sessions=512, busy=512)  # sessions only wait

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Return an instance of the class that speaks `protocol`."""
        protocol = options.get("protocol", args[2] if len(args) > 2 else OWN)
        speaking: type[Any] = cls
        if cls is HttpEnv and protocol != OWN:
            speaking = registry.load_class(CLIENTS, str(protocol), "env.options.protocol", HttpEnv)
        instance: Self = super().__new__(speaking, *args, **options)
        return instance

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
        self._url = ""
        self._session: Any = None

    @property
    def splits(self) -> Sequence[str]:  # type: ignore[override]  # first use calls the servers
        """Splits that the servers offer."""
        return tuple(self._info("splits"))

    @property
    def success_reward(self) -> float:  # type: ignore[override]  # first use calls the servers
        """Success threshold of the servers' environment."""
        return self._number("success_reward")

    @property
    def deterministic(self) -> bool:  # type: ignore[override]  # first use calls the servers
        """True if the servers declare it."""
        return bool(self._info("deterministic"))

    @property
    def seeded(self) -> bool:  # type: ignore[override]  # first use calls the servers
        """False if the servers declare that two episodes of one task may begin differently."""
        return bool(self._info("seeded"))

    @property
    def ends_failed_tasks(self) -> bool:  # type: ignore[override]  # first use calls the servers
        """False if the servers declare that only success ends an episode."""
        return bool(self._info("ends_failed_tasks"))

    @property
    def action_format(self) -> ActionFormat:  # type: ignore[override]  # first use calls the servers
        """Action format of the servers' environment."""
        return _action_format(self.settings.env, self.settings.servers)

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the items of `split` by their names on the servers."""
        return fetch_tasks(self.settings.env, self.settings.servers, split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item`; the first reset opens a session on a server."""
        return await in_transport_loop(self._reset(item))

    async def step(self, action: Action) -> StepResult:
        """Send the action once, without a retry: the server may have carried it out even if its answer was lost."""
        if self._session is None:
            raise EnvError("step came before the first reset.")
        return await in_transport_loop(self._step(action))

    async def close(self) -> None:
        """Close the session on its server; a session that has ended is ignored."""
        if self._session is not None:
            closing = transport().submit(self._release())
            await asyncio.shield(asyncio.wrap_future(closing))  # it completes even if the caller is cancelled

    async def _reset(self, item: TaskItem) -> list[Message]:
        data: Mapping[str, Any] = {}
        idle_s = await asyncio.to_thread(self._number, "idle_s")

        async def open_at(url: str, timeout_s: float) -> Connection:
            nonlocal data
            connection = Connection(url, self.settings.timeout_s, idle_s)
            try:
                data = await _ask(connection, "reset", {"task": item.id}, timeout_s)
            except BaseException:  # the server keeps a session for as long as its connection
                await connection.close(wait=False)
                raise
            return connection

        if self._session is None:
            self._url, self._session = await self._place(open_at)
        else:
            data = await _ask(self._session, "reset", {"task": item.id})
        metadata = read_field(data["observation"], "metadata")
        messages = read_field(metadata, "messages")
        expected, digest = item.data.get(DIGEST), metadata.get(DIGEST)
        if expected and digest and expected != _digest_of(item.id, digest):
            raise ConfigError(
                f"{self._url} offers different tasks or options than the server that listed {item.id!r}. {SAME}"
            )
        return [{"role": message["role"], "content": message["content"]} for message in messages]

    async def _step(self, action: Action) -> StepResult:
        data = await _ask(self._session, "step", {"action": action_to_json(action)})
        observation = data["observation"]
        info = read_field(observation, "metadata")
        return StepResult(read_field(observation, "text"), read_field(data, "reward"), data["done"], info)

    async def _end(self) -> None:
        await self._session.close()

    async def _place(self, open_at: Callable[[str, float], Coroutine[Any, Any, T]]) -> tuple[str, T]:
        """Open a session on the server with the fewest sessions of this process."""
        return await server_pool(self.settings.servers).place(open_at, self.settings.timeout_s)

    async def _release(self) -> None:
        try:
            await self._end()
        finally:
            server_pool(self.settings.servers).release(self._url)
            self._session = None

    def _info(self, key: str) -> Any:
        return read_field(fetch_info(self.settings.env, self.settings.servers), key)

    def _number(self, key: str) -> float:
        given = self._info(key)
        if (number := to_number(given)) is None:
            raise ConfigError(f"env.options.urls: the server answered {key}={given!r}, which is no number.")
        return number


async def _ask(
    connection: Connection, kind: str, data: Mapping[str, Any], timeout_s: float | None = None
) -> Mapping[str, Any]:
    """Ask a server of this package, to which no valid action has a wrong form."""
    try:
        return await connection.ask(kind, data, timeout_s)
    except RefusedActionError as error:
        raise EnvError(f"the server refuses {kind}: {error}") from error


@cache
def fetch_tasks(env: str, servers: tuple[str, ...], split: str) -> tuple[TaskItem, ...]:
    """Return the tasks of one split, from the first server that answers; their data has digests of their contents."""
    digest = str(read_field(fetch_info(env, servers), DIGEST))  # rejects servers that offer different tasks
    answers = _get(env, servers, f"/tasks?split={quote(split)}")
    tasks = next(iter(answers.values()))
    return tuple(
        TaskItem(env, task["id"], {DIGEST: _digest_of(task["id"], digest)}, task["category"]) for task in tasks
    )


def _digest_of(task: str, digest: str) -> str:
    """Return the digest of one task, which differs from those of other ones as a task's data should."""
    return stable_hash(f"{digest} {task}")[:16]


@cache
def fetch_info(env: str, servers: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the servers' description of their environment; unreachable servers are ignored.

    Raises:
        ConfigError: no server answers, a server has another environment, or the servers differ in tasks or properties.
    """
    answers = _get(env, servers, "/info")
    first = next(iter(answers))
    for url, info in answers.items():
        if read_field(info, "env") != env:
            raise ConfigError(f"env.options.env={env!r}, but {url} serves {info['env']!r}. Change env or urls.")
        if read_field(info, DIGEST) != answers[first][DIGEST]:
            raise ConfigError(f"{first} and {url} offer different tasks or options. {SAME}")
    info = answers[first]
    assert isinstance(info, Mapping)  # read_field() has checked it
    return info


@cache
def _action_format(env: str, servers: tuple[str, ...]) -> ActionFormat:
    try:
        return action_format_from_json(read_field(fetch_info(env, servers), "form"))
    except EnvError as error:
        raise ConfigError(f"env.options.urls: {error} Serve with the same version of verl-agent.") from error


def _get(env: str, servers: tuple[str, ...], path: str) -> dict[str, Any]:
    try:
        return transport().submit(get_from_all(servers, path, INFO_TIMEOUT_S)).result()
    except EnvError as error:
        raise ConfigError(
            f"env.options.urls: {error}. Start a server with: verl-agent serve {env} "
            "(for AgentGym's own servers set env.options.protocol=agentgym)."
        ) from error


def read_field(answer: Any, key: str) -> Any:
    """Return one field of an answer.

    Raises:
        EnvError: the field is missing, or the answer is not an object.
    """
    if not isinstance(answer, Mapping):
        raise EnvError(f"the server's answer must be an object with {key!r}, got {type(answer).__name__}.")
    if key not in answer:
        fields = ", ".join(map(str, answer)) or "no field"
        raise EnvError(f"the server's answer has no {key!r}. It has: {fields}. Check env.options.protocol.")
    return answer[key]


async def in_transport_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop of all requests; cancelling the caller cancels it."""
    return await asyncio.wrap_future(transport().submit(work))
