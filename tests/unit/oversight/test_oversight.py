"""Tests of the hook between an action and the environment: decisions, their records, and their effect on results."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain, talk_class
from tests.support.overseers import ScriptedPerson
from verl_agent.agents.context import Summary
from verl_agent.agents.plain import ReAct
from verl_agent.agents.program import ProgramAgent
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.program.conversation import CountedReply
from verl_agent.errors import ConfigError
from verl_agent.evaluation.loop import pending_episodes
from verl_agent.oversight.base import Decision, OverseenPolicy, Overseer, Proposal
from verl_agent.oversight.person import read_line
from verl_agent.results.failures import find_failures, summarize_failures
from verl_agent.results.results import summarize
from verl_agent.results.scaling import rates_within_turns
from verl_agent.results.selectors import best_of_n
from verl_agent.rollout.actions import joined
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, parse_record, to_episode, to_record
from verl_agent.types import CallResult, Episode, Reply, StepResult, StopReason, Turn

META = EpisodeMeta("evaluation", "test", 0, "1", 0, datetime(2026, 1, 1, tzinfo=UTC), 1.0)


class Listens(Talk):
    """Environment that remembers the actions that reach it."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.actions: list[str] = []

    async def step(self, action):
        self.actions.append(action)
        return await super().step(action)


def oversee(script, lines, max_turns: int = 3, **talk) -> tuple[Episode, Listens, ScriptedPolicy]:
    session, policy = type("Listens", (Listens,), {"made": []})(**talk), ScriptedPolicy(script)
    limits = EpisodeLimits(max_turns, timeout_s=5.0)
    episode = asyncio.run(play_episode(ITEM, session, plain(), policy, limits, ScriptedPerson(lines)))
    return episode, session, policy


def decisions(episode: Episode) -> list[tuple[str, str, str | None]]:
    return [
        (turn.reply.author, turn.reply.review.decision if turn.reply.review else "", turn.reply.proposed)
        for turn in episode.turns
    ]


def record_of(episode: Episode) -> EpisodeRecord:
    return to_record(episode, META)


def test_approved_action_reaches_the_environment_unchanged():
    episode, session, _ = oversee(["a"], ["/approve"], max_turns=1)
    assert (session.actions, decisions(episode)) == (["a"], [("policy", "approved", None)])
    assert not episode.operated


def test_edited_action_replaces_the_reply_and_keeps_what_was_proposed():
    episode, session, policy = oversee(["a", "b"], ["other", "/approve"], max_turns=2)
    assert session.actions == ["other", "b"]
    assert decisions(episode) == [("person", "edited", "a"), ("policy", "approved", None)]
    assert policy.heard[1][2]["content"] == "other"
    assert episode.turns[0].reply.text == "other"


def test_rejected_action_does_not_reach_the_environment_and_its_reason_reaches_the_policy():
    episode, session, policy = oversee(["a", "b"], ["/reject too dear", "/approve"], max_turns=2)
    assert session.actions == ["b"]
    assert policy.heard[1][3]["content"] == "The action was not carried out: too dear"
    assert episode.turns[0].step.info == {"rejected_action": 1.0}


def test_time_that_an_overseer_takes_before_and_after_a_reply_is_not_the_models():
    class Slow(Overseer):
        async def decide(self, proposal):
            await asyncio.sleep(0.1 if proposal.reply is None else 0.05)

    episode = asyncio.run(play_episode(ITEM, talk_class()(), plain(), ScriptedPolicy(["a"]), EpisodeLimits(1), Slow()))
    assert episode.turns[0].reply.held_s >= 0.15
    assert episode.turns[0].generate_s < 0.1


def test_overseer_sees_the_actions_that_the_loop_carries_out():
    seen: list[Proposal] = []

    class Watching(Overseer):
        async def decide(self, proposal):
            if proposal.reply is not None:
                seen.append(proposal)

    reply, agent = Reply("a", tokens=7), ProgramAgent(LineFormat())
    policy = OverseenPolicy(ScriptedPolicy([reply]), Watching(), Episode(ITEM, 1), agent)
    asyncio.run(policy.reply([]))
    (counted,) = seen[0].actions
    assert isinstance(counted, CountedReply) and counted.counts.written == 7


