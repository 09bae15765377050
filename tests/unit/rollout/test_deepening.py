"""Groups whose turn limit grows while none of their episodes has solved the task."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.attempts import play_until_valid
from verl_agent.agents.registry import AgentSettings, make_agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import EnvError
from verl_agent.oversight.control import RunControl
from verl_agent.rollout.deepening import GroupLimit, GroupLimits
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.function_policy import FunctionPolicy
from verl_agent.types import Episode, Message, StepResult, StopReason, TaskItem

STAGES = [2, 4, 8]


class Countdown(EnvAdapter):
    """Ends solved at the action `now`, and fails once at a turn where it is told so."""

    failed = False

    def __init__(self, fails_at: int = 0) -> None:
        self.steps, self.kept, self.fails_at = 0, 0, fails_at

    def tasks(self, split):
        return [TaskItem("countdown", "1")]

    async def reset(self, item):
        self.steps = 0
        return [{"role": "user", "content": "Go."}]

    async def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at:
            self.fails_at = 0
            raise EnvError("the session is lost")
        return StepResult("Go on.", reward=float(action == "now"), terminated=action in ("now", "give up"))


def play_group(*replies: list[str], fails_at: int = 0) -> tuple[GroupLimit, list[Episode], list[Countdown]]:
    """Play a group, each episode with its own replies, the last of which repeats."""
    group, envs = GroupLimit(STAGES, len(replies)), [Countdown(fails_at) for _ in replies]

    async def episode(env: Countdown, texts: list[str]) -> Episode:
        written = iter(texts)
        policy = FunctionPolicy(lambda messages: next(written, texts[-1]))
        item, limits = TaskItem("countdown", "1"), EpisodeLimits(STAGES[0], retries=1)
        agent = lambda: make_agent(AgentSettings("raw"), env.action_format)  # noqa: E731
        attempts = await play_until_valid(item, lambda: env, agent, lambda: policy, limits, None, group.at_limit)
        group.end(attempts[-1].success)
        attempts[-1].max_turns = await group.final()
        return attempts[-1]

    async def together() -> list[Episode]:
        return await asyncio.gather(*(episode(env, texts) for env, texts in zip(envs, replies, strict=True)))

    return group, asyncio.run(together()), envs


def test_a_success_within_the_first_limit_ends_the_group_there():
    group, episodes, envs = play_group(["wait", "now"], ["wait"], ["give up"])
    assert group.limit == 2 and [env.steps for env in envs] == [2, 2, 1]
    assert [one.stop for one in episodes] == [StopReason.TERMINATED, StopReason.TURN_LIMIT, StopReason.TERMINATED]


def test_unfinished_episodes_go_on_in_their_sessions_until_one_succeeds():
    _, episodes, envs = play_group(["wait", "wait", "wait", "now"], ["wait"], ["give up"])
    assert [env.steps for env in envs] == [4, 4, 1], "no turn is played twice"
    assert [one.success for one in episodes] == [True, False, False]


def test_all_episodes_of_a_group_have_one_limit():
    _, episodes, _ = play_group(["wait"] * 5 + ["now"], ["wait"], ["give up"])
    assert {one.max_turns for one in episodes} == {8}


def test_a_group_without_a_success_ends_at_the_last_limit():
    group, episodes, envs = play_group(["wait"], ["wait"])
    assert group.limit == 8 and [env.steps for env in envs] == [8, 8]
    assert {one.stop for one in episodes} == {StopReason.TURN_LIMIT}


def test_a_group_whose_episodes_all_end_by_themselves_never_deepens():
    group, _, _ = play_group(["give up"], ["wait", "give up"])
    assert group.limit == 2


def test_a_session_that_dies_while_its_group_deepens_begins_anew_at_the_limit_of_the_group():
    group, episodes, _ = play_group(["wait"], ["wait"], fails_at=3)
    assert group.limit == 8 and {len(one.turns) for one in episodes} == {8}
    assert {one.stop for one in episodes} == {StopReason.TURN_LIMIT}


def test_an_episode_that_is_cancelled_while_it_waits_does_not_count_as_one_that_plays():
    """The second one waits for the third, which solves the task, so it ends at its limit."""

    async def cancel() -> int:
        group = GroupLimit(STAGES, 3)
        first, second = (Episode(TaskItem("countdown", "1"), 2) for _ in range(2))
        waiting = [asyncio.create_task(group.at_limit(one)) for one in (first, second)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        group.end(solved=False)
        group.end(solved=True)
        return await asyncio.wait_for(waiting[1], 5)

    assert asyncio.run(cancel()) == 2


def test_an_episode_that_a_person_ends_while_it_waits_does_not_hold_the_others():
    control, group, ended = RunControl(), GroupLimit(STAGES, 2), asyncio.Event()

    async def at_limit(episode: Episode) -> int:
        """End the first episode at the limit as soon as it waits."""
        if not ended.is_set():
            number = next(one["episode"] for one in control.handle({"command": "status"})["episodes"])
            asyncio.get_running_loop().call_soon(control.handle, {"command": "end-episode", "episode": number})
        return await group.at_limit(episode)

    async def episode(begins: asyncio.Event | None) -> Episode:
        async def reply(messages: Sequence[Message]) -> str:
            if begins is not None:
                await begins.wait()
            return "wait"

        env, item = Countdown(), TaskItem("countdown", "1")
        agent = lambda: make_agent(AgentSettings("raw"), env.action_format)  # noqa: E731
        policy, limits = FunctionPolicy(reply), EpisodeLimits(STAGES[0])
        (played,) = await play_until_valid(item, lambda: env, agent, lambda: policy, limits, control, at_limit)
        group.end(played.success)
        ended.set()
        return played

    async def together() -> list[Episode]:
        return await asyncio.wait_for(asyncio.gather(episode(None), episode(ended)), 60)

    first, second = asyncio.run(together())
    assert (first.stop, len(first.turns)) == (StopReason.OPERATOR, 2)
    assert (second.stop, len(second.turns), second.max_turns) == (StopReason.TURN_LIMIT, 8, 8)


def test_the_episodes_of_a_group_join_one_limit_and_the_next_group_of_the_name_another():
    limits = GroupLimits(STAGES, 2)
    first, other, second, third = (limits.join(name) for name in ("a", "b", "a", "a"))
    assert first is second and first is not other and third is not first
