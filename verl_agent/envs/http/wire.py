"""Wire format of the server: reading of requests and building of answers.

Facts from the clients of github.com/WooooDyy/AgentGym, `agentenv/agentenv/envs/*.py`:

* The clients of TextCraft, BabyAI and ScienceWorld name a session `id` and an item `data_idx`, and send the action
  without the rest of the reply.
* The clients of search and web name a session `env_idx` and an item `id` (search) or `idx` (web), and send the whole
  reply.
* The answer to `/create` is an object with `id` or `env_idx`. The search client, which sends an item, expects a number.
* Some clients read the field `reward` and others the sum `score`; the end is `done` or `terminated`.

Answers carry all of these fields, so one server fits all clients. The client of this package sends `item` and
`bare_action`, and also reads `messages` and `info`.
"""

import json
from collections.abc import Mapping
from typing import Any

from verl_agent.envs.action_format import ActionFormat
from verl_agent.envs.parsing import shorten
from verl_agent.types import Message, StepResult

Body = Mapping[str, Any]
JSON_TYPE = "application/json"
MAX_SESSION = 2**63 - 1
MAX_NAME = 1000
"""Most characters of an item's name."""


class RequestError(Exception):
    """Invalid or rejected request, answered with an HTTP error."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """Set status, reason and headers of the answer."""
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers


def read_body(raw: bytes, content_type: str) -> Body:
    """Return the JSON object in a request's body; AgentGym's `/create` has an empty body, which is an empty object."""
    if not raw:
        return {}
    if content_type.partition(";")[0].strip().lower() != JSON_TYPE:
        raise RequestError(415, f"Content-Type must be {JSON_TYPE}, got {_quote(content_type)}.")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {shorten(str(error))}") from error
    if not isinstance(body, dict):
        raise RequestError(422, f"the body must be a JSON object, got {_quote(body)}.")
    return body


def read_session(body: Body) -> int:
    """Return the session id in the body of a request."""
    session = body.get("env_idx", body.get("id"))
    if session is None:
        raise RequestError(422, "id is missing: the number that /create returned. env_idx means the same.")
    if not isinstance(session, int) or isinstance(session, bool) or not 0 <= session <= MAX_SESSION:
        raise RequestError(422, f"id must be the number that /create returned, got {_quote(session)}.")
    return session


def read_query_session(query: Mapping[str, str]) -> int:
    """Return the session id in the query of a GET request."""
    text = query.get("env_idx", query.get("id", ""))
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SESSION))):
        raise RequestError(422, f"id must be the number that /create returned, got {_quote(text)}.")
    return read_session({"id": int(text)})


def read_item(body: Body) -> int | str:
    """Return the number or the name of the item in the body of `/reset`."""
    keys = ("item", "data_idx", "idx", *(("id",) if "env_idx" in body else ()))
    key = next((key for key in keys if body.get(key) is not None), None)
    if key is None:
        raise RequestError(422, "the item is missing: send its name as item, or its number as data_idx.")
    item = body[key]
    if isinstance(item, str) and item and len(item) <= MAX_NAME:
        return item
    if isinstance(item, int) and not isinstance(item, bool) and key != "item":
        return item
    allowed = "the name of an item" if key == "item" else "the number of an item, or its name"
    raise RequestError(422, f"{key} must be {allowed}, got {_quote(item)}.")


def read_action(body: Body, action_format: ActionFormat, max_chars: int) -> str:
    """Return the action for the adapter.

    `bare_action` is passed unchanged. Clients that send `id` extract `action` from a reply, possibly with surrounding
    text. Clients that send `env_idx` put the whole reply into `action`. In both cases the environment's action format
    parses it. Without a parsed action the environment receives an empty one.
    """
    key = "bare_action" if "bare_action" in body else "action"
    text = body.get(key)
    if not isinstance(text, str):
        raise RequestError(422, f"{key} must be a text, got {_quote(text)}.")
    if len(text) > max_chars:
        raise RequestError(422, f"{key} has {len(text)} characters. Allowed: at most {max_chars}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(422, f"{key} is not valid Unicode: {error.reason} at {error.start}.") from error
    if key == "bare_action":
        return text
    return action_format.parse(text if "env_idx" in body else action_format.format(text)) or ""


def check_create(body: Body) -> None:
    """Reject a task that the client defines itself, which only AgentGym's own TextCraft server allows."""
    for key in ("commands", "goal"):
        if body.get(key) is not None:
            raise RequestError(422, f"{key} cannot be set: choose an item of the environment with /reset.")


def create_answer(session: int, body: Body) -> Any:
    """Return the answer to `/create`."""
    if "id" in body:
        return session
    return {"id": session, "env_idx": session, "observation": "Choose a task with /reset.", "reward": 0, "done": False}


def reset_answer(session: int, messages: list[Message]) -> dict[str, Any]:
    """Return the answer to `/reset`; AgentGym's clients have their own instructions and read only the last message."""
    return {
        "id": session,
        "observation": messages[-1]["content"],
        "task_description": "",  # ScienceWorld's client prepends it to the observation, which already contains the task
        "reward": 0.0,
        "score": 0.0,
        "done": False,
        "messages": messages,
    }


def step_answer(step: StepResult, score: float) -> dict[str, Any]:
    """Return the answer to `/step`; `score` is the sum of the rewards so far."""
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
