"""The glue to verl: one row of a batch in, one played episode as verl's samples out."""

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.config.mixture import MixtureEnv, run_envs
from verl_agent.config.reward_shaping import RewardShaping, turn_rewards
from verl_agent.envs.hosts.ray import training_pool
from verl_agent.envs.registry import make_env
from verl_agent.envs.session import PooledEnv, SessionPool
from verl_agent.envs.tasks import select_tasks
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.episode import EpisodeLimits, play_until_valid
from verl_agent.rollout.policy import EnginePolicy, TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens
from verl_agent.trace.metrics import summarize_episode
from verl_agent.trace.record import EpisodeMeta, Purpose, to_record
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, TaskItem


@dataclass(frozen=True, slots=True)
class Row:
    """Columns of `TaskDataset` and what verl adds to them.

    Attributes:
        purpose: train or validation.
        env_label: label of the environment, see `verl_agent.config.mixture`.
        tasks: selection that the task belongs to.
        task_id: its id.
        step: global training step.
        group: uid of the prompt, shared by the samples of a group.
        sample: number of this sample in its group.
        turn_cap: turn limit that the trainer hands down; None where the step tells.
    """

    purpose: Purpose
    env_label: str
    tasks: str
    task_id: str
    step: int
    group: str
    sample: int
    turn_cap: int | None = None


class PlayedPart:
    """What all episodes of one environment share in a worker process: settings, budget, tasks, sessions."""

    def __init__(self, part: MixtureEnv, loop: AgentLoopBase) -> None:
        self.settings = part.settings
        self.env = make_env(part.env.name, part.env.options)
        self.action_format = self.env.action_format
        self.budget = TokenBudget(
            prompt=loop.rollout_config.prompt_length,
            episode=self.settings.episode.max_tokens or loop.rollout_config.response_length,
            turn=self.settings.episode.max_tokens_per_turn,
            play_truncated_turns=self.settings.episode.on_truncated_turn == "play",
        )
        self._tasks: dict[str, dict[str, TaskItem]] = {}

    def item(self, tasks: str, task_id: str) -> TaskItem:
        """One task of a selection."""
        if tasks not in self._tasks:
            env = self.settings.env
            self._tasks[tasks] = {item.id: item for item in select_tasks(env.name, tasks, env.options)}
        return self._tasks[tasks][task_id]

    @cached_property
    def pool(self) -> SessionPool:
        """Where the sessions of this process live, in training and validation."""
        return training_pool(self.env, self.settings.env)

    def new_agent(self) -> Agent:
        """The agent of one episode."""
        return make_agent(self.settings.agent, self.action_format)

    def limits(self, row: Row) -> EpisodeLimits:
        """Turns and tries of a row's episode; the pool bounds each call."""
        horizon = self.settings.horizon
        if row.purpose != "train":
            turns = horizon.turns_for_evaluation()
        else:
            turns = horizon.turns_at(row.step) if row.turn_cap is None else row.turn_cap
        return EpisodeLimits(turns, None, self.settings.env.retries)


class Shared:
    """What all episodes of a worker process share: environments, builder, record file."""

    def __init__(self, loop: AgentLoopBase, model_type: str | None) -> None:
        config: dict[str, Any] = OmegaConf.to_container(loop.config, resolve=True)
        self.parts = {part.label: PlayedPart(part, loop) for part in run_envs(config)}
        self.builder = choose_builder(loop.tokenizer, model_type, dict(loop.apply_chat_template_kwargs))
        self.end_of_turn: int = loop.tokenizer.eos_token_id
        self._record_dir: str | None = config["episode"].get("record_dir")

    @cached_property
    def writer(self) -> EpisodeWriter | None:
        """The record file of this process."""
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{socket.gethostname()}-{os.getpid()}.jsonl"
        return EpisodeWriter(Path(self._record_dir) / name) if self._record_dir else None


