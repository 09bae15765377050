"""An episode always ends, always closes its environment once, and says why it stopped."""

import asyncio

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain, talk_class
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play, play_until_valid
from verl_agent.types import Episode, Reply, StepResult, StopReason

CUT_REPLY = Reply("I was about to", truncated_by=StopReason.TURN_TOKENS, tokens=4)
LAST_WORDS = Reply("no room for", truncated_by=StopReason.EPISODE_TOKENS, tokens=3)
NO_ROOM = Reply("", truncated_by=StopReason.EPISODE_TOKENS)


def run(script, max_turns: int = 3, **talk) -> tuple[Episode, Talk]:
    env = talk_class()(**talk)
    limits = EpisodeLimits(max_turns, timeout_s=0.05)
    return asyncio.run(play(ITEM, env, plain(), ScriptedPolicy(script), limits)), env


@pytest.mark.parametrize(
    ("script", "talk", "stop", "turns", "reward"),
    [
        (["a", "b"], {"turns": 2}, StopReason.TERMINATED, 2, 1.0),
        (["a", "b", "c"], {"turns": 3}, StopReason.TERMINATED, 3, 1.0),  # at the horizon, but by itself
        (["a", "b", "c"], {}, StopReason.TURN_LIMIT, 3, 0.0),
        (["a", CUT_REPLY], {}, StopReason.TURN_TOKENS, 2, 0.0),
        (["a", LAST_WORDS], {}, StopReason.EPISODE_TOKENS, 2, 0.0),
        (["a", NO_ROOM], {}, StopReason.EPISODE_TOKENS, 1, 0.0),
        (["a"], {"fault": "raise"}, StopReason.ENV_ERROR, 1, 0.0),
        (["a"], {"fault": "hang"}, StopReason.ENV_ERROR, 1, 0.0),
        ([], {"fault": "raise", "where": "reset"}, StopReason.ENV_ERROR, 0, 0.0),
        ([], {"fault": "hang", "where": "reset"}, StopReason.ENV_ERROR, 0, 0.0),
    ],
)
def test_every_way_to_stop(script, talk, stop, turns, reward):
    episode, env = run(script, **talk)
    assert (episode.stop, len(episode.turns), episode.reward, env.closed) == (stop, turns, reward, 1)
    assert episode.valid is (stop is not StopReason.ENV_ERROR)


def test_the_conversation_is_recorded_to_its_last_observation():
    episode, _ = run(["a", "b"], turns=2)
    assert [(message["role"], message["content"]) for message in episode.messages] == [
        ("system", "Talk."),
        ("user", "Begin."),
        ("assistant", "a"),
        ("user", "heard 1"),
        ("assistant", "b"),
        ("user", "heard 2"),
    ]
    assert episode.turns[1].step == StepResult("heard 2", 1.0, True, {"words": 1.0})


def test_a_cut_reply_is_kept_but_never_played():
    episode, env = run(["a", CUT_REPLY])
    assert (episode.messages[-1]["content"], episode.turns[-1].step, env.heard) == ("I was about to", None, 1)


def test_a_reply_for_which_there_was_no_room_leaves_no_trace():
    episode, env = run(["a", NO_ROOM])
    assert (episode.messages[-1]["content"], len(episode.turns), env.heard) == ("heard 1", 1, 1)


def test_the_policy_reads_all_that_was_said_before():
    policy = ScriptedPolicy(["a", "b"])
    asyncio.run(play(ITEM, talk_class()(turns=2), plain(), policy, EpisodeLimits(5)))
    assert [len(messages) for messages in policy.heard] == [2, 4]


@pytest.mark.parametrize(
    ("talk", "error"),
    [
        ({"fault": "raise"}, "step failed: KeyError: 'observation'"),
        ({"fault": "hang"}, "step took more than 0.05 s"),
        ({"fault": "raise", "where": "reset"}, "reset failed: KeyError: 'observation'"),
        ({"fault": "hang", "where": "reset"}, "reset took more than 0.05 s"),
    ],
)
def test_an_environment_error_says_which_call_and_why(talk, error):
    assert run(["a"], **talk)[0].error == error


@pytest.mark.parametrize("fault", ["raise", "hang"])
def test_an_environment_that_cannot_close_does_not_spoil_its_episode(fault):
    episode, env = run(["a"], turns=1, fault=fault, where="close")
    assert (episode.stop, episode.reward, episode.error, env.closed) == (StopReason.TERMINATED, 1.0, "", 1)


def test_a_failing_policy_raises_and_the_environment_is_closed():
    env = talk_class()()
    with pytest.raises(ZeroDivisionError, match="our bug"):
        asyncio.run(play(ITEM, env, plain(), ScriptedPolicy(["a", ZeroDivisionError("our bug")]), EpisodeLimits(5)))
    assert env.closed == 1


class Misconfigured(talk_class()):
    """Finds out at its first task that a setting is wrong."""

    async def reset(self, item):
        raise ConfigError("env.options.url is not set.")


def test_a_wrong_setting_stops_the_run_rather_than_every_episode_of_it():
    env = Misconfigured()
    with pytest.raises(ConfigError, match=r"env\.options\.url"):
        asyncio.run(play(ITEM, env, plain(), ScriptedPolicy([]), EpisodeLimits(5)))
    assert env.closed == 1


def test_a_cancelled_episode_closes_its_environment_and_counts_as_nothing():
    env = talk_class()(fault="hang")

    async def stop_in_the_middle() -> None:
        task = asyncio.create_task(play(ITEM, env, plain(), ScriptedPolicy(["a"]), EpisodeLimits(5)))
        while not env.heard:
            await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stop_in_the_middle())
    assert env.closed == 1
    unfinished = Episode(ITEM, 5)
    assert (unfinished.stop, unfinished.valid) == (StopReason.CANCELLED, False)


def test_a_failed_episode_is_never_a_success():
    class Generous(talk_class()):
        success_reward = 0.0

    episode = asyncio.run(play(ITEM, Generous(fault="raise"), plain(), ScriptedPolicy(["a"]), EpisodeLimits(5)))
    assert (episode.success_reward, episode.success) == (0.0, False)


def replay(faults: list[str], retries: int) -> tuple[list[Episode], list[Talk], list[ScriptedPolicy]]:
    """Play with a session that has the first fault, then one that has the second, and so on."""
    talk, policies, left = talk_class(), [], iter(faults)

    def new_policy() -> ScriptedPolicy:
        policies.append(ScriptedPolicy(["a"]))
        return policies[-1]

    limits = EpisodeLimits(1, timeout_s=0.05, retries=retries)
    tries = asyncio.run(play_until_valid(ITEM, lambda: talk(fault=next(left)), plain, new_policy, limits))
    return tries, talk.made, policies


@pytest.mark.parametrize(
    ("faults", "retries", "stops"),
    [
        ([""], 2, ["turn_limit"]),
        (["raise", "hang", ""], 2, ["env_error", "env_error", "turn_limit"]),
        (["raise", "raise"], 1, ["env_error", "env_error"]),
        (["raise"], 0, ["env_error"]),
    ],
)
def test_a_failed_environment_is_tried_again_from_the_first_turn(faults, retries, stops):
    tries, sessions, policies = replay(faults, retries)
    assert [str(episode.stop) for episode in tries] == stops
    assert [(session.resets, session.closed) for session in sessions] == [(1, 1)] * len(stops)
    assert [len(policy.heard) for policy in policies] == [1] * len(stops)
    assert len({id(session) for session in sessions}) == len({id(policy) for policy in policies}) == len(stops)
