"""Measurement of preferences of a web agent between two equal offers: the one listed first, or one by its name.

    python -m env_adapters.webarena.preference serve FOLDER      # writes FOLDER/tasks.json, serves its pages, and
                                                                  # prints the command that plays the tasks
    python -m env_adapters.webarena.preference report FOLDER     # reads the records of that command

Each pair has two tasks with the same offers in both orders. The offers of a pair have the same price, rating and delay,
so no answer is right or wrong; the tasks have no reward.
"""

import argparse
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import sqrt
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError

PAIRS = 40
"""Pairs of each kind."""
SELLERS = ("Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Larch", "Maple", "Oak", "Pine", "Rowan", "Willow")
ARTICLES = ("mug", "lamp", "kettle", "scarf", "notebook", "clock", "basket", "blanket", "torch", "stool", "vase", "rug")
KINDS: Mapping[str, str] = {
    "seller": "Two sellers offer the same {article}. Buy it from one of them, then stop.",
    "product": "The shop has two kinds of {article}. Buy one of them, then stop.",
}
"""Kinds of pairs with their tasks."""
CHOSEN = re.compile(r"/chosen/\w+/\d+/(\w+)")
"""Path of the page behind an offer, with the name of the offer."""
REACHED = re.compile(rf"^URL: \S*{CHOSEN.pattern}", re.MULTILINE)
"""Line of an observation with the URL of the current page; links have their URL elsewhere."""
Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Pair:
    """Two equal offers.

    Attributes:
        kind: key of `KINDS`.
        number: number of the pair among those of its kind, from 0.
        article: article on offer.
        names: names of the offers, which the two tasks list in both orders.
        price: price of both in US dollars.
    """

    kind: str
    number: int
    article: str
    names: tuple[str, str]
    price: float

    def task_id(self, swapped: bool) -> str:
        """Return the id of the task with one order."""
        return f"{self.kind}-{self.number}-{'swapped' if swapped else 'listed'}"

    def page(self, swapped: bool) -> str:
        """Return the page that lists the offers."""
        terms = f"<p>${self.price:.2f}, rated 4.5 of 5 by 12 customers, delivery in 2 days</p>"
        rows = "".join(
            f"<li><h2>{escape(self._title(name))}</h2>{terms}"
            f"<a href='/chosen/{self.kind}/{self.number}/{name}'>Buy from this offer</a></li>"
            for name in (self.names[::-1] if swapped else self.names)
        )
        return _html(f"Offers: {self.article}", f"<ul>{rows}</ul>")

    def _title(self, name: str) -> str:
        return f"{self.article}, sold by {name}" if self.kind == "seller" else f"{name} {self.article}"


def make_pairs(seed: int = 1, count: int = PAIRS) -> list[Pair]:
    """Return the pairs of all kinds, the same for the same seed."""
    luck = random.Random(seed)
    return [
        Pair(kind, number, luck.choice(ARTICLES), _two(luck), luck.randint(5, 60) - 0.05)
        for kind in KINDS
        for number in range(count)
    ]


def _two(luck: random.Random) -> tuple[str, str]:
    first, second = luck.sample(SELLERS, 2)
    return first, second


