"""An oracle that has to see plays as a policy; one whose moves are known before does so too."""

import asyncio

import pytest

from verl_agent.agents.plain import ReAct
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.rollout.oracle import demonstrate, demonstration_actions, oracle_policy
from verl_agent.types import DemoAction, StepResult, StopReason, TaskItem

ITEM = TaskItem("switches", "1")


class Switches(EnvAdapter):
    """Shows the number of a switch that is to be pressed, another one each turn; solved after two."""

    def tasks(self, split):
        return [ITEM]

    async def reset(self, item):
        self.pressed, self.shown = 0, 3
        return [{"role": "system", "content": "Press."}, {"role": "user", "content": "3"}]

    async def step(self, action):
        right = action == f"press {self.shown}"
        self.pressed, self.shown = self.pressed + right, self.shown * 7 % 10
        return StepResult(f"{self.shown}", right / 2, terminated=self.pressed == 2)


class Seen(Switches):
    """With an oracle that looks."""

    def oracle(self, item):
        return lambda seen: DemoAction(f"press {seen}", f"It says {seen}.")


class Known(Switches):
    """With an oracle that knows."""

    def demonstration(self, item):
        return [DemoAction("press 3", "It says 3."), DemoAction("press 1", "It says 1.")]


@pytest.mark.parametrize("env", [Seen(), Known()], ids=["seen", "known"])
def test_an_oracle_plays_in_the_words_of_the_agent(env):
    policy = oracle_policy(ITEM, env, ReAct(env.action_format))
    episode = asyncio.run(play(ITEM, env, ReAct(env.action_format), policy, EpisodeLimits(5)))
    assert (episode.success, episode.stop) == (True, StopReason.TERMINATED)
    said = [turn.reply.text for turn in episode.turns]
    assert said == ["Thought: It says 3.\nAction: press 3", "Thought: It says 1.\nAction: press 1"]


def test_an_oracle_that_has_to_see_gives_no_moves_before_and_says_how_to_learn_from_it():
    with pytest.raises(ConfigError, match=r"depend on what its oracle sees\. Record .* model\.path=oracle"):
        demonstration_actions(Seen(), ITEM)
    with pytest.raises(ConfigError, match=r"episodes\.records"):
        demonstrate(ITEM, Seen(), ReAct(Seen().action_format))


def test_an_environment_without_any_oracle_says_so():
    with pytest.raises(ConfigError, match="env 'switches' has no oracle"):
        oracle_policy(ITEM, Switches(), ReAct(Switches().action_format))
