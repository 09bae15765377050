"""Agent loop that verl's rollout workers run: one row of a batch in, the rows of one played episode out."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar
from zlib import crc32

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

from verl_agent.agents.base import Agent
from verl_agent.config.plan import RunPlan, plan_of_process
from verl_agent.config.reward_shaping import turn_rewards
from verl_agent.config.settings import RunEnv
from verl_agent.envs.arena import Arena
from verl_agent.envs.hosts.ray import training_pool
from verl_agent.envs.session import PooledEnv, Session, SessionPool
from verl_agent.returns import sum_rewards
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.deepening import GroupLimit, GroupLimits
from verl_agent.rollout.engine_policy import EnginePolicy
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.live import LiveEpisodes, Shown
from verl_agent.rollout.player import Player
from verl_agent.rollout.prompts import FittedSession, token_counter
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens, Segment, contract
from verl_agent.runs.first_error import OneTraceback
from verl_agent.system.threads import in_thread
from verl_agent.trace.episode_summary import EpisodeSummary, count_lost_connections, summarize_episode
from verl_agent.trace.record import EpisodeMeta, to_record
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.invalid_episodes import report_invalid
from verl_agent.training.rollout_row import RolloutRow
from verl_agent.training.seat_policies import SeatPolicies
from verl_agent.training.seats import Matches, TakenSeat
from verl_agent.training.solved_episodes import SolvedEpisodes
from verl_agent.types import Episode, TaskItem

SEED_NAMES = {"sglang": "sampling_seed"}
"""Name of a request's seed in engines that do not call it `seed`, by `actor_rollout_ref.rollout.name`."""


class EnvRuntime:
    """State that all episodes of one environment share in a worker process: environment, budget, tasks, sessions."""

    def __init__(self, run_env: RunEnv, plan: RunPlan, loop: AgentLoopBase, builder: ContinuousTokenBuilder) -> None:
        self.of_run, self._live = run_env, run_env.live
        lengths = loop.rollout_config.prompt_length, loop.rollout_config.response_length
        self.budget, self.max_row_tokens = TokenBudget.of(run_env.episode, *lengths), sum(lengths)
        self._cuts_prompts = plan.lengths.overlong == "truncate_observation"
        self._count_tokens = token_counter(builder, run_env.new_agent)
        self._tasks: dict[str, dict[str, TaskItem]] = {}
        self._oracle_turns: dict[str, int | None] = {}
        self._seed: int = loop.rollout_config.seed
        self.judge = run_env.new_judge(plan.schedule.folder, plan.judges)
        self._group_limits = GroupLimits(run_env.horizon.stages, loop.rollout_config.n)
        replay = run_env.horizon.replay
        self._solved = None if replay is None else SolvedEpisodes(run_env, replay)
        self._matches: Matches | None = None
        if isinstance(self._live, Arena) and len(self._live.policy_seats) > 1:
            self._matches = Matches(self._live, run_env.label)
            self._others = SeatPolicies(self._live, run_env, self.budget, dict(loop.apply_chat_template_kwargs))

    def item(self, tasks: str, task_id: str) -> TaskItem:
        """Return one task of a selection."""
        if tasks not in self._tasks:
            self._tasks[tasks] = {item.id: item for item in self.of_run.tasks(tasks)}
        return self._tasks[tasks][task_id]

    async def oracle_turns(self, item: TaskItem) -> int | None:
        """Return the number of actions with which an oracle solves a task; see `EnvAdapter.oracle_turns`."""
        if item.id not in self._oracle_turns:
            self._oracle_turns[item.id] = await in_thread(self._live.oracle_turns, item)
        return self._oracle_turns[item.id]

    async def given(self, row: RolloutRow, item: TaskItem) -> Sequence[str]:
        """Return the replies of a solved episode that a row's episode replays first; see `horizon.replay`."""
        if self._solved is None or row.max_turns is None:  # validation has no limit of the trainer
            return ()
        return list(await in_thread(self._solved.given, item, self.of_run.new_agent(), row.max_turns))

    @cached_property
    def pool(self) -> SessionPool:
        """Pool of the sessions of this process, for training and validation."""
        return training_pool(self._live, self.of_run.env)

    def new_session(self) -> Session:
        """Return a session of the pool; it opens at its reset."""
        session = PooledEnv(self._live, self.pool)
        return FittedSession(session, self._count_tokens, self.budget.prompt) if self._cuts_prompts else session

    def place(self, row: RolloutRow, item: TaskItem, player: Player[Any]) -> TakenSeat | None:
        """Return the seat that a row's episode plays; None where one policy plays alone."""
        if self._matches is None:
            return None
        sessions = partial(PooledEnv, self._live, self.pool)
        limits, of_arena = player.limits, replace(player, new_session=sessions).replaying
        first = replace(row, sample=self._matches.number(row))  # whichever seat comes first
        others = self._others.player(replace(limits, retries=0), first.seed(self._seed, 1))
        return self._matches.join(row, item, of_arena, others)

    def group_limit(self, row: RolloutRow) -> GroupLimit | None:
        """Return the limit that the episodes of a row's group share with `horizon.deepen`; else None."""
        shares = self.of_run.horizon.deepen and row.purpose == "train"
        return self._group_limits.join(row.group) if shares else None

    def limits(self, row: RolloutRow) -> EpisodeLimits:
        """Return turn limit and retries of a row's episode; the pool limits the time of each call."""
        assert row.purpose != "train" or row.max_turns is not None  # the trainer decides it
        return self.of_run.limits(row.max_turns if row.purpose == "train" else None)


