"""TextCraft answers as the reference does, can be solved throughout, and is the same everywhere."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from env_adapters.textcraft.adapter import PROMPTS, TOOLS, TextCraft
from env_adapters.textcraft.game import MAX_QUANTITY, Game
from env_adapters.textcraft.recipes import build_book, recipe_book
from env_adapters.textcraft.tasks import EASY_TURNS, task_item
from tests.support.packages import path_without
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

GOLDEN = json.loads(Path(__file__).parents[1].joinpath("data/textcraft_golden.json").read_text())
ALL_ITEMS = [*TextCraft().tasks("train"), *TextCraft().tasks("test")]

FULLER = {"minecraft:coarse_dirt", "minecraft:crimson_trapdoor"}
"""Goals for which the reference shows fewer distractors than exist: it draws before it drops those that are needed."""


def start(goal: str, prompt: str = "full", distractors: int = 10) -> tuple[TextCraft, list[Message]]:
    env = TextCraft(prompt, distractors)
    return env, asyncio.run(env.reset(task_item(goal)))


def answers(goal: str, *replies: str) -> list[StepResult]:
    env, _ = start(goal)
    return [asyncio.run(env.step(reply)) for reply in replies]


def answer(reply: str) -> StepResult:
    return answers("minecraft:birch_wood", reply)[0]


def command_lines(messages: list[Message]) -> list[str]:
    first, *lines, blank, goal = messages[-1]["content"].split("\n")
    assert (first, blank, goal[:12]) == ("Crafting commands:", "", "Goal: craft ")
    return lines


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["goal_item"])
def test_observations_and_rewards_are_those_of_the_reference(golden):
    env, messages = start(golden["goal_item"])
    assert messages[-1]["content"].endswith(golden["goal_line"])
    for expected in golden["steps"]:
        got = asyncio.run(env.step(f"{expected['action']}"))
        assert (got.observation, got.reward, got.terminated) == (
            expected["observation"],
            expected["reward"],
            expected["done"],
        )


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["goal_item"])
def test_the_commands_shown_are_those_of_the_reference(golden):
    needed = {recipe.line for recipe in recipe_book().needed(golden["goal_item"])}
    shown = command_lines(start(golden["goal_item"])[1])
    assert needed <= set(golden["recipes_and_distractors"])
    assert needed <= set(shown)
    if golden["goal_item"] in FULLER:
        assert len(shown) > len(golden["recipes_and_distractors"])
    else:
        assert len(shown) == len(golden["recipes_and_distractors"])
    assert task_item(golden["goal_item"]).category == f"depth {golden['depth']}"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_oracle_solves_every_goal_through_the_text(prompt):
    solved = 0
    for item in ALL_ITEMS:
        env = TextCraft(prompt)
        asyncio.run(env.reset(item))
        steps = [asyncio.run(env.step(move.action)) for move in env.demonstration(item)]
        assert len(steps) == item.data["turns"]
        solved += sum(step.reward for step in steps) == 1.0 and steps[-1].terminated
    assert solved == 544


def test_counts_of_the_splits():
    splits = {split: TextCraft().tasks(split) for split in TextCraft.splits}
    assert {split: len(items) for split, items in splits.items()} == {
        "train": 444,
        "test": 100,
        "easy_train": 165,
        "easy_test": 110,
    }
    assert Counter(item.category for item in splits["test"]) == {
        "depth 1": 22,
        "depth 2": 54,
        "depth 3": 21,
        "depth 4": 3,
    }
    assert all(item.data["turns"] <= EASY_TURNS for split in ("easy_train", "easy_test") for item in splits[split])
    assert sum(item.data["turns"] >= 4 for item in splits["easy_test"]) == 52


def test_how_many_goals_need_a_long_horizon():
    assert [sum(item.data["turns"] > horizon for item in ALL_ITEMS) for horizon in (20, 30)] == [13, 2]


EVERYTHING_SHOWN = """
import asyncio, hashlib, random
from env_adapters.textcraft.adapter import TextCraft
random.seed()
env, digest = TextCraft(), hashlib.sha256()
for split in TextCraft.splits:
    for item in TextCraft().tasks(split):
        digest.update(repr((item, asyncio.run(env.reset(item)))).encode())
