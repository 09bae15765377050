"""Drawings of TextCraft's states for the viewer: inventory, and the crafting tree of the oracle's plan."""

from collections import Counter
from collections.abc import Mapping
from math import ceil

from env_adapters.textcraft.game import Game
from env_adapters.textcraft.oracle import Choices, choose, pick
from env_adapters.textcraft.recipes import Recipe, recipe_book, words
from verl_agent.envs.drawing import Drawing, Node, Table, Tree
from verl_agent.types import Episode


def draw(episode: Episode) -> list[list[Drawing]]:
    """Return inventory and crafting tree at the start and after each turn, by playing the actions again."""
    goal = episode.item.data["goal"]
    game, chosen = Game(recipe_book(), goal), choose(goal)
    obtained: Counter[str] = Counter()
    states = [_state(game, chosen, obtained)]
    for turn in episode.turns:
        if turn.action is not None and turn.carried_out:
            before = Counter(game.inventory)
            game.play(turn.action)
            obtained += game.inventory - before
        states.append(_state(game, chosen, obtained))
    return states


def _state(game: Game, chosen: Choices, obtained: Mapping[str, int]) -> list[Drawing]:
    carried = [(str(count), words(name)) for name, count in game.inventory.items()]
    tree = Tree("Crafting tree (one plan; ✓ was obtained)", [_node(game.goal, 1, chosen, obtained)])
    return [Table("Inventory", (), carried or [("empty",)]), tree]


def _node(name: str, amount: int, chosen: Choices, obtained: Mapping[str, int]) -> Node:
    recipe = chosen.get(name)
    children = []
    if isinstance(recipe, Recipe):
        runs = ceil(amount / recipe.count)
        amounts = {pick(chosen, ingredient): runs * count for ingredient, count in recipe.ingredients.items()}
        children = [_node(ingredient, count, chosen, obtained) for ingredient, count in amounts.items()]
    return Node(f"{amount} {words(name)}", obtained.get(name, 0) >= amount, children)
