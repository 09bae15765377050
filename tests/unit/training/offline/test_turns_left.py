"""Test that every agent can tell the model the turns left, in episodes, demonstrations and prompt checks."""

import asyncio

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, talk_class
from tests.support.switches import Observing, Scripted
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.action_format import LineFormat
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.oracle import demonstrate, oracle_policy
from verl_agent.training.offline.selection import EpisodeSource
from verl_agent.training.offline.sft import check_turn_limit

AGENTS = ("act", "react", "think", "plan", "tools", "raw")
REPLIES = ["Action: go", "no action at all", "Action: go"]


def agent(name="react", turns_left=True, **options):
    return make_agent(AgentSettings(name, {"turns_left": turns_left, **options}), LineFormat())


def texts(name: str, turns_left: bool) -> list[str]:
    policy = ScriptedPolicy(REPLIES)
    asyncio.run(play_episode(ITEM, talk_class()(), agent(name, turns_left), policy, EpisodeLimits(3)))
    return [messages[-1]["content"] for messages in policy.heard]


@pytest.mark.parametrize("name", AGENTS)
def test_prompt_and_every_observation_end_with_the_turns_left(name):
    told, plain = texts(name, True), texts(name, False)
    assert told == [f"{text}\n\nTurns left: {left}" for text, left in zip(plain, (3, 2, 1), strict=True)]


def test_the_answer_to_a_reply_without_an_action_also_tells_the_turns_left():
    assert "No action found" in texts("react", True)[2]


@pytest.mark.parametrize("turns_left", ["yes", 1, None])
def test_other_values_than_true_and_false_raise_config_error(turns_left):
    with pytest.raises(ConfigError, match=r"agent\.options\.turns_left=.* Allowed: true, false"):
        agent(turns_left=turns_left)


def test_an_oracle_that_reads_observations_does_not_read_the_turns_left():
    env, told = Observing(), agent()
    policy = oracle_policy(ITEM, env, told)
    replies = [turn.reply.text for turn in asyncio.run(play_episode(ITEM, env, told, policy, EpisodeLimits(5))).turns]
    assert replies == ["Thought: It says 3.\nAction: press 3", "Thought: It says 1.\nAction: press 1"]


def test_demonstrations_count_down_from_the_turn_limit_and_not_from_their_length():
    """A countdown to the end of the demonstration would tell the model how many actions are missing."""
    messages = demonstrate(ITEM, Scripted(), agent(), 9).messages
    assert [text["content"].rpartition("left: ")[2] for text in messages if text["role"] == "user"] == ["9", "8", "7"]


def test_demonstrations_without_a_turn_limit_raise_config_error():
    with pytest.raises(ConfigError, match=r"turns_left=true .* Set episodes\.max_turns to horizon\.max_turns"):
        check_turn_limit(EpisodeSource(), agent(), demonstrates=True)
    check_turn_limit(EpisodeSource(), agent(), demonstrates=False)
    check_turn_limit(EpisodeSource(max_turns=9), agent(), demonstrates=True)


def test_a_turn_limit_of_demonstrations_that_nothing_reads_raises_config_error():
    for turns_left, demonstrates in ((False, True), (True, False)):
        with pytest.raises(ConfigError, match=r"episodes\.max_turns=9 is not read"):
            check_turn_limit(EpisodeSource(max_turns=9), agent(turns_left=turns_left), demonstrates)