def test_reason_for_the_rejection_of_a_reply_without_an_action_reaches_the_policy():
    person, policy = ScriptedPerson(["/reject be polite", "/a"]), ScriptedPolicy(["hm", "Action: a"])
    session = talk_class()()
    episode = asyncio.run(play_episode(ITEM, session, ReAct(LineFormat()), policy, EpisodeLimits(2), person))
    assert policy.heard[1][-1]["content"] == "The action was not carried out: be polite"
    assert episode.turns[0].step.info == {"rejected_action": 1.0, "invalid_action": 1.0}


def test_taken_over_turns_are_played_without_the_policy_until_they_are_handed_back():
    episode, session, policy = oversee(["a", "d"], ["/take one", "two", "/back", "/approve"], max_turns=4, turns=3)
    assert session.actions == ["one", "two", "d"]
    assert decisions(episode) == [
        ("person", "taken_over", "a"),
        ("person", "taken_over", None),
        ("policy", "approved", None),
    ]
    assert len(policy.heard) == 2


def test_takeover_of_two_turns_ends_by_itself():
    episode, session, _ = oversee(["a", "c"], ["/take 2 one", "two", "/approve"])
    assert session.actions == ["one", "two", "c"]
    assert [turn.reply.author for turn in episode.turns] == ["person", "person", "policy"]


@pytest.mark.parametrize(
    ("lines", "turns", "heard"),
    [(["/end it spends money"], 1, []), (["/take one", "/end it spends money"], 1, ["one"])],
)
def test_ended_episode_has_its_own_stop_reason_and_carries_out_nothing_more(lines, turns, heard):
    episode, session, _ = oversee(["a"], lines)
    assert (episode.stop, episode.error, session.actions) == (StopReason.OPERATOR, "it spends money", heard)
    assert (len(episode.turns), session.closed, episode.valid) == (turns, 1, False)
    assert len(episode.messages) == episode.prompt_length + 2 * len(episode.turns) - (lines[0].startswith("/end"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("/back", "the agent has this turn already. Allowed: an action, /approve, /reject, /take, /end."),
        ("/take", "/take needs the action of this turn: /take [turns] action."),
        ("/t 2", "/take needs the action of this turn: /take [turns] action."),
    ],
)
def test_answer_that_does_not_suit_the_turn_is_asked_again_with_the_reason(line, reason):
    person = ScriptedPerson([line, "/approve"])
    policy = ScriptedPolicy(["Action: a"])
    asyncio.run(play_episode(ITEM, talk_class()(), ReAct(LineFormat()), policy, EpisodeLimits(1), person))
    assert [refusal for _, refusal in person.asked] == ["", reason]


def test_approval_without_a_proposal_is_asked_again():
    person = ScriptedPerson(["/take one", "/approve", "two"])
    asyncio.run(play_episode(ITEM, talk_class()(), plain(), ScriptedPolicy(["a"]), EpisodeLimits(2), person))
    assert person.asked[2] == (None, "you have this turn: there is no proposal. Allowed: an action, /back, /end.")


def test_written_reply_has_the_form_of_the_agent_and_its_context():
    agent = ReAct(LineFormat(), Summary())
    episode = Episode(ITEM, 3, [{"role": "user", "content": "Begin."}])
    assert Proposal(episode, agent).write("b", "why") == "Summary: nothing is done yet\nThought: why\nAction: b"
    with pytest.raises(ConfigError, match=r"cannot be written as a reply.*would read 'get'"):
        Proposal(episode, agent).write("get\n1 log")
    episode.turns += [Turn(Reply(text), action, None, 0.0, 0.0) for text, action in (("Action: a", "a"), ("?", None))]
    assert Proposal(episode, agent).write("b") == "Summary: a\nAction: b", "a turn without an action leaves no gap"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/a", Decision("approve")),
        ("/r", Decision("reject")),
        ("/reject no more money ", Decision("reject", reason="no more money")),
        ("/t 3 click [4]", Decision("take_over", "click [4]", turns=3)),
        ("/take click [4]", Decision("take_over", "click [4]")),
        ("/t " + "9" * 5000, Decision("take_over", "9" * 5000)),
        ("/2", Decision("edit", candidate=2)),
        ("/b", Decision("hand_back")),
        ("/e", Decision("end")),
        (" click [4]", Decision("edit", "click [4]")),
    ],
)
def test_line_of_a_person_is_read(line, answer):
    assert read_line(line) == answer


