"""The rules of TextCraft: an inventory, three commands, and what each of them answers."""

import re
from collections import Counter

from env_adapters.textcraft.recipes import Recipe, RecipeBook, name_of, words
from verl_agent.envs.parsing import shorten
from verl_agent.types import StepResult

MAX_COMMAND = 500
"""Characters of the longest command that is read; the longest that can be meant has about 150."""
MAX_QUANTITY = 1000
"""Most of an item that one `get` gives; no goal takes more than 324."""

GET = re.compile(r"get ([0-9]+) (.+)")
CRAFT = re.compile(r"craft (?:[0-9]+ )?(.+) using (.+)")
INGREDIENT = re.compile(r"([0-9]+) (.+)")


class ActionFailed(Exception):
    """A command of the grammar that cannot be carried out; the message is the observation."""


class Game:
    """One goal and what has been gathered for it."""

    def __init__(self, book: RecipeBook, goal: str) -> None:
        """Begin with nothing in the inventory."""
        self.book = book
        self.goal = goal
        self.inventory: Counter[str] = Counter()

    def play(self, action: str) -> StepResult:
        """Carry out one command. Reward 1 and the end when it crafts the goal."""
        command = " ".join(action[: MAX_COMMAND + 1].lower().split()).strip("\"'`* ").rstrip(". ")
        if len(command) > MAX_COMMAND:
            return not_understood(command)
        try:
            if command.startswith("inventory"):
                return StepResult(self.describe_inventory())
            if get := GET.fullmatch(command):
                return StepResult(self.get(get[2], int(get[1])))
            if craft := CRAFT.fullmatch(command):
                recipe = self.craft(craft[1], craft[2])
                done = recipe.output == self.goal
                return StepResult(f"Crafted {recipe.count} {recipe.output}", float(done), done)
        except ActionFailed as failure:
            return StepResult(str(failure), info={"failed_action": 1.0})
        return not_understood(command)

    def get(self, item: str, count: int) -> str:
        """Fetch a raw material."""
        if not self.book.fetchable(name_of(item)):
            raise ActionFailed(f"Could not find {shorten(item)}")
        if not 1 <= count <= MAX_QUANTITY:
            raise ActionFailed(f"Could not get that many {shorten(item)}: ask for 1 to {MAX_QUANTITY}")
        self.inventory[name_of(item)] += count
        return f"Got {count} {item}"

    def craft(self, output: str, ingredients: str) -> Recipe:
        """Use up the ingredients of a recipe and add what it makes."""
        offered = read_offer(ingredients)
        if any(self.inventory[name] < count for name, count in offered.items()):
            raise ActionFailed(f"Could not find enough items to craft {shorten(name_of(output))}")
        for recipe in self.book.recipes.get(name_of(output), []):
            if self.accepts(recipe, offered):
                self.inventory -= offered  # drops what reaches zero
                self.inventory[recipe.output] += recipe.count
                return recipe
        raise ActionFailed(f"Could not find a valid recipe for {shorten(words(name_of(output)))}")

    def accepts(self, recipe: Recipe, offered: Counter[str]) -> bool:
        """Whether `offered` is what the recipe takes, a member of each tag standing for the tag."""
        left = dict(offered)
        for name, count in recipe.ingredients.items():
            fits = [item for item in left if self.book.stands_for(item, name)]
            if len(fits) != 1 or left.pop(fits[0]) != count:
                return False
        return not left

    def describe_inventory(self) -> str:
        """What is carried, in the order in which it was first gathered."""
        carried = " ".join(f"[{words(name)}] ({count})" for name, count in self.inventory.items())
        return f"Inventory: {carried or 'You are not carrying anything.'}"


def not_understood(command: str) -> StepResult:
    """The answer to what is no command."""
    return StepResult(f"Could not execute {shorten(command)}", info={"invalid_action": 1.0})


def read_offer(ingredients: str) -> Counter[str]:
    """How many of each item a craft command offers."""
    offered: Counter[str] = Counter()
    for part in ingredients.split(","):
        found = INGREDIENT.fullmatch(part.strip())
        if found is None:
            raise ActionFailed(f"Wrong item format: {shorten(part.strip())}")
        offered[name_of(found[2])] += int(found[1])
    return offered
