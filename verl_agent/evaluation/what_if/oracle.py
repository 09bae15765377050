"""Action of an environment's oracle at a turn of an episode that the oracle did not play."""

from collections.abc import Callable, Sequence

from verl_agent.agents.base import Agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError
from verl_agent.evaluation.what_if.recorded import RecordedEpisode
from verl_agent.rollout.oracle import demonstration_actions
from verl_agent.rollout.sessions import GuardedSession
from verl_agent.types import DemoAction


async def oracle_action(
    recorded: RecordedEpisode,
    turn: int,
    env: EnvAdapter,
    agent: Agent,
    new_session: Callable[[], Session],
    max_turns: int,
) -> str:
    """Return the action that the oracle takes at a turn.

    An oracle that follows observations reads those of the episode. A demonstration is a fixed list of actions from
    the start of the task; the shortest end of it that solves the task from this turn is searched by playing, and its
    first action is returned.

    Args:
        agent: agent with the settings of the recorded one.

    Raises:
        ConfigError: the environment has no oracle, or no end of its demonstration solves the task in the turns left.
        EnvError: the environment fails.
    """
    episode = recorded.episode
    if follow := env.oracle(episode.item):
        before = range(episode.prompt_length - 1, episode.prompt_length + 2 * turn - 2, 2)
        texts = [agent.without_turns_left(episode.messages[index]["content"]) for index in before]
        return [follow(text) for text in texts][-1].action
    actions = demonstration_actions(env, episode.item)
    left = max_turns - turn + 1
    for length in range(1, min(len(actions), left) + 1):
        if await _solves(recorded, turn, actions[len(actions) - length :], new_session):
            return actions[len(actions) - length].action
    raise ConfigError(
        f"no end of the oracle's {len(actions)} actions solves {episode.item.id!r} from turn {turn} in the {left} "
        "turns left: the earlier turns left the oracle's path. Name an action with --action, or choose an earlier turn."
    )


async def _solves(
    recorded: RecordedEpisode, turn: int, rest: Sequence[DemoAction], new_session: Callable[[], Session]
) -> bool:
    """Return True if the actions solve the task after the recorded turns before `turn`."""
    session = GuardedSession(new_session(), None)
    earlier = [played.action for played in recorded.episode.turns[: turn - 1] if played.action is not None]
    reward = 0.0
    try:
        await session.reset(recorded.episode.item)
        for action in [*earlier, *(demo.action for demo in rest)]:
            result = await session.step(action)
            reward += result.reward
            if result.terminated:
                break
    finally:
        await session.close()
    return reward >= session.success_reward
