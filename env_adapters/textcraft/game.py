"""Rules of TextCraft: an inventory and three commands with their observations."""

import re
from collections import Counter

from env_adapters.textcraft.recipes import Recipe, RecipeBook, display_name, item_id
from verl_agent.envs.parsing import shorten
from verl_agent.types import StepResult

MAX_COMMAND = 500
"""Maximum length of a command in characters; valid commands have at most about 150."""
MAX_QUANTITY = 1000
"""Maximum amount of one `get`; no goal needs more than 324."""

GET = re.compile(r"get ([0-9]+) (.+)")
CRAFT = re.compile(r"craft (?:[0-9]+ )?(.+) using (.+)")
INGREDIENT = re.compile(r"([0-9]+) (.+)")


class ActionFailed(Exception):
    """Error for a valid command that cannot be executed; its message is the observation."""


class CraftingGame:
    """State of one episode: the goal and the inventory."""

    def __init__(self, book: RecipeBook, goal: str) -> None:
        self.book = book
        self.goal = goal
        self.inventory: Counter[str] = Counter()

    def play(self, action: str) -> StepResult:
        """Execute one command. Crafting the goal earns reward 1 and ends the episode."""
        command = normalize_command(action)
        name = command_name(command)
        try:
            if name == "inventory":
                return StepResult(self.describe_inventory())
            if name == "get" and (get := GET.fullmatch(command)):
                return StepResult(self.get(get[2], int(get[1])))
            if name == "craft" and (craft := CRAFT.fullmatch(command)):
                recipe = self.craft(craft[1], craft[2])
                done = recipe.output == self.goal
                return StepResult(f"Crafted {recipe.count} {recipe.output}", float(done), done)
        except ActionFailed as failure:
            kind = {"kind_action": 1.0} if self.names_kind(command) else {}
            return StepResult(str(failure), info={"failed_action": 1.0, **kind})
        return StepResult(f"Could not execute {shorten(command)}", info={"invalid_action": 1.0})

    def names_kind(self, command: str) -> bool:
        """Return True if a command asks for a kind of item, such as `planks`, as the list of commands shows it."""
        names = re.split(r",| using ", re.sub(r"^(?:get|craft) ", "", command))
        return any(item_id(re.sub(r"^ *[0-9]+ ", "", name)) in self.book.members for name in names)

    def get(self, item: str, count: int) -> str:
        """Add a raw material to the inventory.

        Raises:
            ActionFailed: the item can be crafted or is unknown, or the amount is out of range.
        """
        if not self.book.fetchable(item_id(item)):
            raise ActionFailed(f"Could not find {shorten(item)}")
        if not 1 <= count <= MAX_QUANTITY:
            raise ActionFailed(f"Could not get that many {shorten(item)}: ask for 1 to {MAX_QUANTITY}")
        self.inventory[item_id(item)] += count
        return f"Got {count} {item}"

    def craft(self, output: str, ingredients: str) -> Recipe:
        """Remove the ingredients of a recipe from the inventory and add its output.

        Raises:
            ActionFailed: an ingredient is missing, or no recipe takes these ingredients.
        """
        offered = parse_ingredients(ingredients)
        if any(self.inventory[name] < count for name, count in offered.items()):
            raise ActionFailed(f"Could not find enough items to craft {shorten(item_id(output))}")
        for recipe in self.book.recipes.get(item_id(output), []):
            if self.accepts(recipe, offered):
                self.inventory -= offered  # drops what reaches zero
                self.inventory[recipe.output] += recipe.count
                return recipe
        raise ActionFailed(f"Could not find a valid recipe for {shorten(display_name(item_id(output)))}")

    def accepts(self, recipe: Recipe, offered: Counter[str]) -> bool:
        """Return True if `offered` matches the recipe; a member of a tag matches the tag."""
        left = dict(offered)
        for name, count in recipe.ingredients.items():
            fits = [item for item in left if self.book.stands_for(item, name)]
            if len(fits) != 1 or left.pop(fits[0]) != count:
                return False
        return not left

    def describe_inventory(self) -> str:
        """Return the inventory as text, in the order of acquisition."""
        carried = " ".join(f"[{display_name(name)}] ({count})" for name, count in self.inventory.items())
        return f"Inventory: {carried or 'You are not carrying anything.'}"


def normalize_command(action: str) -> str:
    """Return an action in the form in which the game reads it: lower case, single spaces, no marks around it."""
    return " ".join(action[: MAX_COMMAND + 1].lower().split()).strip("\"'`* ").rstrip(". ")


def command_name(command: str) -> str:
    """Return the name of a normalized command: `get`, `craft`, `inventory`, or "" for any other text."""
    if len(command) > MAX_COMMAND:
        return ""
    if command.startswith("inventory"):
        return "inventory"
    return "get" if GET.fullmatch(command) else "craft" if CRAFT.fullmatch(command) else ""


def parse_ingredients(ingredients: str) -> Counter[str]:
    """Parse the ingredients of a craft command into amounts by item name.

    Raises:
        ActionFailed: an ingredient is not a number and a name.
    """
    offered: Counter[str] = Counter()
    for part in ingredients.split(","):
        found = INGREDIENT.fullmatch(part.strip())
        if found is None:
            raise ActionFailed(f"Wrong item format: {shorten(part.strip())}")
        offered[item_id(found[2])] += int(found[1])
    return offered