class EpisodeLoop(AgentLoopBase):
    """Plays a task through `play_until_valid()` with the policy that verl serves.

    An episode whose environment failed to the end is recorded and left out of the batch: `run` then
    returns no output, and `EpisodeSampler` counts it.
    """

    _shared: ClassVar[Shared | None] = None

    def __init__(self, *args: Any, hf_model_type: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, hf_model_type=hf_model_type, **kwargs)
        if EpisodeLoop._shared is None:
            EpisodeLoop._shared = Shared(self, hf_model_type)
        self.shared = EpisodeLoop._shared

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> list[AgentLoopOutput]:
        """Play one row; see `TaskDataset` for its columns."""
        cap = columns.get("turn_cap")
        row = Row(
            purpose=columns["purpose"],
            env_label=columns["env_label"],
            tasks=columns["tasks"],
            task_id=columns["task_id"],
            step=int(columns["global_steps"]),
            group=str(columns["uid"]),
            sample=int(columns["session_id"]),
            turn_cap=None if cap is None else int(cap),
        )
        part, policies = self.shared.parts[row.env_label], []
        tools = part.new_agent().tools

        def new_policy() -> EnginePolicy:
            policies.append(self._policy(sampling_params, part.budget, tools))
            return policies[-1]

        def new_env() -> PooledEnv:
            return PooledEnv(part.env, part.pool)

        item = part.item(row.tasks, row.task_id)
        tries = await play_until_valid(item, new_env, part.new_agent, new_policy, part.limits(row))
        self._record(row, tries)
        return self._outputs(row, tries, policies[-1]) if tries[-1].valid else []

    def _policy(
        self, sampling_params: dict[str, Any], budget: TokenBudget, tools: list[dict[str, Any]] | None
    ) -> EnginePolicy:
        return EnginePolicy(
            self.server_manager,
            self.tokenizer,
            EpisodeTokens(self.shared.builder, self.shared.end_of_turn, tools),
            budget,
            sampling_params,
            frozenset({self.shared.end_of_turn}),
        )

    def _record(self, row: Row, tries: list[Episode]) -> None:
        if self.shared.writer is None:
            return
        for attempt, episode in enumerate(tries, start=1):
            origin = EpisodeMeta(
                purpose=row.purpose,
                split=row.tasks,
                step=row.step,
                group=row.group,
                sample=row.sample,
                started_at=datetime.fromtimestamp(episode.started_at, UTC),
                seconds=episode.seconds,
                attempt=attempt,
                shaped_return=sum(self._credit(row).rewards(episode)) if row.purpose == "train" else None,
            )
            self.shared.writer.write(to_record(episode, origin))

    def _label(self, row: Row) -> str:
        return row.env_label if len(self.shared.parts) > 1 else ""

    def _credit(self, row: Row) -> RewardShaping:
        return self.shared.parts[row.env_label].settings.credit

    def _outputs(self, row: Row, tries: list[Episode], policy: EnginePolicy) -> list[AgentLoopOutput]:
        """One row for each stretch of the episode; verl gives all of them the last one's reward."""
        episode, segments = tries[-1], policy.tokens.segments()
        credit = turn_rewards(episode, self._credit(row))
        learnt = sum(credit.rewards)
        summary = summarize_episode(episode, len(tries), env_label=self._label(row), shaped_return=learnt)
        credits_ = credit.split([replies(segment.response_mask) for segment in segments])
        return [
            AgentLoopOutput(
                prompt_ids=segment.prompt_ids,
                response_ids=segment.response_ids,
                response_mask=segment.response_mask,
                response_logprobs=segment.response_log_probs,
                reward_score=learnt if row.purpose == "train" else episode.reward,
                num_turns=len(episode.messages),
                metrics=AgentLoopMetrics(generate_sequences=summary.generate_s, tool_calls=summary.env_s),
                extra_fields={
                    "turn_scores": [turn.step.reward if turn.step else 0.0 for turn in episode.turns],
                    "tool_rewards": [],
                    "min_global_steps": min(policy.steps),
                    "max_global_steps": max(policy.steps),
                    "episode": summary.to_fields(),
                    "turns": turns.to_fields(),
                    "reward_extra_info": {"success": float(episode.success), "turns": float(len(episode.turns))},
                },
            )
            for segment, turns in zip(segments, credits_, strict=True)
        ]


def replies(response_mask: list[int]) -> int:
    """Replies in a response: runs of ones, which template tokens part."""
    return sum(now > before for before, now in pairwise([0, *response_mask]))
