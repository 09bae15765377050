"""Test that a failed task starts anew within the episode, after a reflection."""

import asyncio

import pytest

from tests.support.attempts import play_until_valid
from tests.support.evaluated_games import evaluated
from tests.support.fakes import ScriptedPolicy, talk_class
from verl_agent.agents.registry import check_retries, make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError, EnvError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.retrying import AGAIN
from verl_agent.types import Episode, StepResult, StopReason, TaskItem

QUESTION = TaskItem("exam", "1")


class Exam(talk_class()):  # type: ignore[misc]
    """Environment that ends at the first action: `right` has reward 1, others 0.25."""

    failing = 0
    """Number of the step, counted over all instances, that raises an error; 0 for none."""
    steps = 0

    async def step(self, action: str) -> StepResult:
        Exam.steps += 1
        if Exam.steps == Exam.failing:
            raise EnvError("lost")
        return StepResult(f"graded {action}", 1.0 if action == "right" else 0.25, terminated=True)


def agent(**options):
    return make_agent(AgentSettings("raw", options), Exam.action_format)


def played(*replies: str, **options) -> tuple[Episode, ScriptedPolicy]:
    policy = ScriptedPolicy(replies)
    return asyncio.run(play_episode(QUESTION, Exam(), agent(**options), policy, EpisodeLimits(9))), policy


def test_without_the_option_the_first_failure_ends_the_episode():
    episode, _ = played("wrong")
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TERMINATED, 0.25, 1)


def test_a_failed_task_starts_anew_and_the_model_is_asked_to_reflect():
    episode, policy = played("wrong", "right", retry_failed=2)
    assert (episode.success, episode.reward, len(episode.turns)) == (True, 1.0, 2)
    assert policy.heard[1][-1]["content"] == f"graded wrong\n\n{AGAIN}\n\nBegin."
    assert episode.info_total("failed_attempts") == 1


def test_a_task_that_is_solved_in_ten_steps_of_a_tenth_is_not_started_again():
    class Steps(talk_class()):  # type: ignore[misc]
        async def step(self, action: str) -> StepResult:
            self.heard += 1
            return StepResult("Go on.", 0.1, terminated=self.heard == 10)

    policy, limits = ScriptedPolicy(["go"] * 20), EpisodeLimits(20)
    episode = asyncio.run(play_episode(QUESTION, Steps(), agent(retry_failed=1), policy, limits))
    assert (episode.success, episode.reward, len(episode.turns)) == (True, 1.0, 10)


def test_the_return_is_that_of_the_last_attempt():
    episode, _ = played("wrong", "wrong", "wrong", retry_failed=2)
    assert [turn.step.reward for turn in episode.turns if turn.step] == [0.0, 0.0, 0.25]
    assert (episode.stop, episode.reward, episode.success) == (StopReason.TERMINATED, 0.25, False)


def test_a_retried_task_continues_after_an_environment_error():
    Exam.steps, Exam.failing = 0, 2
    policy = ScriptedPolicy(["wrong", "right"])
    try:
        limits = EpisodeLimits(9, retries=1)
        attempts = asyncio.run(play_until_valid(QUESTION, Exam, lambda: agent(retry_failed=1), lambda: policy, limits))
    finally:
        Exam.failing = 0
    assert [one.stop for one in attempts] == [StopReason.TERMINATED] and attempts[0].success
    assert len(attempts[0].replays) == 1


@pytest.mark.parametrize("value", [-1, True, "2"])
def test_other_values_are_refused(value):
    with pytest.raises(ConfigError, match=r"agent\.options\.retry_failed=.* Allowed: a whole number >= 0"):
        agent(retry_failed=value)


@pytest.mark.parametrize(
    ("name", "options", "ends"),
    [
        *(("textcraft", {}, False), ("guess_number", {}, False), ("babyai", {}, True)),
        *(("deepsearch", {}, True), ("deepsearch", {"guess_again": True}, False)),
    ],
)
def test_retries_are_refused_where_only_success_ends_a_task(name, options, ends):
    env, settings = make_env(name, options), AgentSettings("act", {"retry_failed": 2})
    assert env.ends_failed_tasks is ends
    check_retries(AgentSettings("act", {"retry_failed": 0}), env)
    if ends:
        check_retries(settings, env)
    else:
        with pytest.raises(ConfigError, match=r"retry_failed=2 has no effect: in \w+ only success ends a task"):
            check_retries(settings, env)


def test_an_evaluation_refuses_retries_that_have_no_effect(tmp_path):
    with pytest.raises(ConfigError, match=r"agent\.options\.retry_failed=1 has no effect: in GuessNumber"):
        evaluated(tmp_path, "cheap", agent={"name": "act", "options": {"retry_failed": 1}})
