"""Benchmark of learning from corrections: a tiny model of TextCraft, with the oracle in the place of a person.

python -m tests.bench.learning.corrections --seeds 8

Arms, all with the same first demonstrations and the same number of turns of the expert:

* `cloning`: the expert plays whole episodes, and the model learns from them.
* `edits`: the model plays, and the expert writes another action wherever the model's is not its own. The turns that it
  writes count; those that it approves are learned from too.
* `takeovers`: the expert notices an error late, by a failed or a repeated action, and then takes over for three turns.
  Only the turns that it writes count and are learned from, in states that the model reached (DAgger, arXiv 1011.0686).

An edit keeps an episode on the expert's path. If approvals counted too, `edits` would have the data of `cloning`.

Episodes, decisions and records are those of the product: `play` with an overseer, and `learned_turns` for the data.
The model chooses among candidate commands, so that its size is not the limit.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import ClassVar, Literal
from zlib import crc32

import torch
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from env_adapters.textcraft.adapter import TextCraft
from env_adapters.textcraft.oracle import choose, crafting_order, pick, turns_needed
from env_adapters.textcraft.recipes import Recipe, name_of, recipe_book, words
from tests import ROOT
from verl_agent.agents.plain import Act
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.rollout.oversight import Overseer, Proposal
from verl_agent.rollout.person import Answer, Person
from verl_agent.rollout.policy import Policy
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.training.offline.selection import learned_turns
from verl_agent.types import Author, Message, Reply, TaskItem

BUDGETS = (20, 40, 80, 160)
"""Turns of the expert after which the model is trained anew and measured."""
HELD_OUT, MAX_TURNS, TAKEN, MOST, OTHERS = 60, 16, 3, 4, 6
"""Held-out tasks, turn limit, turns of a takeover, most of an item fetched at once, and recipes that are not needed."""
BUCKETS, HIDDEN, EPOCHS = 1 << 12, 16, 80
ARMS = ("cloning", "edits", "takeovers")
Example = tuple[list[list[int]], int]
"""Features of each candidate, and the index of the expert's action."""


@cache
def recipes_of(goal: str) -> dict[str, Recipe]:
    """Return the expert's recipe of each item on the way to a goal, with items in place of tags."""
    chosen, found = choose(goal), {}
    for name in crafting_order(goal, chosen):
        recipe = chosen.get(name)
        if isinstance(recipe, Recipe):
            ingredients = {pick(chosen, ingredient): count for ingredient, count in recipe.ingredients.items()}
            found[name] = Recipe(name, recipe.count, ingredients)
    return found


@cache
def offered(goal: str) -> list[Recipe]:
    """Return the recipes of which the candidates are: the needed ones, and others that use the same items."""
    book, needed = recipe_book(), recipes_of(goal)
    uses = {other.line: other for recipe in needed.values() for name in recipe.ingredients for other in book.uses[name]}
    others = [
        other for other in uses.values() if other.output not in needed and not book.members.keys() & other.ingredients
    ]
    return [*needed.values(), *sorted(others, key=lambda other: crc32(f"{goal} {other.line}".encode()))[:OTHERS]]


def next_action(carried: Counter[str], name: str, amount: int, recipes: dict[str, Recipe]) -> str:
    """Return the expert's next command towards `amount` of an item, from what is carried."""
    if name not in recipes:
        return f"get {min(amount - carried[name], MOST)} {words(name)}"
    recipe = recipes[name]
    runs = ceil((amount - carried[name]) / recipe.count)
    for ingredient, count in recipe.ingredients.items():
        if carried[ingredient] < runs * count:
            return next_action(carried, ingredient, runs * count, recipes)
    return recipe.line


def carried_after(messages: Sequence[Message], goal: str) -> Counter[str]:
    """Return the inventory that follows from the actions and their observations."""
    carried: Counter[str] = Counter()
    lines = {recipe.line: recipe for recipe in offered(goal)}
    for reply, answer in zip(messages[2::2], messages[3::2], strict=False):
        action = reply["content"].removeprefix("Action: ")
        if answer["content"].startswith("Got"):
            _, number, item = action.split(" ", 2)
            carried[name_of(item)] += int(number)
        elif answer["content"].startswith("Crafted"):
            carried[lines[action].output] += lines[action].count
            carried.subtract(lines[action].ingredients)
    return carried


