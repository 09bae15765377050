"""Test that TextCraft matches the reference, that its goals can be solved, and that it is deterministic."""

import asyncio
import json
from collections import Counter

import pytest

from env_adapters.textcraft.adapter import EASY_TURNS, TOOLS, TextCraft, goal_item
from env_adapters.textcraft.game import MAX_QUANTITY, CraftingGame
from env_adapters.textcraft.oracle import choose_recipes, plan_commands
from env_adapters.textcraft.recipes import Recipe, build_book, item_id, recipe_book
from tests import ROOT
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

GOLDEN = json.loads(ROOT.joinpath("tests/data/textcraft_golden.json").read_text())
ALL_ITEMS = [*TextCraft().tasks("train"), *TextCraft().tasks("test")]

MORE_DISTRACTORS = {"minecraft:coarse_dirt", "minecraft:crimson_trapdoor"}
"""Goals for which the reference shows too few distractors: it draws before it removes needed commands."""


def start(goal: str, prompt: str = "full", distractors: int = 10) -> tuple[TextCraft, list[Message]]:
    env = TextCraft(prompt, distractors)
    return env, asyncio.run(env.reset(goal_item(goal)))


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
def test_observations_and_rewards_equal_those_of_the_reference(golden):
    env, messages = start(golden["goal_item"])
    assert messages[-1]["content"].endswith(golden["goal_line"])
    for expected in golden["steps"]:
        step = asyncio.run(env.step(expected["action"]))
        assert (step.observation, step.reward, step.terminated) == (
            expected["observation"],
            expected["reward"],
            expected["done"],
        )


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["goal_item"])
def test_the_prompt_has_as_many_commands_as_the_reference(golden):
    needed = {recipe.line for recipe in recipe_book().needed(golden["goal_item"])}
    shown = command_lines(start(golden["goal_item"])[1])
    assert needed <= set(golden["recipes_and_distractors"])
    assert needed <= set(shown)
    if golden["goal_item"] in MORE_DISTRACTORS:
        assert len(shown) > len(golden["recipes_and_distractors"])
    else:
        assert len(shown) == len(golden["recipes_and_distractors"])
    assert goal_item(golden["goal_item"]).category == f"depth {golden['depth']}"


@pytest.mark.parametrize("prompt", ("full", "short"))
def test_the_oracle_solves_every_goal(prompt):
    solved = 0
    for item in ALL_ITEMS:
        env = TextCraft(prompt)
        asyncio.run(env.reset(item))
        steps = [asyncio.run(env.step(move.action)) for move in env.demonstration(item)]
        assert len(steps) == item.data["turns"]
        solved += sum(step.reward for step in steps) == 1.0 and steps[-1].terminated
    assert solved == 544


def test_splits_have_the_documented_numbers_of_goals():
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


def test_thirteen_goals_need_over_20_turns_and_two_over_30():
    assert [sum(item.data["turns"] > horizon for item in ALL_ITEMS) for horizon in (20, 30)] == [13, 2]


@pytest.mark.parametrize("count", [0, 1, 5, 10])
def test_the_option_sets_the_number_of_distractors(count):
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
        ("craft 1 stick using wood", "Wrong item format: wood", "failed_action"),
        ("get 0 birch log", "Could not get that many birch log: ask for 1 to 1000", "failed_action"),
        ("get 1000000000 birch log", "Could not get that many birch log: ask for 1 to 1000", "failed_action"),
    ],
)
def test_invalid_and_failed_actions_are_reported_and_counted(reply, observation, measure):
    assert answer(reply) == StepResult(observation, info={measure: 1.0})


@pytest.mark.parametrize(
    "action",
    ["x" * 1_000_000, "get " + "9" * 1_000_000 + " birch log", "get 1 " + "y" * 400, "craft 1 x using " + "1 x, " * 90],
)
def test_long_actions_get_short_observations(action):
    assert len(answer(action).observation) < 200


def test_a_wrong_recipe_leaves_the_inventory_unchanged():
    steps = answers(
        "minecraft:birch_wood", f"get {MAX_QUANTITY} birch log", "craft 3 birch wood using 5 birch log", "inventory"
    )
    assert [step.observation for step in steps[1:]] == [
        "Could not find a valid recipe for birch wood",
        "Inventory: [birch log] (1000)",
    ]


def test_amounts_of_a_repeated_ingredient_are_added_up():
    steps = answers("minecraft:birch_wood", "get 2 birch log", "craft 3 birch wood using 2 birch log, 2 birch log")
    assert steps[-1].observation == "Could not find enough items to craft minecraft:birch_wood"


