"""Tests of the episode loop: every way to stop, errors of environment and policy, retries."""

import asyncio

import pytest

from tests.support.attempts import play_until_valid
from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain, talk_class
from verl_agent.errors import ConfigError, OverlongPromptError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Episode, Reply, StepResult, StopReason

TRUNCATED = Reply("I was about to", truncated_by=StopReason.TURN_TOKENS, tokens=4)
LAST_REPLY = Reply("no room for", truncated_by=StopReason.EPISODE_TOKENS, tokens=3)
NO_ROOM = Reply("", truncated_by=StopReason.EPISODE_TOKENS)


def run(script, max_turns: int = 3, **talk) -> tuple[Episode, Talk]:
    session = talk_class()(**talk)
    limits = EpisodeLimits(max_turns, timeout_s=0.05)
    return asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy(script), limits)), session


@pytest.mark.parametrize(
    ("script", "talk", "stop", "turns", "reward"),
    [
        (["a", "b"], {"turns": 2}, StopReason.TERMINATED, 2, 1.0),
        (["a", "b", "c"], {"turns": 3}, StopReason.TERMINATED, 3, 1.0),  # on the last turn allowed
        (["a", "b", "c"], {}, StopReason.TURN_LIMIT, 3, 0.0),
        (["a", TRUNCATED], {}, StopReason.TURN_TOKENS, 2, 0.0),
        (["a", LAST_REPLY], {}, StopReason.EPISODE_TOKENS, 2, 0.0),
        (["a", NO_ROOM], {}, StopReason.EPISODE_TOKENS, 1, 0.0),
        ([OverlongPromptError("the prompt has 9 tokens")], {}, StopReason.OVERLONG_PROMPT, 0, 0.0),
        (["a"], {"fault": "raise"}, StopReason.ENV_ERROR, 1, 0.0),
        (["a"], {"fault": "hang"}, StopReason.ENV_ERROR, 1, 0.0),
        ([], {"fault": "raise", "where": "reset"}, StopReason.ENV_ERROR, 0, 0.0),
        ([], {"fault": "hang", "where": "reset"}, StopReason.ENV_ERROR, 0, 0.0),
    ],
)
def test_every_way_to_stop_sets_its_reason_and_closes_the_session_once(script, talk, stop, turns, reward):
    episode, session = run(script, **talk)
    assert (episode.stop, len(episode.turns), episode.reward, session.closed) == (stop, turns, reward, 1)
    assert episode.valid is (stop not in (StopReason.ENV_ERROR, StopReason.OVERLONG_PROMPT))


def test_messages_end_with_the_last_observation():
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


def test_truncated_reply_is_kept_and_not_played():
    episode, session = run(["a", TRUNCATED])
    assert (episode.messages[-1]["content"], episode.turns[-1].step, session.heard) == ("I was about to", None, 1)


def test_empty_reply_without_budget_is_not_a_turn():
    episode, session = run(["a", NO_ROOM])
    assert (episode.messages[-1]["content"], len(episode.turns), session.heard) == ("heard 1", 1, 1)


def test_policy_reads_the_whole_conversation():
    policy = ScriptedPolicy(["a", "b"])
    asyncio.run(play_episode(ITEM, talk_class()(turns=2), plain(), policy, EpisodeLimits(5)))
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
def test_environment_error_names_the_call_and_the_cause(talk, error):
    cause, _, line = run(["a"], **talk)[0].error.partition(" (")
    assert cause == error
    assert ("fakes.py:" in line) == (talk["fault"] == "raise")


@pytest.mark.parametrize("fault", ["raise", "hang"])
def test_failing_close_leaves_the_episode_valid(fault):
    episode, session = run(["a"], turns=1, fault=fault, where="close")
    assert (episode.stop, episode.reward, episode.error, session.closed) == (StopReason.TERMINATED, 1.0, "", 1)


