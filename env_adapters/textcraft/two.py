"""Two crafters: TextCraft for a team whose members know different recipes, and of whom one knows the goal."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from typing_extensions import override

from env_adapters.textcraft.adapter import TextCraft, shuffled_lines, split_goals
from env_adapters.textcraft.game import CRAFT, CraftingGame, command_name, normalize_command
from env_adapters.textcraft.oracle import plan_commands
from env_adapters.textcraft.recipes import display_name, item_id, recipe_book
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.arena import SEATS, Arena
from verl_agent.envs.base import Hosting, Requirement
from verl_agent.types import DemoAction, TaskItem

RULES = """You craft items in Minecraft with a partner, in turn, with one shared inventory. Each of you knows other \
crafting commands, and only the first crafter knows the goal. Actions:
- get <number> <item>: fetch an item that no crafting command makes.
- craft <number> <item> using <number> <ingredient>, ...: apply one of your own crafting commands.
- say <text>: tell your partner something.
- inventory: see what you carry."""
WAIT = "say I wait."
MAX_SAID = 300
"""Most characters of a message."""


class TwoCrafters(Arena):
    """TextCraft for two seats. Both earn 1 when the goal is crafted, which neither can do alone."""

    splits = TextCraft.splits
    action_format = LineFormat()
    ends_failed_tasks = False
    hosting = Hosting(threads=0, sessions=256)
    scripts = ("oracle", "idle")

    def __init__(self, seats: Sequence[str] = ("self", "script:oracle")) -> None:
        """Check the players.

        Args:
            seats: player of each seat. `script:oracle` plays its part of a plan, `script:idle` says that it waits.
        """
        self.check_players(seats, ("first crafter", "second crafter"))

    @classmethod
    @override
    def requirements(cls) -> Sequence[Requirement]:
        return TextCraft.requirements()

    @override
    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the goals of TextCraft for which both crafters are needed."""
        self.check_split(split)
        depths = recipe_book().depths
        chosen = [goal for goal in split_goals()[split] if not can_craft(goal, 1, goal)]
        return [TaskItem("two_crafters", goal, {"goal": goal}, f"depth {depths[goal]}") for goal in chosen]

    @override
    async def begin(self, item: TaskItem) -> None:
        self._game, self._turn, self._ended = CraftingGame(recipe_book(), item.data["goal"]), 0, False
        self._left = [action.command for action in plan_commands(self._game.goal)]
        self._news = [[crafter_text(self._game.goal, seat)] for seat in range(2)]

    @override
    def to_move(self) -> Sequence[int]:
        return () if self._ended else (self._turn % 2,)

    @override
    def observe(self, seat: int) -> str:
        text, self._news[seat] = "\n".join(self._news[seat]), []
        return text or "It is your turn."

    @override
    async def move(self, actions: Mapping[int, str]) -> Collection[int]:
        ((seat, action),) = actions.items()
        self._turn += 1
        command, invalid = normalize_command(action), False
        if command.startswith("say "):
            text = re.sub(r"^\W*say\s+", "", action, flags=re.IGNORECASE)  # marks before the command are ignored
            answer, heard = "Said.", f"Your partner says: {text.strip()[:MAX_SAID]}"
        elif not knows(self._game.goal, seat, command):
            answer, heard = "You do not know this crafting command.", ""
        else:
            result = self._game.play(command)
            answer, self._ended = result.observation, result.terminated
            invalid = bool(result.info.get("invalid_action"))
            heard = "" if invalid or command_name(command) == "inventory" else f"Your partner: {answer}"
            if command in self._left and not result.info:
                self._left.remove(command)
        self._news[seat].append(answer)
        self._news[1 - seat] += [heard] if heard else []
        return [seat] if invalid else []

    @override
    def results(self) -> Sequence[float]:
        return [1.0, 1.0]

    @override
    def forfeit(self, seat: int) -> Sequence[float]:
        return [0.0, 0.0]

    @override
    def script(self, name: str, seat: int) -> str:
        mine = name == "oracle" and self._left and knows(self._game.goal, seat, self._left[0])
        return self._left[0] if mine else WAIT

    @override
    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return the actions of the seat of the policy, beside a partner that plays the oracle."""
        if len(self.policy_seats) > 1:
            raise NotImplementedError(f"{SEATS} has two seats for policies; one is demonstrated beside script:oracle.")
        (own,), left, moves, turn = self.policy_seats, [one.command for one in plan_commands(item.data["goal"])], [], 0
        while left:
            mine = knows(item.data["goal"], turn % 2, left[0])
            moves += [DemoAction(left[0] if mine else WAIT)] if turn % 2 == own else []
            left, turn = left[1:] if mine else left, turn + 1
        return moves


@cache
def owner(goal: str, output: str) -> int:
    """Return the crafter who knows the commands for an item: the second for the goal, then in turn by depth."""
    depths = recipe_book().depths
    return (depths[goal] - depths[output] + 1) % 2


def knows(goal: str, seat: int, command: str) -> bool:
    """Return True if a crafter may play a command: each may do everything but the other's crafts."""
    craft = CRAFT.fullmatch(command)
    return craft is None or item_id(craft[1]) not in recipe_book().depths or owner(goal, item_id(craft[1])) == seat


@cache
def can_craft(goal: str, seat: int, name: str) -> bool:
    """Return True if a crafter alone can obtain an item or a member of a tag."""
    book = recipe_book()
    if name in book.members:
        return any(can_craft(goal, seat, member) for member in book.members[name])
    made = any(all(can_craft(goal, seat, one) for one in recipe.ingredients) for recipe in book.recipes.get(name, []))
    return book.fetchable(name) or (name in book.recipes and owner(goal, name) == seat and made)


def crafter_text(goal: str, seat: int) -> str:
    """Return the first text of a crafter: rules, own commands and, for the first one, the goal."""
    own = {recipe.line for recipe in recipe_book().needed(goal) if owner(goal, recipe.output) == seat}
    lines = shuffled_lines(goal, own)
    told = f"\n\nGoal: craft {display_name(goal)}." if seat == 0 else ""
    name = "second" if seat else "first"
    return f"{RULES}\nYou are the {name} crafter. Crafting commands that you know:\n" + "\n".join(lines) + told