def test_crafting_removes_only_its_ingredients():
    game = CraftingGame(recipe_book(), "minecraft:chest")
    for command in ("get 2 oak logs", "craft 4 oak planks using 1 oak logs"):
        game.play(command)
    assert game.play("inventory").observation == "Inventory: [oak logs] (1) [oak planks] (4)"


def test_an_ingredient_group_is_satisfied_by_a_member_but_not_by_its_name():
    plank = ["get 2 oak logs", *["craft 4 oak planks using 1 oak logs"] * 2]
    tag, member = "craft 1 chest using 8 planks", "craft 1 chest using 8 oak planks"
    steps = answers("minecraft:chest", *plank, tag, member)
    assert steps[-2].observation == "Could not find enough items to craft minecraft:chest"
    assert steps[-1] == StepResult("Crafted 1 minecraft:chest", 1.0, True)


def test_the_goal_is_rewarded_once():
    craft = "craft 3 birch wood using 4 birch log"
    steps = answers("minecraft:birch_wood", "get 8 birch log", craft, craft)
    assert [(step.reward, step.terminated) for step in steps] == [(0.0, False), (1.0, True), (0.0, True)]


def test_the_first_of_two_cyclic_recipes_is_kept():
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


def test_demonstrations_explain_their_actions():
    first = TextCraft().demonstration(goal_item("minecraft:birch_wood"))[0]
    assert first == DemoAction("get 4 birch log", "No command makes birch log, so I fetch all that I need.")


def test_every_demonstrated_action_matches_one_tool():
    for item in TextCraft().tasks("test"):
        for demo in TextCraft().demonstration(item):
            calls = [(tool, tool.parse(demo.action)) for tool in TOOLS]
            assert [tool.render(arguments) for tool, arguments in calls if arguments is not None] == [demo.action]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "cot"}, "env.options.prompt='cot' is not allowed. Allowed: full, short."),
        ({"distractors": -1}, "env.options.distractors=-1 is not allowed. Allowed: a whole number >= 0."),
        ({"distractors": "10"}, "env.options.distractors='10' is not allowed. Allowed: a whole number >= 0."),
    ],
)
def test_invalid_options_raise_config_error_naming_the_key(options, message):
    with pytest.raises(ConfigError) as error:
        TextCraft(**options)
    assert str(error.value) == message


def test_an_unknown_goal_raises_env_error():
    with pytest.raises(EnvError, match="minecraft:bedrock"):
        asyncio.run(TextCraft().reset(TaskItem("textcraft", "minecraft:bedrock", {"goal": "minecraft:bedrock"})))


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        ("get 1 planks", True),
        ("craft 4 stick using 2 planks", True),
        ("craft 1 white bed using 3 white wool, 3 planks", True),
        ("craft 4 stick using 2 oak planks", False),
        ("get 1 plank", False),
        ("dance with planks", False),
    ],
)
def test_an_action_that_names_a_kind_of_item_is_counted(reply, named):
    assert bool(answer(reply).info.get("kind_action")) is named


def played(item: TaskItem, kinds: str) -> float:
    """Return the reward of a policy that copies the commands which it is shown."""
    book, chosen = recipe_book(), choose_recipes(item.id)
    env = TextCraft(kinds=kinds)
    shown = command_lines(asyncio.run(env.reset(item)))
    reward = 0.0
    for planned in plan_commands(item.id):
        recipe, line = chosen.get(planned.makes), planned.command
        if isinstance(recipe, Recipe):
            line = (recipe if kinds == "named" else book.with_items(recipe)).line
            assert line in shown
        reward += asyncio.run(env.step(line)).reward
    return reward


def test_a_policy_that_copies_commands_fails_where_they_name_a_kind():
    """The data sheet names these counts."""
    solved = {split: sum(played(item, "named") for item in TextCraft().tasks(split)) for split in TextCraft.splits}
    assert solved == {"train": 360, "test": 89, "easy_train": 165, "easy_test": 110}


def test_with_items_every_command_of_the_prompt_is_accepted_as_it_is():
    book = recipe_book()
    for item in ALL_ITEMS:
        env = TextCraft(kinds="item")
        for line in command_lines(asyncio.run(env.reset(item))):
            output, ingredients = line.split(" ", 2)[2].split(" using ")
            offered = Counter(
                {item_id(part.split(" ", 1)[1]): int(part.split()[0]) for part in ingredients.split(", ")}
            )
            assert not offered.keys() & book.members.keys()
            assert any(env.game.accepts(recipe, offered) for recipe in book.recipes[item_id(output)]), line
    steps = [asyncio.run(env.step(one.action)) for one in env.demonstration(item)]
    assert steps[-1].terminated and steps[-1].reward == 1.0
