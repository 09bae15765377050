"""Episodes of the oracles as scripts for a client over HTTP."""

from collections.abc import Sequence

from env_adapters.babyai.adapter import BabyAI, build
from env_adapters.babyai.strict import StrictGame
from env_adapters.babyai.texts import Style
from tests.support.wire_client import Script
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import make_env
from verl_agent.types import TaskItem


def actions(session: EnvAdapter, item: TaskItem) -> list[str]:
    """The oracle's actions for `item`; none where it has no answer."""
    try:
        return [move.action for move in session.demonstration(item)]
    except NotImplementedError:
        return []


def spread(items: Sequence[TaskItem], count: int) -> list[int]:
    """At most `count` positions, evenly from the whole list."""
    return [number * len(items) // count for number in range(min(count, len(items)))]


def scripts(env: str, split: str, count: int, turns: range = range(1, 1000)) -> list[Script]:
    """About `count` episodes, evenly from a split.

    Args:
        env: registered name of the environment.
        split: of its tasks; positions count in it.
        count: how many positions are tried.
        turns: how many actions an episode may take, the others are left out.
    """
    session = make_env(env)
    items = session.tasks(split)
    found = [Script(at, actions(session, items[at])) for at in spread(items, count)]
    return [script for script in found if len(script.actions) in turns]


def strict_scripts(split: str, count: int) -> list[Script]:
    """Episodes of BabyAI that AgentGym's rules allow too, command for command."""
    items = BabyAI().tasks(split)

    def allowed(script: Script) -> bool:
        game, earned = StrictGame(build(items[script.item]), Style()), 0.0
        for command in script.actions:
            if not game.offer.moves.get(command):
                return False
            earned = game.play(command).reward
        return earned > 0

    return list(filter(allowed, scripts("babyai", split, count)))
