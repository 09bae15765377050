"""Tests of oracles as policies, with actions known in advance and actions that depend on observations."""

import asyncio

import pytest

from tests.support.switches import ITEM, Observing, Scripted, Switches
from verl_agent.agents.plain import ReAct
from verl_agent.errors import ConfigError
from verl_agent.oversight.base import Decision, Overseer
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.oracle import demonstrate, demonstration_actions, oracle_policy
from verl_agent.types import StopReason


@pytest.mark.parametrize("env", [Observing(), Scripted()], ids=["observing", "scripted"])
def test_oracle_replies_in_the_format_of_the_agent(env):
    policy = oracle_policy(ITEM, env, ReAct(env.action_format))
    episode = asyncio.run(play_episode(ITEM, env, ReAct(env.action_format), policy, EpisodeLimits(5)))
    assert (episode.success, episode.stop) == (True, StopReason.TERMINATED)
    replies = [turn.reply.text for turn in episode.turns]
    assert replies == ["Thought: It says 3.\nAction: press 3", "Thought: It says 1.\nAction: press 1"]


@pytest.mark.parametrize(("env", "solved"), [(Observing(), True), (Scripted(), False)], ids=["observing", "scripted"])
def test_rejected_action_of_an_oracle_ends_neither_the_episode_nor_the_evaluation(env, solved):
    class Once(Overseer):
        rejected = False

        async def decide(self, proposal):
            if proposal.reply is None or self.rejected:
                return None
            self.rejected = True
            return Decision("reject", reason="not now", by="rule")

    agent = ReAct(env.action_format)
    episode = asyncio.run(play_episode(ITEM, env, agent, oracle_policy(ITEM, env, agent), EpisodeLimits(4), Once()))
    assert episode.success == solved
    assert episode.stop is (StopReason.TERMINATED if solved else StopReason.TURN_LIMIT)
    assert [turn.action for turn in episode.turns[2:]] == (["press 1"] if solved else [None, None])


def test_demonstrations_of_an_observing_oracle_raise_config_error_naming_the_way_to_record_it():
    with pytest.raises(
        ConfigError, match=r"'switches''s oracle depend on its observations\. Record .* model\.path=oracle"
    ):
        demonstration_actions(Observing(), ITEM)
    with pytest.raises(ConfigError, match=r"episodes\.records"):
        demonstrate(ITEM, Observing(), ReAct(Observing().action_format))


def test_missing_oracle_raises_config_error():
    with pytest.raises(ConfigError, match="env 'switches' has no oracle"):
        oracle_policy(ITEM, Switches(), ReAct(Switches().action_format))
