"""List the environments of this package and of other libraries, and check or attack each of them.

    python -m tests.bench.ecosystems [SOURCE ...] [--attack] [--every N] [--out FILE]

The checks run in a process of their own with a time limit. A row of the output has the environment, its source, the
result of `check-env`, the seconds, and the reason if it does not play. With `--attack` a row has the kinds of the
findings of a short attack, and the first of each kind. Rows that the file has already are kept.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

from verl_agent.envs.registry import registered_envs

LIMIT_S = 240
FIELDS = ("source", "name", "result", "seconds", "reason")
CHECK = """
import json, sys
from verl_agent.envs.registry import make_env
from verl_agent.envs.testing import task_checks
from verl_agent.envs.testing.check import Report, check_sessions
from verl_agent.envs.testing.harness import Harness
from verl_agent.errors import AgentError
for name, options in json.load(sys.stdin):
    print(json.dumps({"begins": options["names"]}), flush=True)
    try:
        report, env = Report(), make_env(name, {"train": 4, "test": 4, **options})
        items = [split[0] for split in task_checks.list_all(env).values()]
        harness = Harness(env, items, 30, 0.5, env.deterministic)
        check_sessions(report, harness)
        harness.finish()
        found = [str(violation) for violation in report.violations]
        note = "" if env.seeded else "ignores seeds"
    except AgentError as error:
        found, note = [f"refused: {error}"], ""
    print("\\n" + json.dumps({"ends": options["names"], "found": found, "note": note}), flush=True)
"""
"""Program that runs the checks of `check-env` that need no other process, on the first task of each split.

Its result begins on a line of its own: a generator may print, as `bf` of reasoning-gym does."""

ATTACK = """
import json, sys
from verl_agent.envs.registry import make_env
from verl_agent.envs.testing.attack import attack_env
from verl_agent.errors import AgentError
for name, options in json.load(sys.stdin):
    print(json.dumps({"begins": options.get("names", name)}), flush=True)
    found, note = [], ""
    try:
        report = attack_env(make_env(name, options), items=8, turns=20, limit_s=12)
        found = [f"{one.kind}: {one.text}" for one in report.findings]
        note = f"{report.tasks} tasks"
    except AgentError as error:
        found = [f"refused: {error}"]
    print("\\n" + json.dumps({"ends": options.get("names", name), "found": found, "note": note}), flush=True)
"""
"""Program that attacks environments in the short form."""


def shipped() -> list[str]:
    """Return the environments of this package that play without a server and without options."""
    known = registered_envs().items()
    return sorted(
        name for name, package in known if package == "verl-agent" and name not in ("http", "openenv", "program")
    )


def two_seats() -> list[str]:
    """Return the games of OpenSpiel for two players whose states have texts and whose players move in turn."""
    import pyspiel

    kinds = [one for one in pyspiel.registered_games() if one.default_loadable and one.min_num_players == 2]
    return sorted(one.short_name for one in kinds if one.provides_information_state_string)


def gymnasium_ids(minigrid: bool) -> list[str]:
    """Return the ids of Gymnasium's registry, those of MiniGrid or all others."""
    import gymnasium
    import minigrid as package  # noqa: F401 - registers its environments

    return sorted(name for name in gymnasium.registry if name.startswith(("MiniGrid", "BabyAI")) is minigrid)


def generators() -> list[str]:
    """Return the generators of reasoning-gym."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def games() -> list[str]:
    """Return the games of TextArena, of all numbers of players, without the variants of its wrappers."""
    import textarena

    known = textarena.envs.registration.ENV_REGISTRY
    return sorted(name for name in known if f"{name}-raw" in known)


SOURCES: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "shipped": ("", shipped),
    "gymnasium": ("gymnasium", lambda: gymnasium_ids(False)),
    "minigrid": ("gymnasium", lambda: gymnasium_ids(True)),
    "reasoning_gym": ("reasoning_gym", generators),
    "textarena": ("textarena", games),
    "openspiel": ("openspiel", two_seats),
}
"""Adapter and list of names of each source; no adapter where the names are environments."""


def check(source: str, names: list[str], program: str) -> Iterator[dict[str, Any]]:
    """Check environments one after another in one process; one that hangs is killed, and the next ones go on."""
    while names:
        adapter = SOURCES[source][0]
        command = [sys.executable, "-W", "ignore", "-c", program]
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as process,
            ThreadPoolExecutor(1) as reader,
        ):
            assert process.stdin is not None and process.stdout is not None
            listed = [(adapter, {"names": name}) if adapter else (name, {}) for name in names]
            process.stdin.write(json.dumps(listed))
            process.stdin.close()
            current, begun = names[0], monotonic()
            while names:
                try:
                    line = reader.submit(process.stdout.readline).result(timeout=LIMIT_S)
                except TimeoutError:
                    line = ""
                    process.kill()
                event = json.loads(line) if line.startswith("{") else {}
                if line and "begins" in event:
                    current, begun = event["begins"], monotonic()
                elif not line or "ends" in event:
                    found = event.get("found", [f"no answer within {LIMIT_S} s, or the process died"])
                    kinds = list(dict.fromkeys(one.partition(":")[0] for one in found))
                    result = "plays" if not found else "refused" if kinds[0] == "refused" else "fails"
                    if program == ATTACK and result != "refused":
                        result = ", ".join(kinds) if line else "no answer"
                    seconds = round(monotonic() - begun, 1)
                    reason = " ".join("; ".join(found or [event.get("note", "")]).split())[:300]
                    yield dict(zip(FIELDS, (source, current, result, seconds, reason), strict=True))
                    names = names[names.index(current) + 1 :]
                    if not line:
                        break
            process.kill()


def main() -> None:
    """Check the environments of the chosen sources, write the rows and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", default=list(SOURCES))
    parser.add_argument("--attack", action="store_true", help="attack the rewards in the short form")
    parser.add_argument("--every", type=int, default=1, help="take only every N-th name of a source")
    parser.add_argument("--out", type=Path, default=Path("ecosystems.csv"))
    arguments = parser.parse_args()
    rows = list(csv.DictReader(arguments.out.open())) if arguments.out.exists() else []
    with arguments.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not rows:
            writer.writeheader()
        for source in arguments.sources:
            done = {row["name"] for row in rows if row["source"] == source}
            names = [name for name in SOURCES[source][1]()[:: arguments.every] if name not in done]
            for row in check(source, names, ATTACK if arguments.attack else CHECK):
                rows.append(row)
                writer.writerow(row)
                file.flush()
    counts = Counter((row["source"], row["result"]) for row in rows)
    for (source, result), count in sorted(counts.items()):
        sys.stdout.write(f"{source:15} {result:8} {count}\n")


if __name__ == "__main__":
    main()
