"""AgentGym's own servers as an environment: `env.name=http` with `protocol: agentgym`.

The facts come from the servers and clients of github.com/WooooDyy/AgentGym (`agentenv-*/` and
`agentenv/agentenv/envs/*.py`): names of fields, requests that open a session and begin a task, the form of actions, and
the fields with score and end.
The texts in `instructions/` are not AgentGym's; they describe the actions that those servers accept.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from typing_extensions import override

from verl_agent.envs.action_format import ActionFormat, FenceFormat, LineFormat, TagFormat
from verl_agent.envs.http.client import HttpEnv, read_field
from verl_agent.envs.http.transport import UnreachableError, transport
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError, did_you_mean
from verl_agent.types import Action, Message, StepResult, TaskItem

RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
CLOSE_TIMEOUT_S = 10.0
TIMEOUT_OBSERVATION = "TimeoutError"
"""Observation of the web server after a timeout."""
AGREEMENT = "OK. I'll follow your instructions and try my best to solve the task."


@dataclass(frozen=True, slots=True)
class EnvDialect:
    """Protocol details of one environment.

    Attributes:
        session_field: field of requests with the id of the session.
        created_field: field with the session id in the answer to `/create`; empty if the whole answer is the id.
        item_field: field of `/reset` with the number of the item.
        reset_fields: further fields of `/reset`.
        prompt_fields: fields of the answer to `/reset` that form the first observation; empty if the client has to
            call `/observation`.
        score_field: field of the answer to `/step` with the score of the episode so far.
        max_score: score of a solved task; scores are divided by it.
        success_reward: return from which a task counts as solved, after the division.
        done_field: field of the answer to `/step` that is true at the end of the episode.
        any_score_ends: end the episode at the first score other than 0, even if the server continues.
        action_format: action format of replies.
        send_marked_action: true if the server expects the action with its marks.
        agreement: assistant message after the instructions.
    """

    session_field: str = "id"
    created_field: str = "id"
    create_body: Mapping[str, Any] | None = None
    item_field: str = "data_idx"
    reset_fields: Mapping[str, Any] = field(default_factory=dict)
    prompt_fields: tuple[str, ...] = ("observation",)
    score_field: str = "reward"
    max_score: float = 1.0
    success_reward: float = 1.0
    done_field: str = "done"
    any_score_ends: bool = False
    action_format: ActionFormat = field(default_factory=LineFormat)
    send_marked_action: bool = False
    agreement: str = AGREEMENT

    def read_step(self, answer: Any, score: float) -> tuple[StepResult, float]:
        """Return the result of a step and the new score; the return of an episode is AgentGym's last score."""
        observation, given = read_field(answer, "observation"), read_field(answer, self.score_field)
        done = read_field(answer, self.done_field)
        if isinstance(given, bool) or not isinstance(given, int | float):
            return StepResult(observation, given, done), score  # the session refuses it
        new_score = given / self.max_score
        terminated = True if self.any_score_ends and new_score != 0 else done
        return StepResult(observation, new_score - score, terminated), new_score


DIALECTS: Mapping[str, EnvDialect] = {
    "textcraft": EnvDialect(create_body={"commands": None, "goal": None}),
    # Its server rewards only a success, by 1 - 0.9 * moves / limit, which is below 0 for a late one. It ends an episode
    # only above a reward of 0.5, and adds the reward again with every further action.
    "babyai": EnvDialect(score_field="score", success_reward=1e-6, any_score_ends=True),
    "sciworld": EnvDialect(prompt_fields=("task_description", "observation"), score_field="score", max_score=100.0),
    "searchqa": EnvDialect(
        session_field="env_idx",
        created_field="",
        create_body={"id": 0},
        item_field="id",
        prompt_fields=(),
        action_format=TagFormat(tags=(("search", "query"), ("answer", "answer"))),
        send_marked_action=True,
        agreement="Ok.",
    ),
    "webarena": EnvDialect(
        session_field="env_idx",
        created_field="env_idx",
        item_field="idx",
        reset_fields={"seed": 0},
        prompt_fields=(),
        done_field="terminated",
        action_format=FenceFormat(placeholder="action"),
        send_marked_action=True,
        agreement="Ok.",
    ),
}
"""Dialects by the task name that AgentGym uses."""


