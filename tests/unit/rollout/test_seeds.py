"""Test that the seed of a request follows from the position of its reply in the run, and from nothing else."""

from dataclasses import replace
from itertools import product

from verl_agent.rollout.seeds import EpisodeSeed, TaskDraws

SEED = EpisodeSeed(run=1, purpose="train", env="textcraft", task="a", step=3, sample=0)


def test_seeds_are_the_same_on_every_machine_and_in_every_version():
    """A run that resumes with a later version draws the same numbers."""
    assert [SEED.at(turn) for turn in range(3)] == [351275231, 225336182, 494738835]


def test_every_coordinate_changes_the_seed():
    changes = {"run": 2, "purpose": "validation", "env": "b", "task": "b", "step": 4, "sample": 1, "draw": 1}
    seeds = {SEED.at(0), SEED.at(1), *(replace(SEED, **{key: value}).at(0) for key, value in changes.items())}
    seeds.add(replace(SEED, attempt=2).at(0))
    assert len(seeds) == len(changes) + 3


def test_seeds_of_a_step_are_distinct_31_bit_numbers():
    positions = product(range(64), range(8), range(10))
    seeds = [replace(SEED, task=str(task), sample=sample).at(turn) for task, sample, turn in positions]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_texts_with_separators_do_not_collide():
    assert replace(SEED, env="a b", task="c").at(0) != replace(SEED, env="a", task="b c").at(0)


def test_a_task_that_a_step_draws_again_has_other_seeds():
    draws = TaskDraws()
    counts = [draws.count(step, "e", task) for step, task in ((1, "a"), (1, "a"), (1, "b"), (2, "a"))]
    assert counts == [0, 1, 0, 0]