@pytest.mark.parametrize("line", ["", "  ", "/", "/x", "/approved", "/0", "/" + "9" * 5000])
def test_line_that_decides_nothing_raises_config_error(line):
    with pytest.raises(ConfigError):
        read_line(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/help", "/back lets the agent go on; /end [reason] ends the episode; or type an action."),
        ("/x", "/x is no command. Allowed: /back, /end, /help."),
    ],
)
def test_messages_name_the_commands_that_suit_the_turn(line, message):
    with pytest.raises(ConfigError) as refused:
        read_line(line, ("back", "end"))
    assert str(refused.value) == message


def test_record_keeps_author_proposal_and_review():
    episode, _, _ = oversee(["a", "b"], ["other", "/reject no"], max_turns=2)
    record = parse_record(record_of(episode))
    assert [turn.get("author") for turn in record["turns"]] == ["person", None]
    assert record["turns"][0]["proposed"] == "a"
    assert record["turns"][1]["review"]["reason"] == "no"
    again = to_episode(record)
    assert [(turn.reply.author, turn.reply.proposed) for turn in again.turns] == [("person", "a"), ("policy", None)]
    assert again.operated


def test_record_without_an_overseer_has_none_of_the_fields():
    episode = asyncio.run(play_episode(ITEM, talk_class()(), plain(), ScriptedPolicy(["a"]), EpisodeLimits(1)))
    assert {"author", "proposed", "review"}.isdisjoint(record_of(episode)["turns"][0])


def test_waiting_for_a_person_is_in_no_time_but_that_of_the_review():
    class Slow(ScriptedPerson):
        async def ask(self, proposal, refusal):
            await asyncio.sleep(0.2)
            return await super().ask(proposal, refusal)

    session = talk_class()()
    limits = EpisodeLimits(1, timeout_s=0.05)  # of one call into the environment
    episode = asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy(["a"]), limits, Slow(["/a"])))
    turn = episode.turns[0]
    assert (episode.stop, session.heard) == (StopReason.TURN_LIMIT, 1)
    assert turn.reply.review.seconds >= 0.2 > turn.generate_s + turn.env_s


def played(episode: Episode, task: str, **changes) -> EpisodeRecord:
    return {**record_of(episode), "task": task, "group": task, **changes}


def test_operated_episodes_are_in_no_rate_unless_asked_for(tmp_path):
    own, _, _ = oversee(["a"], ["/a"], turns=1)
    helped, _, _ = oversee(["a"], ["other"], turns=1)
    ended, _, _ = oversee(["a"], ["/end"])
    records = [played(own, "own"), played(helped, "helped"), played(ended, "ended")]
    result = summarize(records)[-1]
    assert (result.episodes, result.operated, result.env_errors, result.played) == (1, 2, 0, 3)
    assert "2 with a person's decisions not counted" in str(result)
    asked = summarize(records, count_operated=True)[-1]
    assert (asked.episodes, asked.operated) == (2, 1)
    failed = [{**record, "success": False} for record in records]
    for counted, tasks in ((False, 1), (True, 2)):
        assert rates_within_turns(records, counted)[1][0].tasks == tasks
        assert len(found := find_failures(failed, None, counted)) == tasks
        assert summarize_failures(failed, found, counted)[0].episodes == tasks
        samples = [{**record, "task": "a", "group": "a", "sample": at} for at, record in enumerate(records[:2])]
        assert len(best_of_n(samples, tmp_path, count_operated=counted)) == (5 if counted else 0)


def test_ended_episode_is_not_played_again_when_the_evaluation_resumes():
    ended, _, _ = oversee(["a"], ["/end"])
    assert pending_episodes([ITEM], 1, [record_of(ended)]) == []


def test_rejection_by_a_rule_still_measures_the_policy():
    episode, _, _ = oversee(["a"], ["/reject no"], max_turns=1)
    turn = episode.turns[0]
    assert turn.operated
    by_rule = replace(turn.reply, review=replace(turn.reply.review, by="rule"))
    assert not replace(turn, reply=by_rule).operated


def test_reward_of_several_calls_is_the_exact_sum_in_every_order():
    rewards = [1e16, 1.0, -1e16, *[0.1] * 10]
    for ordered in (rewards, sorted(rewards), rewards[::-1]):
        assert joined([CallResult("act", StepResult("", reward)) for reward in ordered]).reward == 2.0
