"""Protocols of AgentGym's own servers, one dialect for each environment.

The facts come from the servers and clients of github.com/WooooDyy/AgentGym (`agentenv-*/` and
`agentenv/agentenv/envs/*.py`): names of fields, requests that open a session and begin a task, the form of actions, and
the fields with score and end.
The texts in `instructions/` are not AgentGym's; they describe the actions that those servers accept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from verl_agent.envs.action_format import ActionFormat, FenceFormat, LineFormat, TagFormat
from verl_agent.envs.http.protocols import ServerProtocol, read_field, read_number, read_string
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError, did_you_mean
from verl_agent.types import Message, StepResult

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
    success_reward: float = 0.995  # the return is a sum of differences of scores, so 1 may be missed by rounding
    done_field: str = "done"
    any_score_ends: bool = False
    action_format: ActionFormat = field(default_factory=LineFormat)
    send_marked_action: bool = False
    agreement: str = AGREEMENT


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


class AgentGymProtocol(ServerProtocol):
    """Protocol of one of AgentGym's servers. Items are `<env>_<number>`."""

    def __init__(self, env: str, instructions: str | None = None) -> None:
        if env not in DIALECTS:
            known = did_you_mean(env, DIALECTS)
            raise ConfigError(f"env.options.env={env!r} is not an environment of protocol=agentgym. {known}")
        self.dialect = DIALECTS[env]
        self.session_field, self.create_body = self.dialect.session_field, self.dialect.create_body
        self.needs_observation = not self.dialect.prompt_fields
        folder = Path(__file__).with_name("instructions")
        default = folder.joinpath(f"{env}.txt").read_text(encoding="utf-8").strip()
        self._instructions = default if instructions is None else instructions

    @override
    def read_session(self, answer: Any) -> Any:
        return read_field(answer, self.dialect.created_field) if self.dialect.created_field else answer

    @override
    def reset_body(self, item: str) -> dict[str, Any]:
        return {self.dialect.item_field: int(item.rpartition("_")[2]), **self.dialect.reset_fields}

    @override
    def read_prompt(self, answer: Any, observation: Any) -> list[Message]:
        """Return instructions, agreement and first observation, in the order of AgentGym's prompts."""
        if isinstance(answer, Mapping) and answer.get("observation") == TIMEOUT_OBSERVATION:
            raise EnvTimeoutError("the server could not begin the task in time.")
        if not self.needs_observation:
            observation = "\n".join(read_string(answer, name) for name in self.dialect.prompt_fields)
        elif not isinstance(observation, str):
            raise EnvError(f"the server answered the observation {observation!r}, which is not a text.")
        return [
            {"role": "user", "content": self._instructions},
            {"role": "assistant", "content": self.dialect.agreement},
            {"role": "user", "content": observation},
        ]

    @override
    def step_body(self, action: str) -> dict[str, Any]:
        """Search and web servers receive the action with its marks."""
        ready = not self.dialect.send_marked_action or self.dialect.action_format.parse(action) is not None
        return {"action": action if ready else self.dialect.action_format.format(action)}

    @override
    def read_step(self, answer: Any, score: float) -> tuple[StepResult, float]:
        """The return of an episode is AgentGym's last score, so a reward is a change of score."""
        new_score = read_number(answer, self.dialect.score_field) / self.dialect.max_score
        terminated = bool(read_field(answer, self.dialect.done_field))
        terminated = terminated or (self.dialect.any_score_ends and new_score != 0)
        return StepResult(read_string(answer, "observation"), new_score - score, terminated), new_score