class WorkerState:
    """State that all episodes of a worker process share: environments, token builder, record file."""

    def __init__(self, loop: AgentLoopBase, model_type: str | None) -> None:
        self.builder = choose_builder(loop.tokenizer, model_type, dict(loop.apply_chat_template_kwargs))
        plan = plan_of_process(loop.config)
        self.envs = {one.label: EnvRuntime(one, plan, loop, self.builder) for one in plan.envs}
        self.end_of_turn: int = loop.tokenizer.eos_token_id
        self._records = plan.schedule.records if plan.schedule.record_dir else None
        process = crc32(f"{socket.gethostname()} {os.getpid()}".encode())  # other machines have the same process ids
        self.live = LiveEpisodes(self._records, process * 100_000)

    @cached_property
    def writer(self) -> EpisodeWriter | None:
        """Writer of this process's record file, or None without `episode.record_dir`."""
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{socket.gethostname()}-{os.getpid()}.jsonl"
        return EpisodeWriter(self._records / name) if self._records else None


class EpisodeLoop(AgentLoopBase):
    """Agent loop that plays a task through a `Player` with the policy that verl serves.

    An episode whose last attempt is not valid is recorded and left out of the batch. `run` then returns no rows, and
    reports the episode to `EpisodeSampler`.
    """

    _worker_state: ClassVar[WorkerState | None] = None

    def __init__(self, *args: Any, hf_model_type: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, hf_model_type=hf_model_type, **kwargs)
        if EpisodeLoop._worker_state is None:
            logging.getLogger("verl.trainer.ppo.v1.agent_loop_tq").addFilter(OneTraceback())
            # for a model family without a builder of its own, this one warns at each episode
            logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)
            EpisodeLoop._worker_state = WorkerState(self, hf_model_type)
        self.worker = EpisodeLoop._worker_state

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> list[AgentLoopOutput]:
        """Play the episode of one row.

        Returns:
            One row for each segment of the episode; an empty list if the episode is not valid.
        """
        row = RolloutRow.from_columns(columns)
        env, rollout = self.worker.envs[row.env_label], self.rollout_config
        prompting = env.of_run.new_agent()

        def new_policy(item: TaskItem, seed: EpisodeSeed) -> EnginePolicy:
            tokens = EpisodeTokens(self.worker.builder, self.worker.end_of_turn, prompting.tools, prompting.marks)
            return EnginePolicy(
                self.server_manager,
                self.tokenizer,
                tokens,
                env.budget,
                sampling_params,
                frozenset({self.worker.end_of_turn}),
                seed=seed if env.of_run.episode.seeded_sampling else None,
                seed_name=SEED_NAMES.get(rollout.name, "seed"),
            )

        item = env.item(row.tasks, row.task_id)
        shown = Shown(self.worker.live, row.position)
        player = Player(env.of_run.new_agent, env.new_session, new_policy, env.limits(row), shown, env.judge)
        if place := env.place(row, item, player):  # the match replays after an error of its environment
            once = replace(player.limits, retries=0)
            item, player = place.item, replace(player, new_session=place.new_session, limits=once)
        group, solved = env.group_limit(row), False
        at_limit = group.at_limit if group else None
        try:
            played = await player.play(item, row.seed(rollout.seed, 1), at_limit, await env.given(row, item))
            attempts, policy = played.attempts, played.policy
            solved = attempts[-1].success
        finally:  # whatever failed, the other seats and the rest of the group wait no longer
            if place:
                await place.match.leave(place.seat)
            if group:
                group.end(solved)
        if group:
            attempts[-1].max_turns = await group.final()
        if place:
            await place.match.settle(place.seat, attempts[-1])
        oracle_turns = await env.oracle_turns(item)
        for episode in attempts:
            episode.oracle_turns = None if episode.given_turns else oracle_turns
        self._record(row, attempts)
        if not attempts[-1].valid:
            partition = "train" if row.purpose == "train" else "val"
            await report_invalid(partition, row.group, row.sample, self._summary(row, attempts))
            return []
        segments = policy.tokens.segments()
        if row.purpose == "train" and env.of_run.credit.truncated == "bootstrap" and attempts[-1].truncated:
            segments = await asyncio.to_thread(
                add_last_state, segments, attempts[-1], played.agent, policy.tokens, env.max_row_tokens
            )
        return self._outputs(row, attempts, policy, segments, place.role if place else "")

    def _record(self, row: RolloutRow, attempts: list[Episode]) -> None:
        """Write all attempts to the record file."""
        if self.worker.writer is None:
            return
        shaping = self.worker.envs[row.env_label].of_run.credit
        for attempt, episode in enumerate(attempts, start=1):
            meta = EpisodeMeta(
                **row.position,
                started_at=datetime.fromtimestamp(episode.started_at, UTC),
                seconds=episode.seconds,
                attempt=attempt,
                env_label=row.env_label if len(self.worker.envs) > 1 else "",
                shaped_return=sum_rewards(shaping.rewards(episode)) if row.purpose == "train" else None,
            )
            self.worker.writer.write(to_record(episode, meta))

    def _summary(self, row: RolloutRow, attempts: list[Episode], shaped_return: float | None = None) -> EpisodeSummary:
        """Return the summary of the last attempt."""
        label, lost = row.env_label if len(self.worker.envs) > 1 else "", count_lost_connections(attempts)
        replays = sum(len(episode.replays) for episode in attempts)
        return summarize_episode(attempts[-1], len(attempts), replays, label, shaped_return, lost)

    def _outputs(
        self, row: RolloutRow, attempts: list[Episode], policy: EnginePolicy, segments: list[Segment], role: str
    ) -> list[AgentLoopOutput]:
        """Return one row for each segment of the last attempt; verl gives all of them the reward of the last row."""
        episode = attempts[-1]
        shaped = turn_rewards(episode, self.worker.envs[row.env_label].of_run.credit, role)
        shaped_return = sum_rewards(shaped.rewards)
        summary = self._summary(row, attempts, shaped_return)
        rewards_by_segment = shaped.split([count_replies(segment.response_mask) for segment in segments])
        return [
            AgentLoopOutput(
                prompt_ids=segment.prompt_ids,
                response_ids=segment.response_ids,
                response_mask=segment.response_mask,
                response_logprobs=segment.response_log_probs,
                routed_experts=segment.routed_experts,
                reward_score=shaped_return if row.purpose == "train" else episode.reward,
                num_turns=len(episode.messages),
                metrics=AgentLoopMetrics(generate_sequences=summary.generate_s, tool_calls=summary.env_s),
                extra_fields={
                    "turn_scores": [turn.step.reward if turn.step else 0.0 for turn in episode.turns],
                    "tool_rewards": [],
                    "min_global_steps": min(policy.versions, default=0),
                    "max_global_steps": max(policy.versions, default=0),
                    "versions": contract(written_versions(segment)),
                    "episode": summary.to_fields(),
                    "turns": segment_rewards.to_fields(),
                    "reward_extra_info": {"success": float(episode.success), "turns": float(len(episode.turns))},
                },
            )
            for segment, segment_rewards in zip(segments, rewards_by_segment, strict=True)
        ]


def add_last_state(
    segments: list[Segment], episode: Episode, agent: Agent, tokens: EpisodeTokens, max_tokens: int
) -> list[Segment]:
    """Append the state in which a truncated episode stopped to its last segment, with mask 0.

    The critic's value of that state is then the value at the last token of the row. If the state does not fit, the
    row still ends with the last reply. The value there is that of the state before the reply's last token.
    """
    if not segments:
        return segments
    read = episode.messages[-1]["role"] != "assistant"
    visible = agent.visible_messages(episode.messages, episode.prompt_length) if read else None
    *earlier, last = segments
    extended = last.followed_by(tokens.tokens_after(visible))
    fits = len(extended.prompt_ids) + len(extended.response_ids) <= max_tokens
    return [*earlier, extended if fits else last]


def written_versions(segment: Segment) -> list[int]:
    """Return the version of the weights for each token that the model wrote."""
    versions = segment.response_versions or [0] * len(segment.response_mask)
    return [version for version, mask in zip(versions, segment.response_mask, strict=True) if mask]


def count_replies(response_mask: list[int]) -> int:
    """Return the number of replies in a response: runs of ones, separated by tokens of the template."""
    return sum(now > before for before, now in pairwise([0, *response_mask]))
