"""Test moves, outcomes and refusals of the adapter of TextArena."""

import asyncio
import re

import pytest

pytest.importorskip("textarena", reason="textarena is not installed: pip install 'verl-agent[textarena]'")

from env_adapters.textarena.adapter import TextArena
from verl_agent.errors import ConfigError
from verl_agent.types import StepResult

HANOI = ("A C", "A B", "C B", "A C", "B A", "B C", "A C")


def play(env, *moves):
    async def episode():
        messages = await env.reset(env.tasks("train")[0])
        return messages, [await env.step(move) for move in moves]

    return asyncio.run(episode())


def test_a_solved_puzzle_earns_one_and_nothing_after_its_end():
    """The wrapper of this game adds the brackets that the rules ask for."""
    _, steps = play(TextArena("TowerOfHanoi-v0"), *HANOI, "A B")
    assert [(step.reward, step.terminated) for step in steps[-2:]] == [(1.0, True), (0.0, True)]
    assert not any(step.info for step in steps)


def test_an_observation_has_only_what_is_new():
    messages, steps = play(TextArena(), "[20]", "[1]")
    assert "Guess The Number" in messages[0]["content"]
    assert [step.observation for step in steps] == ["The target number is lower.", "The target number is higher."]


def test_invalid_moves_are_counted_and_several_end_the_game():
    _, steps = play(TextArena("TowerOfHanoi-v0"), "nonsense", "more nonsense")
    assert [dict(step.info) for step in steps] == [{"invalid_action": 1.0}] * 2
    assert steps[-1].terminated and steps[-1].reward < 1


@pytest.mark.parametrize("name", ["Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0", "ThreeCardMonte-v0"])
def test_a_bad_move_ends_a_game_and_is_no_environment_error(name):
    """These games of TextArena 0.7.4 put the reason of an invalid move into the place of the reward."""
    _, steps = play(TextArena(name), *["nonsense"] * 9)
    ended = next(step for step in steps if step.terminated)
    assert (ended.reward, dict(ended.info)) == (0.0, {"invalid_action": 1.0})
    assert re.search("format|action|Use", ended.observation)


def test_an_exception_of_a_game_is_a_lost_move():
    env = TextArena()

    class Raising:
        def step(self, action):
            raise IndexError(action)

    async def episode():
        await env.reset(env.tasks("train")[0])
        env._game = Raising()
        return [await env.step("[5]"), await env.step("[5]")]

    first, second = asyncio.run(episode())
    assert (first.terminated, first.reward, dict(first.info)) == (True, 0.0, {"invalid_action": 1.0})
    assert second == StepResult("The game has ended.", terminated=True)


@pytest.mark.parametrize("name", ["Briscola-v0", "Golf-v0", "GermanWhist-v0"])
def test_a_game_for_several_players_is_refused(name):
    with pytest.raises(ConfigError, match="does not begin with one player"):
        play(TextArena(name))


def test_two_sessions_that_alternate_draw_their_own_numbers():
    env = TextArena("2048-v0")
    item, other = env.tasks("train")[:2]
    moves = ["[left]", "[up]", "[right]", "[down]", "[left]", "[up]"]

    async def alone():
        session = env.new_session()
        return [await session.reset(item)] + [await session.step(move) for move in moves]

    async def beside():
        session, neighbour = env.new_session(), env.new_session()
        results = [await session.reset(item)]
        await neighbour.reset(other)
        for move in moves:
            await neighbour.step(move)
            results.append(await session.step(move))
        return results

    assert asyncio.run(alone()) == asyncio.run(beside())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("Worlde-v0", r"names='Worlde-v0' is no game of TextArena\. Did you mean 'Wordle-v0'\?"),
        ("GuessTheNumber-v0-raw", "is no game of TextArena"),
    ],
)
def test_an_unknown_game_raises_config_error(names, message):
    with pytest.raises(ConfigError, match=message):
        TextArena(names)


def test_a_game_for_two_players_is_refused():
    with pytest.raises(ConfigError, match=r"names='TicTacToe-v0' does not begin with one player.*for one player"):
        play(TextArena("TicTacToe-v0"))


def test_arguments_that_a_game_lacks_are_refused():
    with pytest.raises(ConfigError, match=r"env\.options\.kwargs=\{'boards': 2\}"):
        play(TextArena(kwargs={"boards": 2}))
