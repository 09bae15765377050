"""The messages of AgentGym's protocol, read and written: what its clients send, and what they look for in answers.

Facts from the clients of github.com/WooooDyy/AgentGym, `agentenv/agentenv/envs/*.py`:

* TextCraft, BabyAI and ScienceWorld name a session `id` and an item `data_idx`, and send the action alone.
* Search and web name a session `env_idx`, the item `id` (search) or `idx` (web), and send the whole reply.
* The answer to `/create` is an object with `id` or `env_idx`; search, which sends an item, reads a bare number.
* The score is `reward` for some and the sum `score` for others, the end `done` or `terminated`.

Answers carry all of these fields, so that one server suits them all. Our own client names the item `item`, sends
`bare_action`, and reads `messages` and `info` besides.
"""

import json
from collections.abc import Mapping
from typing import Any

from verl_agent.envs.action_format import ActionFormat
from verl_agent.envs.parsing import shorten
from verl_agent.types import Message, StepResult

Body = Mapping[str, Any]
MAX_SESSION = 2**63 - 1
MAX_NAME = 1000
"""Characters that the name of an item may have."""


class RequestError(Exception):
    """A request that is answered with an error, whatever the environment would say.

    Attributes:
        status: of HTTP.
        reason: a sentence for the client.
        headers: of the answer.
    """

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """State the answer."""
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers


def read_body(raw: bytes) -> Body:
    """The object that a request carries; no body is an empty one, as AgentGym's `/create` sends it."""
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {shorten(str(error))}") from error
    if not isinstance(body, dict):
        raise RequestError(422, f"the body must be a JSON object, got {_quote(body)}.")
    return body


def read_session(body: Body) -> int:
    """The session that a request means."""
    session = body.get("env_idx", body.get("id"))
    if session is None:
        raise RequestError(422, "id is missing: the number that /create returned. env_idx means the same.")
    if not isinstance(session, int) or isinstance(session, bool) or not 0 <= session <= MAX_SESSION:
        raise RequestError(422, f"id must be the number that /create returned, got {_quote(session)}.")
    return session


def read_query(query: Mapping[str, str]) -> int:
    """The session that the query of a GET request means."""
    text = query.get("env_idx", query.get("id", ""))
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SESSION))):
        raise RequestError(422, f"id must be the number that /create returned, got {_quote(text)}.")
    return read_session({"id": int(text)})


def read_item(body: Body) -> int | str:
    """The item that `/reset` means: its number, or its name."""
    keys = ("item", "data_idx", "idx", *(("id",) if "env_idx" in body else ()))
    key = next((key for key in keys if body.get(key) is not None), None)
    if key is None:
        raise RequestError(422, "the item is missing: item is its name, or data_idx its number.")
    item = body[key]
    if isinstance(item, str) and item and len(item) <= MAX_NAME:
        return item
    if isinstance(item, int) and not isinstance(item, bool) and key != "item":
        return item
    allowed = "the name of an item" if key == "item" else "the number of an item, or its name"
    raise RequestError(422, f"{key} must be {allowed}, got {_quote(item)}.")


def read_action(body: Body, action_format: ActionFormat, max_chars: int) -> str:
    """The action, bare, as an adapter takes it.

    `bare_action` is handed on as it is. The `action` of a client that names its session `id` is what that client cut
    out of a reply, and may have more around it; one that says `env_idx` sends the whole reply. Out of both the action
    is read by the environment's form; a reply without one is an empty action, for the environment to answer.
    """
    key = "bare_action" if "bare_action" in body else "action"
    text = body.get(key)
    if not isinstance(text, str):
        raise RequestError(422, f"{key} must be a text, got {_quote(text)}.")
    if len(text) > max_chars:
        raise RequestError(422, f"{key} has {len(text)} characters, allowed are {max_chars}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(422, f"{key} is not valid Unicode: {error.reason} at {error.start}.") from error
    if key == "bare_action":
        return text
    return action_format.parse(text if "env_idx" in body else action_format.format(text)) or ""


def check_create(body: Body) -> None:
    """Refuse what AgentGym's TextCraft could be asked for and no other environment: a task of the client's own."""
    for key in ("commands", "goal"):
        if body.get(key) is not None:
            raise RequestError(422, f"{key} cannot be set: choose an item of the environment with /reset.")


def created(session: int, body: Body) -> Any:
    """The answer to `/create`."""
    if "id" in body:
        return session
    return {"id": session, "env_idx": session, "observation": "Choose a task with /reset.", "reward": 0, "done": False}


def begun(session: int, messages: list[Message]) -> dict[str, Any]:
    """The answer to `/reset`: AgentGym's clients have instructions of their own and read the last message only."""
    return {
        "id": session,
        "observation": messages[-1]["content"],
        "task_description": "",  # ScienceWorld's client puts it before the observation, which has it already
        "reward": 0.0,
        "score": 0.0,
        "done": False,
        "messages": messages,
    }


def stepped(step: StepResult, score: float) -> dict[str, Any]:
    """The answer to `/step`; `score` is the sum of the rewards so far."""
    return {
        "observation": step.observation,
        "reward": step.reward,
        "score": score,
        "done": step.terminated,
        "terminated": step.terminated,
        "truncated": False,
        "info": dict(step.info),
    }


def _quote(value: object) -> str:
    return shorten(json.dumps(value, default=str), 60)