print(digest.hexdigest())
"""


def test_splits_and_prompts_do_not_depend_on_the_hash_seed():
    digest = hashlib.sha256()
    for split in TextCraft.splits:
        for item in TextCraft().tasks(split):
            digest.update(repr((item, asyncio.run(TextCraft().reset(item)))).encode())
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", EVERYTHING_SHOWN]
    other = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest.hexdigest()


@pytest.mark.parametrize("count", [0, 1, 5, 10])
def test_as_many_distractors_as_asked_for(count):
    goal = "minecraft:hopper_minecart"
    needed = {recipe.line for recipe in recipe_book().needed(goal)}
    shown = command_lines(start(goal, distractors=count)[1])
    assert len(shown) == len(set(shown)) == len(needed) + count


@pytest.mark.parametrize(
    ("reply", "observation", "measure"),
    [
        ("dance", "Could not execute dance", "invalid_action"),
        ("get -1 birch log", "Could not execute get -1 birch log", "invalid_action"),
        ("get 4 birch wood", "Could not find birch wood", "failed_action"),
        ("get 1 planks", "Could not find planks", "failed_action"),
        ("craft 1 stick using wood", "Wrong item format: wood", "failed_action"),
        ("get 0 birch log", "Could not get that many birch log: ask for 1 to 1000", "failed_action"),
        ("get 1000000000 birch log", "Could not get that many birch log: ask for 1 to 1000", "failed_action"),
    ],
)
def test_what_cannot_be_done_is_said_and_counted(reply, observation, measure):
    assert answer(reply) == StepResult(observation, info={measure: 1.0})


@pytest.mark.parametrize(
    "action",
    ["x" * 1_000_000, "get " + "9" * 1_000_000 + " birch log", "get 1 " + "y" * 400, "craft 1 x using " + "1 x, " * 90],
)
def test_long_actions_are_answered_briefly(action):
    assert len(answer(f"{action}").observation) < 200


def test_a_wrong_recipe_costs_nothing():
    steps = answers(
        "minecraft:birch_wood",
        f"get {MAX_QUANTITY} birch log",
        "craft 3 birch wood using 5 birch log",
        "inventory",
    )
    assert [step.observation for step in steps[1:]] == [
        "Could not find a valid recipe for birch wood",
        "Inventory: [birch log] (1000)",
    ]


def test_an_ingredient_offered_twice_is_taken_twice():
    steps = answers("minecraft:birch_wood", "get 2 birch log", "craft 3 birch wood using 2 birch log, 2 birch log")
    assert steps[-1].observation == "Could not find enough items to craft minecraft:birch_wood"


def test_crafting_takes_the_ingredients_and_leaves_the_rest():
    game = Game(recipe_book(), "minecraft:chest")
    for command in ("get 2 oak logs", "craft 4 oak planks using 1 oak logs"):
        game.play(command)
    assert game.play("inventory").observation == "Inventory: [oak logs] (1) [oak planks] (4)"


def test_a_kind_of_item_is_not_an_item_but_one_of_it_will_do():
    plank = ["get 2 oak logs", *["craft 4 oak planks using 1 oak logs"] * 2]
    tag, member = "craft 1 chest using 8 planks", "craft 1 chest using 8 oak planks"
    steps = answers("minecraft:chest", *plank, tag, member)
    assert steps[-2].observation == "Could not find enough items to craft minecraft:chest"
    assert steps[-1] == StepResult("Crafted 1 minecraft:chest", 1.0, True)


def test_the_goal_is_rewarded_once():
    craft = "craft 3 birch wood using 4 birch log"
    steps = answers("minecraft:birch_wood", "get 8 birch log", craft, craft)
    assert [(step.reward, step.terminated) for step in steps] == [(0.0, False), (1.0, True), (0.0, True)]


def test_of_two_recipes_that_form_a_cycle_the_first_stays():
    ingot = {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"item": "minecraft:nugget"}],
        "result": "minecraft:ingot",
    }
    nugget = {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"item": "minecraft:ingot"}],
        "result": "minecraft:nugget",
    }
    assert list(build_book(iter([ingot, nugget])).recipes) == ["minecraft:ingot"]


def test_the_oracle_says_what_it_does_and_why():
    first = TextCraft().demonstration(task_item("minecraft:birch_wood"))[0]
    assert first == DemoAction("get 4 birch log", "No command makes birch log, so I fetch all that I need.")


def test_every_move_is_one_of_the_tools():
    for item in TextCraft().tasks("test"):
        for move in TextCraft().demonstration(item):
            found = [tool.parse(move.action) for tool in TOOLS]
            assert [tool.render(one) for tool, one in zip(TOOLS, found, strict=True) if one is not None] == [
                move.action
            ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "cot"}, "env.options.prompt='cot' is unknown. Allowed: full, short."),
        ({"distractors": -1}, "env.options.distractors=-1 is not allowed. Allowed: a whole number >= 0."),
        ({"distractors": "10"}, "env.options.distractors='10' is not allowed. Allowed: a whole number >= 0."),
    ],
)
def test_unknown_options_are_refused_by_name(options, message):
    with pytest.raises(ConfigError) as error:
        TextCraft(**options)
    assert str(error.value) == message


def test_a_goal_that_does_not_exist_is_an_error_of_the_episode():
    with pytest.raises(EnvError, match="minecraft:bedrock"):
        asyncio.run(TextCraft().reset(TaskItem("textcraft", "minecraft:bedrock", {"goal": "minecraft:bedrock"})))


def test_without_the_recipes_the_message_says_what_to_install(tmp_path):
    code = "from env_adapters.textcraft.adapter import TextCraft; TextCraft().tasks('train')"
    command = [sys.executable, "-S", "-c", code]  # -S ignores site-packages
    path = {"PYTHONPATH": path_without("textcraft", tmp_path)}
    run = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert "ConfigError" in run.stderr
    assert "pip install 'verl-agent[textcraft]'" in run.stderr