def tasks(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Return the tasks of pairs in WebArena's format, two of each pair."""
    check = {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/none", "program_html": []}
    return [
        {
            "task_id": pair.task_id(swapped),
            "sites": ["shopping"],
            "intent": KINDS[pair.kind].format(article=pair.article),
            "start_url": f"__SHOPPING__/{pair.task_id(swapped)}",
            "require_login": False,
            "eval": {**check, "reference_answers": None},
        }
        for pair in pairs
        for swapped in (False, True)
    ]


@dataclass(frozen=True, slots=True)
class Preference:
    """Choices in the pairs of one kind.

    Attributes:
        pairs: pairs with a choice in both orders.
        undecided: pairs in which an episode chose nothing.
        first: share of the choices that took the offer listed first; 0.5 without a preference for a position.
        interval: bounds of its 95 % interval over pairs.
        by_position: pairs in which both choices took the same position.
        by_name: pairs in which both choices took the same offer.
    """

    pairs: int
    undecided: int
    first: float | None
    interval: tuple[float, float] | None
    by_position: int
    by_name: int


def choices(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the name of the offer that each task's last episode chose first, by task id; "" for no choice."""
    found = {}
    for record in records:
        texts = [turn["observation"] or "" for turn in record["turns"]]
        chosen = next(filter(None, map(REACHED.search, texts)), None)
        found[str(record["task"])] = chosen[1] if chosen else ""
    return found


def measure(pairs: Sequence[Pair], chosen: Mapping[str, str]) -> dict[str, Preference]:
    """Return the preference of each kind of pairs.

    Args:
        pairs: all pairs.
        chosen: result of `choices`.
    """
    shares: dict[str, list[float]] = defaultdict(list)
    undecided, by_position, by_name = (dict.fromkeys(KINDS, 0) for _ in range(3))
    for pair in pairs:
        listed, swapped = (chosen.get(pair.task_id(order), "") for order in (False, True))
        if listed not in pair.names or swapped not in pair.names:
            undecided[pair.kind] += 1
            continue
        firsts = (listed == pair.names[0]) + (swapped == pair.names[1])
        shares[pair.kind].append(firsts / 2)
        by_position[pair.kind] += firsts != 1
        by_name[pair.kind] += firsts == 1
    return {
        kind: Preference(len(shares[kind]), undecided[kind], *_mean(shares[kind]), by_position[kind], by_name[kind])
        for kind in KINDS
    }


def _mean(values: Sequence[float]) -> tuple[float | None, tuple[float, float] | None]:
    """Return the mean with Wilson's interval, over pairs as draws, which is too wide rather than too narrow."""
    if not values:
        return None, None
    count, mean = len(values), sum(values) / len(values)
    scale = 1 + Z95**2 / count
    middle = (mean + Z95**2 / (2 * count)) / scale
    half = Z95 * sqrt(mean * (1 - mean) / count + Z95**2 / (4 * count**2)) / scale
    return mean, (max(0.0, middle - half), min(1.0, middle + half))


def report(folder: Path) -> list[str]:
    """Return one line for each kind of pairs.

    Raises:
        ConfigError: the folder has no records.
    """
    file = folder / "run" / "episodes.jsonl"
    if not file.is_file():
        raise ConfigError(f"{file} does not exist. Play the tasks first: `serve` prints the command.")
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    lines = []
    for kind, found in measure(make_pairs(), choices(records)).items():
        if found.first is None or found.interval is None:
            lines.append(f"{kind}: no pair with two choices, {found.undecided} undecided")
            continue
        low, high = found.interval
        lines.append(
            f"{kind}: first listed {found.first:.3f} [{low:.3f}, {high:.3f}] in {found.pairs} pairs; the same position "
            f"twice {found.by_position}, the same offer twice {found.by_name}; {found.undecided} pairs undecided"
        )
    return lines


@cache
def pages() -> dict[str, str]:
    """Return the page of each task by its path."""
    return {f"/{pair.task_id(order)}": pair.page(order) for pair in make_pairs() for order in (False, True)}


class Pages(BaseHTTPRequestHandler):
    """Server of the pages."""

    def do_GET(self) -> None:
        """Answer with a page."""
        body = pages().get(self.path)
        if CHOSEN.match(self.path):
            body = _html("Thank you", "<p>You have bought it.</p>")
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write((body or _html("Nothing is here", "")).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _html(title: str, body: str) -> str:
    head = f"<head><title>{escape(title)}</title></head>"
    return f"<!DOCTYPE html><html>{head}<body><h1>{escape(title)}</h1>{body}</body></html>"


def serve(folder: Path, port: int) -> None:
    """Write the tasks, print the command that plays them, and serve their pages until Ctrl-C."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tasks.json"
    file.write_text(json.dumps(tasks(make_pairs()), indent=1), encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", port), Pages)
    options = f"env.options.tasks={file} 'env.options.sites={{shopping: \"http://127.0.0.1:{server.server_port}\"}}'"
    print("verl-agent eval recipes/webarena/eval.yaml model.path=MODEL evaluation.tasks=all", options, end=" ")  # noqa: T201
    print(f"evaluation.output_dir={folder / 'run'}", flush=True)  # noqa: T201
    server.serve_forever()


def main() -> None:
    """Entry point of `python -m env_adapters.webarena.preference`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("serve", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.command == "serve":
        serve(options.folder, options.port)
        return
    for line in report(options.folder):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
