"""Test that prompts are cut to their budget: only in the first observation, and as little as possible."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.attempts import play_until_valid
from tests.support.fakes import ITEM, ScriptedPolicy, plain
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import OverlongPromptError
from verl_agent.messages import ReplyLimits
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.prompts import FittedSession, cut_observation, fit_prompt
from verl_agent.types import Message, Reply, StepResult, StopReason, TaskItem

RULES: Message = {"role": "system", "content": "Read the page. " * 4}
TEXT = "Task: find the price. " + "line of the page, " * 500 + "The end."


def prompt(text: str = TEXT) -> list[Message]:
    return [RULES, {"role": "user", "content": text}]


def characters(messages: Sequence[Message]) -> int:
    """Count a token for every character."""
    return sum(len(message["content"]) for message in messages)


def test_a_prompt_that_fits_is_unchanged():
    assert fit_prompt(prompt(), characters, characters(prompt())) == prompt()


@pytest.mark.parametrize("limit", [300, 1000, 5000, len(TEXT) + 59])
def test_a_cut_prompt_fills_its_budget_and_says_what_is_missing(limit):
    rules, observation = fit_prompt(prompt(), characters, limit)
    text = observation["content"]
    assert limit - 5 <= characters([rules, observation]) <= limit
    assert rules == RULES
    head, _, tail = text.partition("\n[... ")
    count, _, tail = tail.partition(" characters are left out here: the prompt would be too long ...]\n")
    assert TEXT.startswith(head) and TEXT.endswith(tail) and abs(len(head) - len(tail)) <= 1
    assert int(count.replace(",", "")) == len(TEXT) - len(head) - len(tail)


def test_a_cut_prompt_keeps_the_limits_of_its_reply():
    """A program's request may set them."""
    limits: ReplyLimits = {"max_tokens": 7, "stop": ["\n"]}
    asked: list[Message] = [RULES, {"role": "user", "content": TEXT, "limits": limits}]
    assert fit_prompt(asked, characters, 300)[-1]["limits"] == limits


def test_rules_are_never_cut():
    rules, observation = fit_prompt(prompt(), characters, 10)
    assert rules == RULES
    assert observation["content"] == cut_observation(prompt(), 0)[-1]["content"]
    assert "line of the page" not in observation["content"]


class Page(EnvAdapter):
    """Environment with a long first observation; its first step fails where `failing` is set."""

    failing = False

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [ITEM]

    async def reset(self, item: TaskItem) -> list[Message]:
        return prompt()

    async def step(self, action: str) -> StepResult:
        if type(self).failing:
            type(self).failing = False
            raise ConnectionError("the site is down")
        return StepResult("Right.", 1.0, terminated=True)


class ShortPrompts(ScriptedPolicy):
    """Policy that refuses prompts of more than 400 characters."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        if not self.heard and characters(messages) > 400:
            raise OverlongPromptError(f"the prompt has {characters(messages)} tokens")
        return await super().reply(messages)


@pytest.mark.parametrize(
    ("limit", "stop"), [(400, StopReason.TERMINATED), (10_000, StopReason.OVERLONG_PROMPT), (10, StopReason.TERMINATED)]
)
def test_the_agent_and_the_record_see_the_cut_prompt(limit, stop):
    session = FittedSession(Page(), characters, limit)
    episode = asyncio.run(play_episode(ITEM, session, plain(), ShortPrompts(["12"]), EpisodeLimits(2)))
    assert episode.stop is stop
    assert ("left out here" in episode.messages[1]["content"]) is (limit < 1000)


def test_a_cut_prompt_is_the_same_in_a_replay():
    class Flaky(Page):
        failing = True

    def new_session() -> FittedSession:
        return FittedSession(Flaky(), characters, 400)

    limits = EpisodeLimits(2, retries=1)
    (episode,) = asyncio.run(play_until_valid(ITEM, new_session, plain, lambda: ShortPrompts(["12"]), limits))
    assert (episode.stop, len(episode.replays)) == (StopReason.TERMINATED, 1)
