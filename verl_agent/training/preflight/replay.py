"""Check of `horizon.replay`: solved episodes of the tasks, which replay and fit into the prompt."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from verl_agent.agents.base import Agent
from verl_agent.config.plan import RunPlan
from verl_agent.config.settings import RunEnv
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError, counted
from verl_agent.models.hf import load_config
from verl_agent.rollout.episode import Course, GivenReplies, play_once
from verl_agent.rollout.sessions import RecoveringSession
from verl_agent.training.preflight.prompts import policy_tokenizer
from verl_agent.training.solved_episodes import SolvedEpisodes
from verl_agent.types import Episode, TaskItem

SAMPLE = 8
"""Tasks whose solved episodes are replayed: of those that are known, the ones with the most turns."""


class Solved(NamedTuple):
    """Task, the replies that are replayed, and all replies of the solved episode."""

    item: TaskItem
    given: Sequence[str]
    replies: Sequence[str]


def check_replay(plan: RunPlan, run_env: RunEnv, report: Callable[[str], None]) -> None:
    """Check that the solved episodes of a run with `horizon.replay` can be replayed, and tell how many tasks have one.

    Raises:
        ConfigError: the environment is not deterministic or has seats for several policies, no task has a solved
            episode, nothing would be replayed, or an episode does not replay or exceeds `data.max_prompt_length`.
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
    if plan.lengths.overlong == "truncate_observation":
        raise ConfigError(
            "horizon.replay is not allowed with data.overlong_prompt=truncate_observation, which leaves no room behind "
            "the first observation. Set one of them to null or drop."
        )
    solved, items = SolvedEpisodes(run_env, horizon.replay), run_env.tasks(run_env.env.train_tasks)
    agent, limit = run_env.new_agent(), min(horizon.stages)
    chosen = items if horizon.replay.records else sample_tasks(items, SAMPLE)  # each demonstration takes time
    known = [Solved(item, solved.given(item, agent, limit), solved.replies(item, agent)) for item in chosen]
    known = sorted((one for one in known if one.replies), key=lambda one: -len(one.given))
    if not known:
        source = f"records={list(horizon.replay.records)}" if horizon.replay.records else "the demonstrations"
        raise ConfigError(
            f"horizon.replay: {source} have no solved episode of {name!r}'s {len(items)} training tasks "
            f"({run_env.env.train_tasks!r}). Name records of these tasks in horizon.replay.records, or set "
            "horizon.replay=null."
        )
    if not known[0].given:
        raise ConfigError(
            f"horizon.replay replays nothing: the solved episodes have at most {len(known[0].replies)} turns, and the "
            f"policy may take {limit} (horizon.max_turns), of which {horizon.replay.spare} are spare. Lower the limit."
        )
    lengths = asyncio.run(_replay_all(plan, run_env, known[:SAMPLE]))
    overlong, budget = sum(length > plan.lengths.prompt for length in lengths), plan.lengths.prompt
    if overlong > run_env.env.max_env_error_rate * len(lengths):
        raise ConfigError(
            f"{overlong} of {len(lengths)} prompts of {name!r} have more than data.max_prompt_length={budget} tokens "
            f"with the turns that horizon.replay replays, up to {max(lengths)}. Raise it."
        )
    share = f"{len(known)} of {len(items)} tasks have a solved episode; " if horizon.replay.records else ""
    most = f"at most {counted(len(known[0].given), 'turn')} and {max(lengths)} of {budget} tokens of the prompt"
    report(f"replay in {name}: {share}{most}, in a sample of {len(lengths)}")


async def _replay_all(plan: RunPlan, run_env: RunEnv, known: Sequence[Solved]) -> list[int]:
    """Replay solved episodes, play their last turns, too, and return the tokens of the prompts.

    Raises:
        ConfigError: one does not solve its task again, or the agent shows its turns otherwise in a prompt.
    """
    pool = local_pool(run_env.live, run_env.env, count=1)

    async def replay(one: Solved) -> Episode:
        session = RecoveringSession(lambda: PooledEnv(run_env.live, pool), None, run_env.env.retries)
        left = one.replies[len(one.given) :]
        policy, course = GivenReplies(left), Course(len(left), given=one.given)
        return await play_once(one.item, session, run_env.new_agent(), policy, course)

    try:
        episodes = await asyncio.gather(*map(replay, known))
    finally:
        await pool.shutdown()
    for one, episode in zip(known, episodes, strict=True):
        if not episode.success:
            raise ConfigError(
                f"horizon.replay: the solved episode of task {one.item.id!r} does not solve it again "
                f"({episode.stop}). {episode.error} Record episodes with the options and the agent of this recipe, or "
                "set horizon.replay=null."
            )
        agent, begun = run_env.new_agent(), episode.prompt_length - 2 * episode.given_turns
        prompt = episode.messages[: episode.prompt_length]
        if agent.visible_messages(prompt, begun) != agent.visible_messages(prompt, episode.prompt_length):
            raise ConfigError(
                f"horizon.replay is not allowed with this agent (agent.name={run_env.agent.name}, agent.context): it "
                "shows earlier turns in another form than a prompt does. Set agent.context.keep=all, or "
                "horizon.replay=null."
            )
    return [_prompt_tokens(plan, run_env.new_agent(), episode) for episode in episodes]


def _prompt_tokens(plan: RunPlan, agent: Agent, episode: Episode) -> int:
    from verl_agent.rollout.chat_template import choose_builder
    from verl_agent.rollout.tokens import EpisodeTokens

    config = load_config(plan.actor.path, "actor_rollout_ref.model.path")
    builder = choose_builder(policy_tokenizer(plan), config.model_type, plan.lengths.template_options)
    tokens = EpisodeTokens(builder, -1, agent.tools, agent.marks)
    tokens.add_messages(episode.messages[: episode.prompt_length])
    return len(tokens.ids)
