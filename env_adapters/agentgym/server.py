"""AgentGym's REST dialect on a server of this package, so that AgentGym's clients can play on it.

| call | body | answer |
|---|---|---|
| `POST /create` | none | `id` of a new session |
| `POST /reset` | `id`, `data_idx` or `item` | `observation`, `messages`, ... |
| `POST /step` | `id`, `action` or `bare_action` | `observation`, `reward`, `score`, `done`, `info`, ... |
| `GET /observation?id=` | | the last observation |
| `POST /close` | `id` | `closed` |

Facts from the clients of github.com/WooooDyy/AgentGym, `agentenv/agentenv/envs/*.py`:

* The clients of TextCraft, BabyAI and ScienceWorld name a session `id` and an item `data_idx`, and send the action
  without the rest of the reply.
* The clients of search and web name a session `env_idx` and an item `id` (search) or `idx` (web), and send the whole
  reply.
* The answer to `/create` is an object with `id` or `env_idx`. The search client, which sends an item, expects a number.
* Some clients read the field `reward` and others the sum `score`; the end is `done` or `terminated`.

Answers carry all of these fields, so one server fits all clients.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.routing import BaseRoute

from verl_agent.envs.action_format import ActionFormat
from verl_agent.envs.http.requests import Body, RequestError, only_one, quote, read_action, read_text
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.session import ServerSession, unknown
from verl_agent.types import Action

MAX_SESSION = 2**63 - 1
MAX_NAME = 1000
"""Most characters of an item's name."""


def routes(server: EnvServer) -> list[BaseRoute]:
    """Return the routes of the dialect."""
    dialect = Dialect(server)
    return [
        server.route("/", dialect.hello),
        server.route("/create", dialect.create, "POST"),
        server.route("/reset", dialect.reset, "POST"),
        server.route("/step", dialect.step, "POST"),
        server.route("/close", dialect.close, "POST"),
        server.route("/observation", dialect.observation),
    ]


class Dialect:
    """Calls of the dialect. A session ends with `/close`, or when it is idle for too long."""

    def __init__(self, server: EnvServer) -> None:
        self._server = server
        self._sessions: dict[int, ServerSession] = {}

    async def hello(self, request: Request) -> Any:
        """Return AgentGym's greeting with the name of the environment."""
        return f"This is environment {self._server.tasks.env}."

    async def create(self, request: Request) -> Any:
        """Open a session."""
        body = await self._server.read_body(request)
        for key in ("commands", "goal"):  # which only AgentGym's own TextCraft server allows
            if body.get(key) is not None:
                raise RequestError(422, f"{key} cannot be set: choose an item of the environment with /reset.")
        session = await self._server.sessions.open()
        if await request.is_disconnected():  # the client gave up while it waited for a slot
            await session.close()
            raise RequestError(503, "the client disconnected.")
        number = session.number
        self._sessions[number] = session
        session.on_end = partial(self._sessions.pop, number, None)
        if "id" in body:
            return number
        ids = {"id": number, "env_idx": number}
        return {**ids, "observation": "Choose a task with /reset.", "reward": 0, "done": False}

    async def reset(self, request: Request) -> Any:
        """Begin a task in a session; an unfinished episode of the session is dropped."""
        body = await self._server.read_body(request)
        # The client of search names the item `id`, and the session `env_idx`.
        number = read_session({"env_idx": body["env_idx"]} if body.get("env_idx") is not None else body)
        session = self._find(number)
        messages = await session.begin(self._server.tasks.find(read_item(body)))
        return {
            "id": number,
            "observation": session.observation,
            "task_description": "",  # ScienceWorld's client prepends it to the observation, which has the task already
            "reward": 0.0,
            "score": 0.0,
            "done": False,
            "messages": messages,
        }

    async def step(self, request: Request) -> Any:
        """Carry out one action."""
        server, body = self._server, await self._server.read_body(request)
        number = read_session(body)
        action = read_marked_action(body, server.tasks.action_format, server.limits.action_chars)
        step, score = await self._find(number).act(action)
        return {
            "observation": step.observation,
            "reward": step.reward,
            "score": score,
            "done": step.terminated,
            "terminated": step.terminated,
            "truncated": False,
            "info": dict(step.info),
        }

    async def close(self, request: Request) -> Any:
        """Close a session, even while another call of it is running."""
        await self._find(read_session(await self._server.read_body(request))).close()
        return {"closed": True}

    async def observation(self, request: Request) -> Any:
        """Return the last observation again; the session counts as used."""
        session = self._find(read_query_session(request.query_params))
        session.check_begun()
        await session.keep_alive()
        return session.observation

    def _find(self, number: int) -> ServerSession:
        if number not in self._sessions:
            raise RequestError(404, unknown(number))
        return self._sessions[number]


def read_session(body: Body) -> int:
    """Return the session id in the body of a request."""
    key = only_one(body, ("env_idx", "id"))
    if key is None:
        raise RequestError(422, "id is missing: the number that /create returned. env_idx means the same.")
    session = body[key]
    if not isinstance(session, int) or isinstance(session, bool) or not 0 <= session <= MAX_SESSION:
        raise RequestError(422, f"id must be the number that /create returned, got {quote(session)}.")
    return session


def read_query_session(query: QueryParams) -> int:
    """Return the session id in the query of a GET request."""
    given = {value for key, value in query.multi_items() if key in ("env_idx", "id")}
    if len(given) > 1:
        raise RequestError(422, f"the ids of the query contradict each other: {quote(sorted(given))}.")
    text = next(iter(given), "")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SESSION))):
        raise RequestError(422, f"id must be the number that /create returned, got {quote(text)}.")
    return read_session({"id": int(text)})


def read_item(body: Body) -> int | str:
    """Return the number or the name of the item in the body of `/reset`."""
    of_search = body.get("env_idx") not in (None, body.get("id"))
    key = only_one(body, ("item", "data_idx", "idx", *(("id",) if of_search else ())))
    if key is None:
        raise RequestError(422, "the item is missing: send its name as item, or its number as data_idx.")
    item = body[key]
    if isinstance(item, str) and item and len(item) <= MAX_NAME:
        return item
    if isinstance(item, int) and not isinstance(item, bool) and key != "item":
        return item
    allowed = "the name of an item" if key == "item" else "the number of an item, or its name"
    raise RequestError(422, f"{key} must be {allowed}, got {quote(item)}.")


def read_marked_action(body: Body, action_format: ActionFormat, max_chars: int) -> Action:
    """Return the action for the adapter.

    `bare_action` is passed unchanged. Clients that send `id` extract `action` from a reply, possibly with surrounding
    text. Clients that send `env_idx` put the whole reply into `action`. In both cases the environment's action format
    parses it. Without a parsed action the environment receives an empty one.
    """
    key = only_one(body, ("bare_action", "action")) or "action"
    value = body.get(key)
    if key == "bare_action" or isinstance(value, Mapping):
        return read_action(value, key, action_format, max_chars)
    text = read_text(value, key, max_chars)
    whole_reply = body.get("env_idx") is not None
    return action_format.parse(text if whole_reply else action_format.format(text)) or ""