def features(messages: Sequence[Message], goal: str) -> tuple[list[str], list[list[int]]]:
    """Return the candidate commands and the hashed features of each.

    Args:
        messages: conversation up to an observation.
        goal: id of the item to craft.
    """
    carried, played = carried_after(messages, goal), actions_in(messages)
    ended = messages[-1]["content"].split()[0] if played else "begin"
    recipes, named = offered(goal), dict[str, list[str]]()
    wanted = {name: recipe for recipe in recipes for name in recipe.ingredients}
    for recipe in recipes:
        have = sum(carried[name] >= count for name, count in recipe.ingredients.items()) - len(recipe.ingredients)
        user = wanted.get(recipe.output)
        aim = "goal" if recipe.output == goal else "for goal" if user and user.output == goal else str(user is not None)
        own = carried[recipe.output] > 0
        named[recipe.line] = [f"craft {aim} {have == 0} {own}", f"craft {max(have, -2)}", f"craft {aim} {own}"]
        for name, count in recipe.ingredients.items():
            if recipe_book().fetchable(name):
                for number in range(1, MOST + 1):
                    lacks = count - carried[name]
                    fit = "fits" if number == lacks else "less" if number < lacks else "more"
                    key = f"get {number} {words(name)}"
                    named.setdefault(key, []).extend(
                        [f"get {aim} {fit} {lacks > 0}", f"get {fit} {number}", f"get {aim}"]
                    )
    for action, names in named.items():
        again = f"{played.count(action)} {bool(played) and played[-1] == action} {ended}"
        kind = action.split()[0]
        names += [f"{kind} {again}", f"{kind} {ended}", *(f"{kind} {word}" for word in action.split()[2:4])]
    rows = [[crc32(name.encode()) % BUCKETS for name in names] for names in named.values()]
    return list(named), rows


