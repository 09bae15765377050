"""Planner that solves every goal: it chooses the recipes, the number of crafts and the raw materials.

A plan uses one recipe for every item and one item for every tag. Amounts can therefore be summed: one `get` fetches
each raw material, and every crafted item is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil

from env_adapters.textcraft.recipes import Recipe, RecipeBook, display_name, recipe_book


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One command of the game.

    Attributes:
        makes: id of the item that is fetched or crafted.
    """

    command: str
    makes: str


Choices = Mapping[str, str | Recipe]
"""Recipe chosen for each item, and item chosen for each tag."""


def plan_commands(goal: str) -> list[PlannedCommand]:
    """Return commands that craft `goal` in few turns: raw materials first, then crafts in order of dependency."""
    return commands(recipe_book(), goal, choose_recipes(goal))


@cache
def turns_needed(goal: str) -> int:
    """Return the number of turns of the plan for `goal`."""
    return len(plan_commands(goal))


def choose_recipes(goal: str) -> Choices:
    """Choose recipes and items by local search: change one choice at a time while that saves turns."""
    book = recipe_book()
    options = open_choices(book, goal)
    chosen: dict[str, str | Recipe] = {name: found[0] for name, found in options.items()}
    best = len(commands(book, goal, chosen))
    improved = True
    while improved:
        improved = False
        for name, found in options.items():
            for option in found:
                trial = chosen | {name: option}
                turns = len(commands(book, goal, trial))
                if turns < best:
                    best, chosen, improved = turns, trial, True
    return chosen


def open_choices(book: RecipeBook, goal: str) -> dict[str, list[Recipe] | list[str]]:
    """Return the recipes of each item and the members of each tag that can take part in crafting `goal`."""
    options: dict[str, list[Recipe] | list[str]] = {}
    names = [goal]
    for name in names:
        if name in options:
            continue
        if name in book.members:
            options[name] = book.members[name]
            names += book.members[name]
        elif name in book.recipes:
            options[name] = book.recipes[name]
            names += [ingredient for recipe in book.recipes[name] for ingredient in recipe.ingredients]
    return options


def commands(book: RecipeBook, goal: str, chosen: Choices) -> list[PlannedCommand]:
    """Return the commands that craft `goal` with the `chosen` recipes and items."""
    order = crafting_order(goal, chosen)
    amounts: dict[str, int] = {goal: 1}
    crafts: list[list[PlannedCommand]] = []
    for name in reversed(order):
        recipe = chosen.get(name)
        if not isinstance(recipe, Recipe):
            continue
        runs = ceil(amounts[name] / recipe.count)
        ingredients = {pick(chosen, ingredient): count for ingredient, count in recipe.ingredients.items()}
        for ingredient, count in ingredients.items():
            amounts[ingredient] = amounts.get(ingredient, 0) + runs * count
        crafts.append([PlannedCommand(Recipe(name, recipe.count, ingredients).line, name)] * runs)
    gets = [PlannedCommand(f"get {amounts[name]} {display_name(name)}", name) for name in order if book.fetchable(name)]
    return gets + [action for actions in reversed(crafts) for action in actions]


def pick(chosen: Choices, name: str) -> str:
    """Return the chosen item for a tag, or `name` itself for an item."""
    choice = chosen.get(name)
    return choice if isinstance(choice, str) else name


def crafting_order(goal: str, chosen: Choices) -> list[str]:
    """Return every item of the plan, each after its ingredients; `goal` is last."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        recipe = chosen.get(name)
        if isinstance(recipe, Recipe):
            for ingredient in recipe.ingredients:
                visit(pick(chosen, ingredient))
        order.append(name)

    visit(goal)
    return order
