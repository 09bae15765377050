"""Test the splits of ScienceWorld against the simulator's tasks, and that listing them needs no Java."""

import os
import subprocess
import sys
from collections import Counter

from env_adapters.scienceworld.adapter import ScienceWorld
from env_adapters.scienceworld.simulator import SimulatorSession
from env_adapters.scienceworld.tasks import EASY_TURNS, EXCLUDED, PAPER_TEST, TABLE, all_tasks
from tests import ROOT
from verl_agent.envs.testing.task_checks import check_ids, list_all

LISTED = list_all(ScienceWorld())
ITEMS = {item.id: item for part in ("train", "dev", "test") for item in LISTED[part]}


def test_splits_have_the_documented_numbers_of_items():
    assert {split: len(items) for split, items in LISTED.items()} == {
        "train": 2312,
        "dev": 1156,
        "test": 1171,
        "paper_test": 200,
        "easy_train": 228,
        "easy_test": 118,
    }
    assert len(ITEMS) == 4639
    assert Counter(item.category for item in LISTED["paper_test"]) == PAPER_TEST


def test_small_splits_are_parts_of_the_official_ones():
    ids = {split: {item.id for item in items} for split, items in LISTED.items()}
    assert ids["paper_test"] <= ids["test"]
    assert ids["easy_train"] <= ids["train"]
    assert ids["easy_test"] <= ids["test"]
    assert all(item.data["turns"] <= EASY_TURNS for item in LISTED["easy_train"] + LISTED["easy_test"])


def test_ids_are_names_and_agentgyms_excluded_tasks_are_excluded():
    check_ids(LISTED)

    assert all(item.id == f"{item.data['task']}:{item.data['variation']}" for item in ITEMS.values())
    assert not {task.number for task in all_tasks().values()} & set(EXCLUDED)
    assert len(all_tasks()) == 30 - len(EXCLUDED)


def test_the_table_of_variations_equals_the_simulators():
    world = SimulatorSession("chemistry-mix", 0)
    parts = {part: [numbers[0], numbers[-1] + 1] for part, numbers in world.variations().items()}
    world.close()
    assert all_tasks()["chemistry-mix"].parts == parts
    assert TABLE.read_text().count("number") == 30


def test_listing_tasks_needs_no_java():
    code = "from env_adapters.scienceworld.adapter import ScienceWorld as S; print(len(S().tasks('train')))"
    environment = {**os.environ, "PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "2312\n"
