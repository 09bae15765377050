"""Test OpenSpiel's games: chance by seed, both seats, moves at once, and refusals."""

import asyncio
from random import Random

import pytest

from env_adapters.openspiel.adapter import OpenSpiel
from tests.support.fakes import plain
from verl_agent.envs.arena import seat_item
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.matches import Match, SeatSession
from verl_agent.types import Reply, StopReason

pytest.importorskip("pyspiel")


class Listed:
    """Policy that chooses among the listed actions."""

    def __init__(self, seed):
        self._luck = Random(seed)

    async def reply(self, messages):
        actions = messages[-1]["content"].rpartition("Actions: ")[2]
        return Reply(self._luck.choice(actions.split(", ")) if "Offer" not in actions else "Agree")


def match(name, seed, luck=0, **options):
    arena = OpenSpiel(name, ["self", "self"], **options)
    item = arena.tasks("train")[seed]

    async def together():
        played = Match(arena.new_session(), item, "m", [0, 1])
        jobs = [
            play_episode(
                seat_item(item, arena, seat, "m"),
                SeatSession(played, seat),
                plain(),
                Listed(luck + 100 * seat),
                EpisodeLimits(30, None),
            )
            for seat in (0, 1)
        ]
        return await asyncio.gather(*jobs)

    return asyncio.run(together())


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "liars_dice", "goofspiel", "matrix_mp"])
def test_competitive_games_end_with_opposite_results(name):
    for seed in range(3):
        left, right = match(name, seed, luck=seed)
        assert left.stop is right.stop is StopReason.TERMINATED
        assert left.reward == -right.reward


def test_partners_share_the_result():
    left, right = match("tiny_hanabi", 1)
    assert left.reward == right.reward and left.success_reward == 10


def test_chance_follows_from_the_seed_whatever_is_played():
    def card(seed, luck):
        return match("leduc_poker", seed, luck)[0].messages[0]["content"].partition("Private: ")[2][:1]

    assert card(5, 0) == card(5, 1)
    assert len({card(seed, 0) for seed in range(9)}) > 1


def test_a_script_plays_as_the_seed_says():
    arena = OpenSpiel("leduc_poker")

    async def texts():
        session = arena.new_session()
        first = await session.reset(arena.tasks("test")[0])
        return first, await session.step("call")

    assert asyncio.run(texts()) == asyncio.run(texts())


def test_an_impossible_action_is_explained():
    session = OpenSpiel("kuhn_poker").new_session()

    async def played():
        await session.reset(session.tasks("train")[0])
        return await session.step("raise")

    result = asyncio.run(played())
    assert result.observation.startswith("raise is not possible.\nState: ") and result.info["invalid_action"]


def test_a_player_who_leaves_has_the_worst_result():
    arena = OpenSpiel("kuhn_poker")
    asyncio.run(arena.begin(arena.tasks("train")[0]))
    assert list(arena.forfeit(1)) == [2, -2]


def test_a_game_that_hides_its_chance_is_no_seeded_environment():
    game = OpenSpiel("negotiation", ["self", "self"])
    assert not game.deterministic and not game.seeded
    assert OpenSpiel("negotiation", ["self", "self"], allow_unseeded=True).seeded
    assert OpenSpiel("kuhn_poker").seeded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": "kuhn_pokr"}, "no game of OpenSpiel.*kuhn_poker"),
        ({"names": ["kuhn_poker", "hearts"]}, "kuhn_poker 2, hearts 4"),
        ({"names": ["kuhn_poker", "tiny_hanabi"]}, "solved at different returns.*tiny_hanabi.*env.mixture"),
        ({"names": "2048"}, "2048 1. Allowed: games with the same"),
        ({"params": {"x": 1}}, "does not load with env.options.params"),
        ({"seats": ["self"]}, "a list with one player for each seat, player 0, player 1"),
        ({"rules": 1}, "env.options.rules=1"),
    ],
)
def test_options_that_are_not_allowed_raise_config_error(options, message):
    with pytest.raises(ConfigError, match=message):
        OpenSpiel(**options)