def test_policy_error_is_raised_and_the_session_closed():
    session = talk_class()()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        asyncio.run(
            play_episode(ITEM, session, plain(), ScriptedPolicy(["a", ZeroDivisionError("a bug")]), EpisodeLimits(5))
        )
    assert session.closed == 1


class Misconfigured(talk_class()):
    """Environment that rejects a setting at its first reset."""

    async def reset(self, item):
        raise ConfigError("env.options.url is not set.")


def test_config_error_in_reset_is_raised_and_the_session_closed():
    session = Misconfigured()
    with pytest.raises(ConfigError, match=r"env\.options\.url"):
        asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy([]), EpisodeLimits(5)))
    assert session.closed == 1


def test_cancelled_episode_closes_its_session_and_is_invalid():
    session = talk_class()(fault="hang")

    async def cancel_after_the_first_step() -> None:
        task = asyncio.create_task(play_episode(ITEM, session, plain(), ScriptedPolicy(["a"]), EpisodeLimits(5)))
        while not session.heard:
            await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_after_the_first_step())
    assert session.closed == 1
    unfinished = Episode(ITEM, 5)
    assert (unfinished.stop, unfinished.valid) == (StopReason.CANCELLED, False)


def test_episode_with_an_environment_error_is_never_a_success():
    class Generous(talk_class()):
        success_reward = 0.0

    episode = asyncio.run(play_episode(ITEM, Generous(fault="raise"), plain(), ScriptedPolicy(["a"]), EpisodeLimits(5)))
    assert (episode.success_reward, episode.success) == (0.0, False)


def retry(faults: list[str], retries: int) -> tuple[list[Episode], list[Talk], list[ScriptedPolicy]]:
    """Play an environment that is not deterministic with one session for each fault, in order."""
    talk, policies, remaining = talk_class(), [], iter(faults)
    talk.deterministic = False

    def new_policy() -> ScriptedPolicy:
        policies.append(ScriptedPolicy(["a"]))
        return policies[-1]

    limits = EpisodeLimits(1, timeout_s=0.05, retries=retries)
    attempts = asyncio.run(play_until_valid(ITEM, lambda: talk(fault=next(remaining)), plain, new_policy, limits))
    return attempts, talk.made, policies


@pytest.mark.parametrize(
    ("faults", "retries", "stops"),
    [
        ([""], 2, ["turn_limit"]),
        (["raise", "hang", ""], 2, ["env_error", "env_error", "turn_limit"]),
        (["raise", "raise"], 1, ["env_error", "env_error"]),
        (["raise"], 0, ["env_error"]),
    ],
)
def test_environment_error_is_retried_with_a_fresh_session_and_policy(faults, retries, stops):
    attempts, sessions, policies = retry(faults, retries)
    assert [str(episode.stop) for episode in attempts] == stops
    assert [(session.resets, session.closed) for session in sessions] == [(1, 1)] * len(stops)
    assert [len(policy.heard) for policy in policies] == [1] * len(stops)
    assert len({id(session) for session in sessions}) == len({id(policy) for policy in policies}) == len(stops)


def test_overlong_prompt_is_recorded_and_not_tried_again():
    talk, limits = talk_class(), EpisodeLimits(3, timeout_s=1.0, retries=2)
    error = OverlongPromptError("the prompt has 9 tokens")
    attempts = asyncio.run(play_until_valid(ITEM, talk, plain, lambda: ScriptedPolicy([error]), limits))
    assert [(episode.stop, episode.error) for episode in attempts] == [
        (StopReason.OVERLONG_PROMPT, "the prompt has 9 tokens")
    ]
    assert [message["content"] for message in attempts[0].messages] == ["Talk.", "Begin."]
    assert [session.closed for session in talk.made] == [1]


def test_episode_with_an_overlong_prompt_is_never_a_success():
    class Generous(talk_class()):
        success_reward = 0.0

    policy = ScriptedPolicy([OverlongPromptError("long")])
    episode = asyncio.run(play_episode(ITEM, Generous(), plain(), policy, EpisodeLimits(5)))
    assert (episode.success_reward, episode.success) == (0.0, False)
