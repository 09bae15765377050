"""Test questions to recorded turns: other replies, other actions, replies without a thought, and the oracle."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from env_adapters.guess_number.adapter import GuessNumber
from tests.support.episodes import STARTED
from tests.support.fakes import ScriptedPolicy
from tests.support.what_if import GUESS, MAX_TURNS, FakeModel, changed, players, recorded_game, say
from verl_agent.agents.plain import Raw, ReAct
from verl_agent.envs.action_format import FenceFormat, LineFormat, TagFormat
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError, EnvError, RequestRefusedError
from verl_agent.evaluation.what_if.branch import Sampling, play_on, reply_with, sample_replies
from verl_agent.evaluation.what_if.recorded import RecordedEpisode, TurnQuestion, find_episode
from verl_agent.evaluation.what_if.results import Result, append_results, read_results, results_file
from verl_agent.evaluation.what_if.run import oracle_action
from verl_agent.evaluation.what_if.samples import draw_continuations, draw_replies
from verl_agent.evaluation.what_if.summary import (
    of_turn,
    policy_name,
    summarize_continuations,
    summarize_replies,
)
from verl_agent.oversight.approval import Approval
from verl_agent.oversight.base import Overseer, Proposal
from verl_agent.oversight.rules import Rule
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.trace.record import EpisodeMeta, to_record
from verl_agent.trace.record_files import read_records
from verl_agent.types import Episode, Message, Reply, StepResult, TaskItem

POLICY = ("guesser", 1.0, 1.0, "")


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedEpisode:
    return recorded_game(tmp_path)


def ignore(line: str) -> None:
    """Take a line of progress."""


def stored(recorded: RecordedEpisode, turn: int) -> list[Result]:
    return of_turn(read_results(results_file(recorded.file)), recorded.fingerprint, turn)


def draw(recorded: RecordedEpisode, play: Sampling, turn: int = 2, samples: int = 4, **values) -> None:
    asyncio.run(draw_replies(TurnQuestion(recorded, turn, samples, **values), play, ignore))


def compare(recorded: RecordedEpisode, play: Sampling, action: str, turn: int = 2, samples: int = 4) -> None:
    question = TurnQuestion(recorded, turn, samples, action)
    asyncio.run(draw_continuations(question, play, action, ignore))


# Replies


def test_replies_are_grouped_by_action_with_intervals(recorded: RecordedEpisode):
    draw(recorded, players(6, 8, 6, "I do not know."))
    (summary,) = summarize_replies(stored(recorded, 2), "6")
    assert [(one.action, one.replies, one.recorded) for one in summary.actions] == [
        ("6", 2, True),
        ("8", 1, False),
        (None, 1, False),
    ]
    assert (summary.actions[0].share.low, summary.actions[0].share.high) == pytest.approx((0.150, 0.850), abs=1e-3)
    assert summary.changed.mean == 0.5


def test_a_model_reads_the_recorded_conversation_before_its_reply(recorded: RecordedEpisode):
    made: list[FakeModel] = []
    draw(recorded, players(7, made=made), turn=3, samples=1)
    assert made[0].told == [say(5), say(6)]
    messages = recorded.record["messages"]
    assert made[0].read == [messages[:2], messages[:4], messages[:6]]


def test_a_further_command_draws_other_samples_and_adds_them(recorded: RecordedEpisode):
    draw(recorded, players(6), samples=3)
    draw(recorded, players(8), samples=2)
    assert [result["indexes"] for result in stored(recorded, 2)] == [[0, 1, 2], [3, 4]]
    (summary,) = summarize_replies(stored(recorded, 2), "6")
    assert {one.action: one.replies for one in summary.actions} == {"6": 3, "8": 2}


def test_samples_of_two_commands_at_once_count_once(recorded: RecordedEpisode):
    draw(recorded, players(6), samples=3)
    file = results_file(recorded.file)
    file.write_bytes(file.read_bytes() * 2)
    (summary,) = summarize_replies(stored(recorded, 2), "6")
    assert summary.replies == 3


def test_results_lie_beside_the_records_and_leave_them_as_they_are(tmp_path: Path, recorded: RecordedEpisode):
    before = recorded.file.read_bytes()
    draw(recorded, players(6))
    assert recorded.file.read_bytes() == before
    assert len(list(read_records(tmp_path))) == 2, "readers of records see no results"


# Without the thought


def test_the_effect_of_the_thought_is_measured_against_that_of_sampling(recorded: RecordedEpisode):
    draw(recorded, players(6, 8, 6, 6, "8", "9", "8", "6"), without_thought=True)
    ordinary, without = summarize_replies(stored(recorded, 2), "6")
    assert (ordinary.with_thought, without.with_thought) == (True, False)
    assert ordinary.policy == without.policy == POLICY
    assert without.difference is not None and ordinary.difference is None
    assert (ordinary.changed.mean, without.changed.mean, without.difference.mean) == (0.25, 0.75, 0.5)
    assert without.difference.low < 0 < without.difference.high, "four replies prove nothing"


def test_one_kind_of_replies_gives_no_effect_of_the_thought(recorded: RecordedEpisode):
    draw(recorded, players(6))
    draw(recorded, replace(players(8), model="other"), without_thought=True)
    results = [one for one in stored(recorded, 2) if one["model"] == "guesser" or not one.get("with_thought")]
    summaries = summarize_replies(results, "6")
    assert [(one.policy[0], one.with_thought) for one in summaries] == [("guesser", True), ("other", False)]
    assert [one.difference for one in summaries] == [None, None]


def test_an_agent_without_a_thought_is_refused(tmp_path: Path):
    base = players(6)
    raw = changed(base, new_agent=lambda: Raw(LineFormat()))
    with pytest.raises(ConfigError, match="no thought"):
        asyncio.run(sample_replies(recorded_game(tmp_path), 1, raw, [0], with_thought=False))


def test_a_policy_that_is_no_model_cannot_be_asked_without_a_thought(tmp_path: Path):
    class Plain:
        async def reply(self, messages: list[Message]) -> Reply:
            return Reply(say(1))

    base = players(6)
    plain = changed(base, new_policy=lambda item, seed: Plain())
    with pytest.raises(ConfigError, match=r"Set model\.path"):
        asyncio.run(sample_replies(recorded_game(tmp_path), 1, plain, [0], with_thought=False))


@pytest.mark.parametrize(
    ("action_format", "mark"),
    [(LineFormat(), "Action:"), (FenceFormat(), "```"), (TagFormat(tags=(("search", "w"), ("answer", "a"))), "<")],
)
def test_the_mark_of_an_action_is_text_that_all_actions_share(action_format, mark):
    assert action_format.mark == mark


# Another action


def test_success_after_another_action_is_compared_with_that_after_the_recorded_one(recorded: RecordedEpisode):
    compare(recorded, players(3, 2), "7")
    before, after = summarize_continuations(stored(recorded, 2), "6")
    assert (before.action, before.source, before.success.mean, before.turns) == ("6", "recorded", 0.0, 3.0)
    assert (after.action, after.source, after.success.mean, after.turns) == ("7", "given", 1.0, 1.0)
    assert after.difference is not None
    assert (after.difference.mean, after.difference.tasks) == (1.0, 4)
    assert 0 < after.difference.low < 1, "four episodes leave room"


def test_both_actions_stand_in_replies_without_a_thought(recorded: RecordedEpisode):
    """Otherwise the sides would differ in the thought too."""
    made: list[FakeModel] = []
    compare(recorded, players(3, made=made), "9", samples=1)
    assert [model.told for model in made] == [[say(5), "Action: 6"], [say(5), "Action: 9"]]


def test_a_recorded_reply_without_an_action_is_repeated(tmp_path: Path):
    recorded = recorded_game(tmp_path, (5, "", 2, 3))
    compare(recorded, players(3), "7", samples=1)
    before, after = summarize_continuations(stored(recorded, 2), None)
    assert (before.action, after.success.mean) == (None, 1.0)


def test_episodes_after_the_recorded_action_are_reused_by_the_next_comparison(recorded: RecordedEpisode):
    """Index by index, both sides have the same seeds."""
    compare(recorded, players(3), "7", samples=2)
    compare(recorded, players(7), "8", samples=3)
    results = [(one["action"], one["indexes"]) for one in stored(recorded, 2) if one["kind"] == "continuations"]
    assert results == [("6", [0, 1]), ("7", [0, 1]), ("6", [2]), ("8", [0, 1, 2])]
    effects = summarize_continuations(stored(recorded, 2), "6")
    assert [(one.action, one.episodes) for one in effects] == [("6", 3), ("7", 2), ("8", 3)]
    assert effects[0].success.mean == pytest.approx(1 / 3)


def test_samples_of_other_settings_are_not_pooled(recorded: RecordedEpisode):
    for sampling in (players(6), replace(players(6), others="5e771465")):
        asyncio.run(draw_replies(TurnQuestion(recorded, 2, 3), sampling, ignore))
    summaries = summarize_replies(stored(recorded, 2), "6")
    assert [one.replies for one in summaries] == [3, 3]
    assert policy_name(summaries[1].policy) == "guesser, temperature 1, settings 5e771465"


def test_a_sample_that_two_commands_played_counts_once_beside_one_that_failed(recorded: RecordedEpisode):
    """The failed one does not move the others to another index."""
    compare(recorded, players(3), "7", samples=2)
    first = next(one for one in stored(recorded, 2) if one["kind"] == "continuations" and one["action"] == "7")
    (solved, _), missed = first["episodes"], {**first["episodes"][0], "success": False}
    append_results(
        results_file(recorded.file),
        [
            {**first, "action": "9", "indexes": [0, 1], "failed": [2], "episodes": [solved, missed]},
            {**first, "action": "9", "indexes": [1], "failed": [0, 2], "episodes": [missed]},
        ],
    )
    nine = next(one for one in summarize_continuations(stored(recorded, 2), "6") if one.action == "9")
    assert (nine.episodes, nine.success.mean, nine.env_errors) == (2, 0.5, 1)


def test_an_action_that_the_format_cannot_hold_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot be written as a reply: .*the agent would read '4'.*The format is: "):
        reply_with(recorded_game(tmp_path), 2, ReAct(LineFormat()), "4\n5")


# Replays


class Moody(GuessNumber):
    """Game whose answers, rewards or end depend on the number of games."""

    games = 0
    mood = ""

    async def reset(self, item: TaskItem) -> list[Message]:
        type(self).games += 1
        return await super().reset(item)

    async def step(self, action: str) -> StepResult:
        step = await super().step(action)
        if type(self).games < 2:
            return step
        if self.mood == "error":
            raise EnvError("the game is down")
        observation = f"{step.observation} Good luck!" if self.mood == "text" else step.observation
        return StepResult(observation, step.reward + (self.mood == "reward"), step.terminated or self.mood == "end")


def moody(mood: str, **attributes: object) -> GuessNumber:
    return type("Moody", (Moody,), {"mood": mood, **attributes})()


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("text", r"turn 2 of a replay .* it was '.*Higher\.', now it is '.*Higher\. Good luck!'.*not deterministic"),
        ("reward", r"turn 1 of a replay .* the reward 1 instead of 0"),
        ("end", r"ended after turn 1 \(terminated\), before turn 2"),
    ],
)
def test_a_replay_that_differs_from_the_record_is_an_error(tmp_path: Path, mood: str, message: str):
    env = moody(mood)
    recorded = recorded_game(tmp_path, env=env)
    with pytest.raises(ConfigError, match=message):
        compare(recorded, players(3, env=env), "7")
    assert not results_file(recorded.file).exists()


def test_a_replay_rejects_what_was_rejected_and_goes_on_under_the_same_rules(tmp_path: Path):
    env = make_env("guess_number")
    rules = [Rule(["*"], text="^[57]$", decision="reject", reason="no"), Rule(["*"], decision="approve")]
    overseer = Approval(rules, env.describe_action)
    policy = ScriptedPolicy(map(say, (5, 6, 2, 3)))
    game = asyncio.run(play_episode(GUESS, env, ReAct(env.action_format), policy, EpisodeLimits(MAX_TURNS), overseer))
    file = tmp_path / "episodes.jsonl"
    meta = EpisodeMeta("evaluation", "test", 0, GUESS.id, 0, STARTED, 1.0)
    file.write_text(json.dumps(to_record(game, meta)) + "\n")
    recorded, reply = find_episode(f"{file}:1"), Reply(say(7))
    free = asyncio.run(play_on(recorded, 3, reply, players(3), [0]))
    bound = asyncio.run(play_on(recorded, 3, reply, players(3, overseer=overseer), [0]))
    assert [turn.carried_out for turn in free[0].turns] == [False, True, True]
    assert [turn.carried_out for turn in bound[0].turns] == [False, True, False, True]


def test_the_overseer_of_the_run_watches_the_episode_and_decides_from_the_turn_on(recorded: RecordedEpisode):
    class Attentive(Overseer):
        watched: ClassVar[list[Episode]] = []
        asked: ClassVar[list[str | None]] = []

        @asynccontextmanager
        async def watch(self, episode: Episode) -> AsyncIterator[None]:
            self.watched.append(episode)
            yield
            self.watched.remove(episode)

        async def decide(self, proposal: Proposal) -> None:
            assert proposal.episode in self.watched
            if proposal.reply is not None:
                self.asked.append(proposal.action)

    asyncio.run(play_on(recorded, 2, Reply(say(6)), players(7, overseer=Attentive()), [0]))
    assert (Attentive.asked, Attentive.watched) == (["6", "7"], [])


def test_an_environment_that_is_not_deterministic_is_refused(tmp_path: Path):
    env = moody("", deterministic=False)
    recorded = recorded_game(tmp_path, env=env)
    with pytest.raises(ConfigError, match=r"not deterministic .* leave out --action"):
        compare(recorded, players(3, env=env), "7")
    draw(recorded, players(3, env=env))
    assert len(stored(recorded, 2)) == 1, "replies need no environment"


def test_other_agent_settings_are_noticed(tmp_path: Path):
    recorded, base = recorded_game(tmp_path), players(3)
    silent = changed(base, new_agent=lambda: ReAct(LineFormat(), instructions=False))
    with pytest.raises(ConfigError, match="turn 1 of a replay"):
        asyncio.run(play_on(recorded, 2, Reply("Action: 7"), silent, [0]))


def test_episodes_whose_environment_fails_are_left_out_and_counted(tmp_path: Path):
    class Failing(Moody):
        async def step(self, action: str) -> StepResult:
            if type(self).games == 2:
                raise EnvError("the game is down")
            return await super().step(action)

    env = Failing()
    recorded = recorded_game(tmp_path, env=env)
    compare(recorded, players(3, env=env), "7", samples=2)
    before, after = summarize_continuations(stored(recorded, 2), "6")
    assert [(one.episodes, one.env_errors) for one in (before, after)] == [(1, 1), (2, 0)]


def test_an_environment_that_always_fails_is_an_error(tmp_path: Path):
    env = moody("error")
    recorded = recorded_game(tmp_path, env=env)
    with pytest.raises(ConfigError, match=r"no episode could be played .* the game is down"):
        compare(recorded, players(3, env=env), "7")


# Oracle


def oracle(recorded: RecordedEpisode, turn: int, env: GuessNumber) -> str:
    return asyncio.run(oracle_action(TurnQuestion(recorded, turn, 1), env, players(env=env)))


def test_the_oracle_takes_the_shortest_end_of_its_demonstration_that_solves_the_task(tmp_path: Path):
    assert oracle(recorded_game(tmp_path), 2, GuessNumber()) == "7"


def test_an_oracle_that_follows_observations_reads_those_of_the_episode(recorded: RecordedEpisode):
    heard: list[str] = []

    class Follower(GuessNumber):
        def oracle(self, item: TaskItem):
            from verl_agent.types import DemoAction

            return lambda observation: heard.append(observation) or DemoAction(str(len(heard)))

    assert oracle(recorded, 3, Follower()) == "3"
    assert heard == ["Your first guess?", "Higher.", "Higher."]


def test_a_task_that_no_end_of_the_demonstration_solves_is_an_error(tmp_path: Path):
    class Lost(GuessNumber):
        async def step(self, action: str) -> StepResult:
            step = await super().step(action)
            self.lost = getattr(self, "lost", False) or action == "6"
            return StepResult(step.observation, 0.0 if self.lost else step.reward, step.terminated)

    with pytest.raises(ConfigError, match=r"no end of the oracle's .* from turn 3 in the 2 turns left"):
        oracle(recorded_game(tmp_path), 3, Lost())


# Questions


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"turn": 5}, r"--turn 5 is not a turn .* Allowed: 1 to 4"),
        ({"turn": 0}, "--turn 0"),
        ({"samples": 0}, "--samples 0"),
        ({"action": "7", "oracle": True}, "two actions"),
        ({"action": "7", "without_thought": True}, "plays no episode"),
        ({"action": " 6 "}, "is the recorded action"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(tmp_path: Path, values: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        TurnQuestion(recorded_game(tmp_path), **{"turn": 2, "samples": 4, **values})


def test_the_fake_model_is_a_model():
    from verl_agent.evaluation.what_if.branch import TokenPolicy

    assert isinstance(FakeModel(iter(())), TokenPolicy)
    assert GUESS.data["target"] == 7


class Refusing(FakeModel):
    """Model whose server refuses its request."""

    async def reply(self, messages):
        raise RequestRefusedError("content filter: refused")


def test_a_sample_whose_request_is_refused_is_left_out_and_the_others_are_stored(recorded):
    base = players(3)

    def new_policy(item: TaskItem, seed: EpisodeSeed) -> FakeModel:
        return Refusing(iter(())) if seed.sample == 1 else base.player.new_policy(item, seed)

    draw(recorded, changed(base, new_policy=new_policy), samples=3)
    (found,) = stored(recorded, 2)
    assert (found["indexes"], len(found["replies"])) == ([0, 2], 2)


class StartsLate(GuessNumber):
    """Game that cannot be reset the first time."""

    resets: ClassVar[list[str]] = []

    async def reset(self, item: TaskItem) -> list[Message]:
        self.resets.append(item.id)
        if len(self.resets) == 1:
            raise EnvError("down")
        return await super().reset(item)


def test_another_attempt_at_a_sample_draws_other_replies(recorded):
    base, seen = players(3, env=StartsLate()), []

    def new_policy(item: TaskItem, seed: EpisodeSeed) -> FakeModel:
        seen.append(seed)
        return base.player.new_policy(item, seed)

    play = changed(base, new_policy=new_policy, limits=replace(base.player.limits, retries=1))
    (episode,) = asyncio.run(play_on(recorded, 2, Reply(say(7)), play, [4]))
    assert episode.valid and [(seed.sample, seed.attempt) for seed in seen] == [(4, 1), (4, 2)]
    assert len({seed.at(0) for seed in seen}) == 2