class AgentGym(HttpEnv):
    """Environment on AgentGym's own servers, by requests of REST. Items are `<env>_<number>`."""

    deterministic, seeded, ends_failed_tasks = False, True, True  # the servers declare nothing

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Check the options, which are those of `HttpEnv`."""
        super().__init__(*arguments, **options)
        settings = self.settings
        if settings.env not in DIALECTS:
            known = did_you_mean(settings.env, DIALECTS)
            raise ConfigError(f"env.options.env={settings.env!r} is not an environment of protocol=agentgym. {known}")
        if not settings.items:
            raise ConfigError(
                "env.options.items is missing: AgentGym's servers do not list their tasks. Set the item numbers of "
                "each split, such as items: {train: 0-373, test: 374-473}."
            )
        self.dialect = DIALECTS[settings.env]
        self._numbers = {split: parse_numbers(split, str(text)) for split, text in settings.items.items()}
        self._score = 0.0

    @property
    @override
    def splits(self) -> Sequence[str]:  # type: ignore[override]
        return tuple(self._numbers)

    @property
    @override
    def success_reward(self) -> float:  # type: ignore[override]
        chosen = self.settings.success_reward
        return self.dialect.success_reward if chosen is None else chosen

    @property
    @override
    def action_format(self) -> ActionFormat:  # type: ignore[override]
        return self.dialect.action_format

    @cached_property
    def instructions(self) -> str:
        """First message of an episode."""
        default = Path(__file__).with_name("instructions") / f"{self.settings.env}.txt"
        given = self.settings.instructions
        return default.read_text(encoding="utf-8").strip() if given is None else given

    @override
    def tasks(self, split: str) -> Sequence[TaskItem]:
        env = self.settings.env
        return [TaskItem(env, f"{env}_{number}") for number in self._numbers[split]]

    @override
    async def _reset(self, item: TaskItem) -> list[Message]:
        if self._session is None:
            self._url, self._session = await self._place(self._create)
        self._score = 0.0
        number = int(item.id.rpartition("_")[2])
        answer = await self._post("/reset", {self.dialect.item_field: number, **self.dialect.reset_fields})
        if isinstance(answer, Mapping) and answer.get("observation") == TIMEOUT_OBSERVATION:
            raise EnvTimeoutError("the server could not begin the task in time.")
        fields = self.dialect.prompt_fields
        parts = [read_field(answer, name) for name in fields] if fields else [await self._observe()]
        for part in parts:
            if not isinstance(part, str):
                raise EnvError(f"the server answered the observation {part!r}, which is not a text.")
        return [
            {"role": "user", "content": self.instructions},
            {"role": "assistant", "content": self.dialect.agreement},
            {"role": "user", "content": "\n".join(parts)},
        ]

    @override
    async def _step(self, action: Action) -> StepResult:
        """Search and web servers receive the action with its marks."""
        text = str(action).encode(errors="replace").decode()  # servers reject JSON with a lone surrogate
        ready = not self.dialect.send_marked_action or self.dialect.action_format.parse(text) is not None
        answer = await self._post("/step", {"action": text if ready else self.dialect.action_format.format(text)})
        result, self._score = self.dialect.read_step(answer, self._score)
        return result

    @override
    async def _end(self) -> None:
        with suppress(EnvError):  # the server closes idle sessions itself
            try:
                await self._post("/close", {}, CLOSE_TIMEOUT_S)
            except UnreachableError:
                await self._post("/close", {}, CLOSE_TIMEOUT_S)

    async def _create(self, url: str, timeout_s: float) -> Any:
        answer = await transport().request("POST", f"{url}/create", self.dialect.create_body, timeout_s)
        return read_field(answer, self.dialect.created_field) if self.dialect.created_field else answer

    async def _observe(self) -> Any:
        url = f"{self._url}/observation?{self.dialect.session_field}={quote(str(self._session))}"
        return await transport().request("GET", url, timeout_s=self.settings.timeout_s)

    async def _post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        body[self.dialect.session_field] = self._session
        return await transport().request("POST", self._url + path, body, timeout_s or self.settings.timeout_s)


def parse_numbers(split: str, text: str) -> list[int]:
    """Return the item numbers of a split, in the order of a text such as `0-3, 7`."""
    numbers: list[int] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(
                f"env.options.items.{split}={text!r} is not allowed. Allowed: numbers and ranges, such as '0-373, 400'."
            )
        first = int(match[1])
        numbers += range(first, int(match[2] or first) + 1)
    if not numbers or len(set(numbers)) != len(numbers):
        raise ConfigError(
            f"env.options.items.{split}={text!r} is not allowed. Allowed: at least one number, and none twice."
        )
    return numbers
