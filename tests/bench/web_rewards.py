"""Table of templates and attacks: the reward of oracles, corrected mistakes and wrong scripts on the embedded sites.

`python -m tests.bench.web_rewards [--templates buy,reply] [--tasks 1] [--sessions 4]` plays the scripts of the first
tasks of each template in a browser (`verl-agent sites up`). It prints one row for each template and fails if an oracle
or a corrected mistake earns nothing, or if a wrong script earns something. `--offline` judges answers and changes of
the sites without a browser, for all tasks, in seconds.
"""

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from env_adapters.web_sites.siteset import SiteSet
from env_adapters.web_sites.source import EmbeddedTasks
from env_adapters.web_sites.tasks import site_tasks
from env_adapters.web_sites.world import DEFAULT_SEED
from tests.support.playing import play_async
from tests.support.web_attacks import offline_outcomes
from verl_agent.types import TaskItem


@dataclass(frozen=True, slots=True)
class Outcome:
    """Reward of one attempt at a task.

    Attributes:
        template: name of the template.
        attempt: `oracle`, `corrected`, or the name of an attack.
        expected: reward that it must earn.
        reward: reward that it earned, or None if it could not be played.
        note: task, and the error if there was one.
    """

    template: str
    attempt: str
    expected: float
    reward: float | None
    note: str


def template_of(item: TaskItem) -> str:
    """Return the name of the template of an embedded task."""
    return item.id.split(":")[1]


def chosen_items(names: Sequence[str], count: int) -> list[TaskItem]:
    """Return the first `count` tasks of each template; no names select all templates."""
    source, found = EmbeddedTasks(), defaultdict(list)
    for item in [*source.items("train_all"), *source.items("test_all")]:
        found[template_of(item)].append(item)
    unknown = set(names) - set(found)
    if unknown:
        sys.exit(f"unknown templates: {', '.join(sorted(unknown))}")
    chosen = [item for name, items in found.items() if not names or name in names for item in items[:count]]
    return sorted(chosen, key=lambda item: not item.data["require_reset"])  # the longest episodes first


def attempts(item: TaskItem) -> list[tuple[str, Sequence[str], float]]:
    """Return name, script and expected reward of each attempt at a task, without those that only answer."""
    rows = [("oracle", item.data["oracle"], 1.0), ("corrected", item.data["corrected"], 1.0)]
    return rows + [(name, script, 0.0) for name, script in item.data["wrong"].items() if len(script) > 1]


async def play_all(items: Sequence[TaskItem], sessions: int) -> list[Outcome]:
    """Play all attempts at some tasks, several at a time."""
    source, limit = EmbeddedTasks(), asyncio.Semaphore(sessions)

    async def one(item: TaskItem, name: str, script: Sequence[str], expected: float) -> Outcome:
        async with limit:
            try:
                reward, note = await play_async(item, source, script), item.id
            except Exception as error:
                reward, note = None, f"{item.id}: {error}"
        if reward != expected:
            print(f"{template_of(item)}: {name} earned {reward}: {note}", file=sys.stderr, flush=True)  # noqa: T201
        return Outcome(template_of(item), name, expected, reward, note)

    return await asyncio.gather(*(one(item, *attempt) for item in items for attempt in attempts(item)))


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the lines of a table with one row for each template."""
    rows: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        rows[outcome.template].append(outcome)
    lines = [
        "| template | oracles | corrected mistakes | attacks that earned something | not played |",
        "|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        cells = [share(one for one in found if one.attempt == kind) for kind in ("oracle", "corrected")]
        attacks = [one for one in found if one.expected == 0.0]
        worked = [one.attempt for one in attacks if one.reward]
        names = f" ({', '.join(sorted(set(worked)))})" if worked else ""
        unplayed = sum(one.reward is None for one in found)
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {len(worked)} of {len(attacks)}{names} | {unplayed} |")
    return lines


def share(outcomes: Iterable[Outcome]) -> str:
    """Return how many attempts earned 1."""
    listed = list(outcomes)
    return f"{sum(one.reward == 1.0 for one in listed)} of {len(listed)}" if listed else ""


def main() -> None:
    """Play or judge the attempts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--templates", default="")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=4)
    options = parser.parse_args()
    if options.offline:
        outcomes = [Outcome(*row) for task in site_tasks() for row in offline_outcomes(task)]
    else:
        SiteSet.running().check(DEFAULT_SEED)
        names = [name for name in options.templates.split(",") if name]
        outcomes = asyncio.run(play_all(chosen_items(names, options.tasks), options.sessions))
    print("\n".join(table(outcomes)))  # noqa: T201 - the output of this command
    failed = [one for one in outcomes if one.reward != one.expected]
    print(f"{len(outcomes)} attempts, {len(failed)} with another reward than expected")  # noqa: T201
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
