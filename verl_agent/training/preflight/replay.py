"""Check of `horizon.replay`: solved episodes of the tasks, which replay and fit into the prompt."""

import asyncio
from collections.abc import Callable, Sequence

from verl_agent.agents.base import Agent
from verl_agent.config.plan import RunPlan
from verl_agent.config.settings import RunEnv
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError, counted
from verl_agent.models.hf import load_config, load_tokenizer
from verl_agent.rollout.episode import Course, GivenReply, play_once
from verl_agent.rollout.sessions import ReplayingSession
from verl_agent.training.solved_episodes import SolvedEpisodes
from verl_agent.types import Episode, TaskItem

SAMPLE = 8
"""Tasks whose solved episodes are replayed: of those that are known, the ones with the most turns."""


def check_replay(plan: RunPlan, run_env: RunEnv, report: Callable[[str], None]) -> None:
    """Check that the solved episodes of a run with `horizon.replay` can be replayed, and tell how many tasks have one.

    Raises:
        ConfigError: the environment is not deterministic or has seats for several policies, no task has a solved
            episode, or one does not replay or exceeds `data.max_prompt_length`.
    """
    horizon, live, name = run_env.horizon, run_env.live, run_env.env.name
    if horizon.replay is None:
        return
    if len(getattr(live, "policy_seats", ())) > 1:
        raise ConfigError(
            f"horizon.replay is not allowed with several seats that policies play (env.options.seats of {name!r}): a "
            "solved episode has the moves of one. Leave it out, or give the other seats to scripts."
        )
    if not live.deterministic:
        raise ConfigError(
            f"horizon.replay needs an environment that answers the same actions alike, and {name!r} is not "
            "deterministic. Set horizon.replay=null."
        )
    solved, items = SolvedEpisodes(live, horizon.replay), run_env.tasks(run_env.env.train_tasks)
    agent, limit = run_env.new_agent(), min(horizon.stages)
    begun = items if horizon.replay.records else sample_tasks(items, SAMPLE)  # each demonstration takes time
    replies = {item.id: solved.given(item, agent, limit) for item in begun if solved.replies(item, agent)}
    if not replies:
        raise ConfigError(
            f"horizon.replay.records={list(horizon.replay.records)} has no solved episode of {name!r}'s "
            f"{len(items)} training tasks ({run_env.env.train_tasks!r}). Name records of these tasks, or leave "
            "horizon.replay.records out to replay the environment's demonstrations."
        )
    longest = sorted((item for item in begun if item.id in replies), key=lambda item: -len(replies[item.id]))[:SAMPLE]
    episodes = asyncio.run(_replay_all(run_env, [(item, replies[item.id]) for item in longest]))
    length = max(_prompt_tokens(plan, agent, episode) for episode in episodes)
    if length > plan.lengths.prompt:
        raise ConfigError(
            f"a prompt of {name!r} with the turns that horizon.replay replays has {length} tokens, more than "
            f"data.max_prompt_length={plan.lengths.prompt}. Raise it; data.max_response_length can be lower by as much."
        )
    known = f"{len(replies)} of {len(items)} tasks have a solved episode; " if horizon.replay.records else ""
    most = f"at most {counted(len(replies[longest[0].id]), 'turn')} and {length} tokens of the prompt"
    report(f"replay in {name}: {known}{most} of {plan.lengths.prompt}, in a sample of {len(longest)}")


async def _replay_all(run_env: RunEnv, given: Sequence[tuple[TaskItem, Sequence[str]]]) -> list[Episode]:
    """Replay solved episodes, and return them with an empty reply of the policy.

    Raises:
        ConfigError: one does not replay.
    """
    pool = local_pool(run_env.live, run_env.env, count=1)

    async def replay(item: TaskItem, replies: Sequence[str]) -> Episode:
        session = ReplayingSession(lambda: PooledEnv(run_env.live, pool), None, run_env.env.retries)
        return await play_once(item, session, run_env.new_agent(), GivenReply(""), Course(1, given=replies))

    try:
        episodes = await asyncio.gather(*(replay(*pair) for pair in given))
    finally:
        await pool.shutdown()
    for episode in episodes:
        if not episode.turns:
            raise ConfigError(
                f"horizon.replay: the solved episode of task {episode.item.id!r} does not replay ({episode.stop}): "
                f"{episode.error} Record episodes with the options and the agent of this recipe, or set "
                "horizon.replay=null."
            )
    return episodes


def _prompt_tokens(plan: RunPlan, agent: Agent, episode: Episode) -> int:
    from verl_agent.rollout.chat_template import choose_builder
    from verl_agent.rollout.tokens import EpisodeTokens

    key = "actor_rollout_ref.model.path"
    tokenizer, config = load_tokenizer(plan.actor.tokenizer_path, key), load_config(plan.actor.path, key)
    builder = choose_builder(tokenizer, config.model_type, plan.lengths.template_options)
    tokens = EpisodeTokens(builder, -1, agent.tools, agent.marks)
    tokens.add_messages(episode.messages[: episode.prompt_length])
    return len(tokens.ids)
