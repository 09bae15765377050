"""Test that an episode that a program plays by itself is trained on the same tokens as one of the episode loop."""

import asyncio
import json
import sys
from itertools import chain, cycle, islice

import pytest

from env_adapters.textcraft.adapter import TextCraft
from tests import ROOT
from tests.support.fakes import ScriptedEngine
from tests.support.tokens import REPLIES, Model
from verl_agent.agents.plain import Act
from verl_agent.agents.program import ProgramAgent
from verl_agent.envs.program.adapter import Program
from verl_agent.rollout.episode import EpisodeLimits, play_episode

TURNS = 12
ENV = TextCraft(prompt="short")
ITEMS = ENV.tasks("train")[:200:5]


def replies_to(item, number: int) -> list[str]:
    """Return a solution of the task among replies that are wrong or empty."""
    good = [f"Action: {demo.action}" for demo in ENV.demonstration(item)]
    odd = islice(cycle(REPLIES), number, number + 6)
    return list(islice(chain(chain.from_iterable(zip(odd, good, strict=False)), good[6:], cycle(REPLIES)), TURNS))


def by_loop(model: Model, item, replies: list[str]):
    engine = ScriptedEngine(model.tokenizer, replies)
    policy = model.policy(engine)
    episode = asyncio.run(play_episode(item, ENV.new_session(), Act(ENV.action_format), policy, EpisodeLimits(TURNS)))
    return policy.tokens.segments(), episode.reward, len(episode.turns)


def by_program(model: Model, program: Program, item, replies: list[str]):
    engine = ScriptedEngine(model.tokenizer, replies)
    policy, agent = model.policy(engine), ProgramAgent(program.action_format)
    episode = asyncio.run(play_episode(item, program.new_session(), agent, policy, EpisodeLimits(TURNS + 1)))
    assert not episode.error
    return policy.tokens.segments(), episode.reward, len(episode.turns)


@pytest.mark.parametrize("count", [4, pytest.param(len(ITEMS), marks=pytest.mark.slow)])
def test_a_foreign_loop_gives_the_tokens_masks_and_rewards_of_the_episode_loop(smollm2, tmp_path, count):
    tasks = tmp_path / "tasks.jsonl"
    lines = [
        json.dumps({"id": item.id, "split": "train", "data": {"id": item.id, "data": dict(item.data)}})
        for item in ITEMS
    ]
    tasks.write_text("\n".join(lines))
    program = Program([sys.executable, str(ROOT / "tests/support/textcraft_program.py"), str(TURNS)], str(tasks))
    turns, solved = 0, 0.0
    for number, (own, foreign) in enumerate(list(zip(ITEMS, program.tasks("train"), strict=True))[:count]):
        replies = replies_to(own, number)
        expected = by_loop(smollm2, own, replies)
        assert by_program(smollm2, program, foreign, replies) == expected
        turns, solved = turns + expected[2], solved + expected[1]
    assert turns >= 4 * count
    assert solved