class Scorer(torch.nn.Module):
    """Scores actions: the sum of embeddings of their features, a hidden layer, and one output."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.features = torch.nn.EmbeddingBag(BUCKETS, HIDDEN, mode="sum")
        self.out = torch.nn.Linear(HIDDEN, 1)
        torch.nn.init.normal_(self.features.weight, std=0.3)

    def forward(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the scores of actions, float `(actions,)`."""
        return self._score(*_flat(rows))

    def _score(self, features: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.features(features, starts)))[:, 0]

    def fit(self, examples: Sequence[Example]) -> None:
        """Minimize the cross-entropy of the expert's actions among the available ones."""
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        flat, places = _flat([row for actions, _ in examples for row in actions])
        owner = torch.tensor([number for number, (actions, _) in enumerate(examples) for _ in actions])
        starts = torch.tensor([0, *(len(actions) for actions, _ in examples)]).cumsum(0)[:-1]
        chosen = starts + torch.tensor([index for _, index in examples])
        for _ in range(EPOCHS):
            scores = self._score(flat, places)
            sums = torch.zeros(len(examples)).index_add(0, owner, scores.exp())
            loss = (sums.log() - scores[chosen]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _flat(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features of all rows, and the place at which each row begins."""
    starts = torch.tensor([0, *map(len, rows)]).cumsum(0)[:-1]
    return torch.tensor([feature for row in rows for feature in row]), starts


class ModelPolicy(Policy):
    """Policy of one episode that takes the action with the highest score."""

    def __init__(self, model: Scorer, goal: str) -> None:
        self._model, self._goal = model, goal

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        actions, rows = features(messages, self._goal)
        with torch.no_grad():
            return Reply(f"Action: {actions[int(self._model(rows).argmax())]}")


class Expert(Person):
    """The oracle in the place of a person, which plans anew from the state of the session, and edits single actions.

    Args:
        env: session of the episode.
        budget: turns that it may write; then the episode ends.
    """

    author: ClassVar[Literal["person", "oracle"]] = "oracle"

    def __init__(self, env: TextCraft, budget: int) -> None:
        super().__init__()
        self._env, self.left = env, budget

    @override
    async def ask(self, proposal: Proposal, refusal: str) -> Answer:
        if self.left < 1:
            return Answer("end", reason="the expert has no turns left.")
        game = self._env.game
        action = next_action(game.inventory, game.goal, 1, recipes_of(game.goal))
        answer = self.decide(proposal, action)
        self.left -= answer.decision != "approve"
        return answer

    def decide(self, proposal: Proposal, action: str) -> Answer:
        """Return the answer to a proposal, where the expert's own action is `action`."""
        return Answer("approve") if action == proposal.action else Answer("edit", action)


class Demonstrator(Expert):
    """Expert that plays whole episodes: it edits every action, also one that is its own."""

    @override
    def decide(self, proposal: Proposal, action: str) -> Answer:
        return Answer("edit", action)


class LateExpert(Expert):
    """Expert that takes over when an action has failed or is repeated."""

    @override
    def decide(self, proposal: Proposal, action: str) -> Answer:
        if proposal.reply is None:
            return Answer("edit", action)
        failed = proposal.observation.startswith("Could not")
        repeated = proposal.action in [turn.action for turn in proposal.episode.turns]
        if action != proposal.action and (failed or repeated):
            return Answer("take_over", action, turns=TAKEN)
        return Answer("approve")


EXPERTS = {"cloning": Demonstrator, "edits": Expert, "takeovers": LateExpert}


def actions_in(messages: Sequence[Message]) -> list[str]:
    """Return the actions of the replies."""
    return [message["content"].removeprefix("Action: ") for message in messages if message["role"] == "assistant"]


def run(item: TaskItem, env: TextCraft, model: Scorer, overseer: Overseer | None) -> EpisodeRecord:
    """Play one episode and return its record."""
    policy, limits = ModelPolicy(model, item.data["goal"]), EpisodeLimits(MAX_TURNS, timeout_s=None)
    episode = asyncio.run(play(item, env, Act(env.action_format), policy, limits, overseer))
    meta = EpisodeMeta("collection", "train", 0, item.id, 0, datetime.now(UTC), episode.seconds)
    return to_record(episode, meta)


def examples_of(record: EpisodeRecord, authors: Sequence[Author]) -> list[Example]:
    """Return the turns to learn from: reviewed ones of the authors."""
    found, turns = [], record["turns"]
    for number, (turn, learned) in enumerate(zip(turns, learned_turns(turns, authors), strict=True)):
        if learned and "review" in turn:
            messages = record["messages"][: record["prompt_length"] + 2 * number]
            actions, rows = features(messages, record["data"]["goal"])
            if turn["action"] in actions:
                found.append((rows, actions.index(turn["action"])))
    return found


def study(arm: str, seed: int) -> list[float]:
    """Return the success on held-out tasks at each of `BUDGETS`."""
    torch.set_num_threads(1)
    env, luck = TextCraft(), random.Random(seed)
    items = [item for item in env.tasks("train") if 3 <= turns_needed(item.data["goal"]) <= 8]
    luck.shuffle(items)
    held_out, items = items[:HELD_OUT], items[HELD_OUT:]
    examples: list[Example] = []
    model, success = Scorer(seed), []
    spent = 0
    for budget in BUDGETS:
        clones = arm == "cloning" or not success  # all arms begin with demonstrations
        while spent < budget:
            session = env.new_session()
            expert = EXPERTS["cloning" if clones else arm](session, budget - spent)
            authors: list[Author] = ["oracle"] if arm == "takeovers" else ["oracle", "policy"]
            examples += examples_of(run(items.pop(), session, model, expert), authors)
            spent = budget - expert.left
        model = Scorer(seed)
        model.fit(examples)
        success.append(fmean(run(item, env.new_session(), model, None)["success"] for item in held_out))
    return success


def main() -> None:
    """Run the missing studies, and print and store the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/bench_corrections")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "success.json"
    done: dict[str, list[float]] = json.loads(file.read_text()) if file.is_file() else {}
    names = [(arm, seed) for seed in range(1, options.seeds + 1) for arm in ARMS]
    missing = [(arm, seed) for arm, seed in names if f"{arm} {seed}" not in done]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for (arm, seed), success in zip(
            missing, pool.map(study, *zip(*missing, strict=True)) if missing else (), strict=True
        ):
            done[f"{arm} {seed}"] = success
            file.write_text(json.dumps(done, indent=1))
    report(done, options.seeds, Console())


def report(done: dict[str, list[float]], seeds: int, console: Console) -> None:
    """Print mean success, and the paired difference to cloning with its 95 % interval over seeds."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    table = Table("expert turns", *ARMS, *(f"{arm} - cloning" for arm in ARMS[1:]), title=f"{seeds} seeds, {commit}")
    for place, budget in enumerate(BUDGETS):
        of_arm = {arm: [done[f"{arm} {seed}"][place] for seed in range(1, seeds + 1)] for arm in ARMS}
        cells = [f"{fmean(values):.3f}" for values in of_arm.values()]
        for arm in ARMS[1:]:
            gaps = [own - base for own, base in zip(of_arm[arm], of_arm["cloning"], strict=True)]
            half = T95.get(seeds, 1.96) * stdev(gaps) / seeds**0.5 if seeds > 1 else float("nan")
            cells.append(f"{fmean(gaps):+.3f} ± {half:.3f}")
        table.add_row(str(budget), *cells)
    console.print(table)


T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 12: 2.20, 16: 2.13}
"""Quantiles of Student's t distribution for 95 % intervals, by the number of seeds."""


if __name__ == "__main__":
    main()
