"""Test matches of several policies: turns, results, seats that leave, and errors."""

import asyncio

import pytest

from tests.support.arenas import Duel
from tests.support.fakes import ScriptedPolicy, plain
from verl_agent.envs.arena import seat_item
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.matches import Match, SeatSession
from verl_agent.rollout.sessions import RecoveringSession
from verl_agent.types import Reply, StopReason

BOTH = ("self", "self")


def played(arena, *scripts, turns=5):
    """Play one match with scripted policies, and return the episodes of the seats."""
    item = arena.tasks("train")[0]

    async def together():
        match = Match(RecoveringSession(arena.new_session), item, "m", arena.policy_seats)

        async def seat(number, script):
            own, limits = seat_item(item, arena, number, "m"), EpisodeLimits(turns, None)
            episode = await play_episode(own, SeatSession(match, number), plain(), ScriptedPolicy(script), limits)
            await match.settle(number, episode)
            return episode

        return await asyncio.gather(*(seat(number, script) for number, script in enumerate(scripts)))

    return asyncio.run(together())


@pytest.mark.parametrize("at_once", [False, True])
def test_each_seat_has_an_episode_with_its_own_result(at_once):
    left, right = played(Duel(BOTH, at_once), ["1"], ["12"])
    assert (left.reward, right.reward, right.success) == (-1, 1, True)
    assert [one.stop for one in (left, right)] == [StopReason.TERMINATED] * 2
    assert left.messages[0]["content"].startswith("You are left") and len(left.turns) == len(right.turns) == 1
    assert {left.item.data["match"], right.item.data["match"]} == {"m"}
    assert (left.item.id, left.item.category) == ("train-0", "duel, left")


@pytest.mark.parametrize("at_once", [False, True])
def test_a_seat_whose_action_is_not_possible_moves_again(at_once):
    left, right = played(Duel(BOTH, at_once), ["!", "123"], ["12"])
    assert [turn.step.info for turn in left.turns] == [{"invalid_action": 1.0}, {}]
    assert (left.reward, right.reward, len(right.turns)) == (1, -1, 1)


def test_a_seat_that_reaches_its_turn_limit_forfeits_with_its_last_turn():
    left, right = played(Duel(BOTH, at_once=True), ["!", "!"], ["12"], turns=2)
    assert (left.stop, left.reward, left.turns[-1].step.reward) == (StopReason.TURN_LIMIT, -1, -1)
    assert right.messages[-1]["content"].startswith("The match has ended: a player left.")
    assert (right.stop, right.reward) == (StopReason.TERMINATED, 1)


def test_a_seat_whose_reply_is_cut_forfeits():
    cut = Reply("12", truncated_by=StopReason.TURN_TOKENS, tokens=2)
    left, right = played(Duel(BOTH, at_once=True), [cut], ["12"])
    assert (left.stop, left.reward, left.messages[-1]["role"]) == (StopReason.TURN_TOKENS, -1, "user")
    assert right.reward == 1


def test_a_seat_that_never_moved_has_no_valid_episode():
    left, right = played(Duel(BOTH), ["!"], [], turns=1)
    assert (left.stop, left.reward) == (StopReason.TURN_LIMIT, -1)
    assert not right.valid and "before this seat was to move" in right.error


def test_an_error_of_the_arena_ends_the_episodes_of_all_seats():
    left, right = played(Duel(BOTH, at_once=True), ["crash"], ["12"])
    assert [one.stop for one in (left, right)] == [StopReason.ENV_ERROR] * 2
    assert "the match has ended" in left.error + right.error


def test_an_error_of_one_policy_does_not_leave_the_other_waiting():
    with pytest.raises(ValueError, match="no reply"):
        played(Duel(BOTH), [ValueError("no reply")], ["12"])


def test_a_seat_that_leaves_before_the_match_begins_forfeits():
    async def together():
        arena = Duel(BOTH)
        match = Match(arena.new_session(), arena.tasks("train")[0], "m", arena.policy_seats)
        await match.leave(1)
        await match.begin(0)
        return await match.act(0, "1")

    assert asyncio.run(together()).reward == 1


def test_a_script_plays_the_other_seat_of_an_ordinary_environment():
    arena = Duel(["self", "script:random"])
    item, limits = arena.tasks("test")[0], EpisodeLimits(2, None)
    episode = asyncio.run(play_episode(item, arena.new_session(), plain(), ScriptedPolicy(["123"]), limits))
    assert (episode.reward, episode.item.data) == (1, {"number": 0})


def test_an_action_after_the_end_earns_nothing():
    async def played():
        session = Duel(["self", "script:random"])
        await session.reset(session.tasks("test")[0])
        return [await session.step("123") for _ in range(2)]

    first, second = asyncio.run(played())
    assert (first.reward, second.reward, second.terminated) == (1, 0, True)


def test_a_script_that_chooses_an_impossible_action_is_an_error_of_the_environment():
    arena = Duel(["self", "script:wrong"])
    session = RecoveringSession(arena.new_session)
    episode = asyncio.run(
        play_episode(arena.tasks("test")[0], session, plain(), ScriptedPolicy(["1"]), EpisodeLimits(2, None))
    )
    assert episode.stop is StopReason.ENV_ERROR and "'wrong' chose" in episode.error


@pytest.mark.parametrize(
    ("seats", "message"),
    [
        (["self"], r"Allowed: a list with one player for each seat, left, right, such as \[self, script:random\]"),
        (["self", None], "right has the player None.*Allowed: self.*frozen:CHECKPOINT"),
        (["self", "selv"], "right has the player 'selv'"),
        (["self", "frozen:"], "right has the player 'frozen:'"),
        (["self:x", "self"], "left has the player 'self:x'"),
        (["self", "script:randm"], "script:randm is unknown.*random"),
        (["script:random", "script:random"], "no seat for the policy. Set at least one to self"),
    ],
)
def test_a_seat_without_a_player_raises_config_error(seats, message):
    with pytest.raises(ConfigError, match=message):
        Duel(seats)


def test_a_command_that_plays_one_seat_refuses_several():
    arena = Duel(BOTH)
    with pytest.raises(ConfigError, match=r"has 2 seats for policies, and this command plays one.*script:random"):
        asyncio.run(arena.new_session().reset(arena.tasks("test")[0]))
