"""List the environments of Gymnasium, MiniGrid, reasoning-gym and TextArena, and check each against the contract.

    python -m tests.bench.ecosystems [SOURCE ...] [--out FILE]

Each check runs in a process of its own with a time limit. A row of the output has the environment, its source, the
result of `check-env`, the seconds, and the reason if it does not play. Rows that the file has already are kept.
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

LIMIT_S = 120
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
    "gymnasium": ("gymnasium", lambda: gymnasium_ids(False)),
    "minigrid": ("gymnasium", lambda: gymnasium_ids(True)),
    "reasoning_gym": ("reasoning_gym", generators),
    "textarena": ("textarena", games),
}
"""Adapter and list of names of each source."""


def check(source: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Check environments one after another in one process; one that hangs is killed, and the next ones go on."""
    while names:
        adapter = SOURCES[source][0]
        command = [sys.executable, "-W", "ignore", "-c", CHECK]
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as process,
            ThreadPoolExecutor(1) as reader,
        ):
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps([(adapter, {"names": name}) for name in names]))
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
                    result = "plays" if not found else "refused" if found[0].startswith("refused") else "fails"
                    seconds = round(monotonic() - begun, 1)
                    reason = " ".join((found or [event.get("note", "")])[0].split())[:300]
                    yield dict(zip(FIELDS, (source, current, result, seconds, reason), strict=True))
                    names = names[names.index(current) + 1 :]
                    if not line:
                        break
            process.kill()


def main() -> None:
    """Check the environments of the chosen sources, write the rows and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", default=list(SOURCES))
    parser.add_argument("--out", type=Path, default=Path("ecosystems.csv"))
    arguments = parser.parse_args()
    rows = list(csv.DictReader(arguments.out.open())) if arguments.out.exists() else []
    with arguments.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not rows:
            writer.writeheader()
        for source in arguments.sources:
            done = {row["name"] for row in rows if row["source"] == source}
            for row in check(source, [name for name in SOURCES[source][1]() if name not in done]):
                rows.append(row)
                writer.writerow(row)
                file.flush()
    counts = Counter((row["source"], row["result"]) for row in rows)
    for (source, result), count in sorted(counts.items()):
        sys.stdout.write(f"{source:15} {result:8} {count}\n")


if __name__ == "__main__":
    main()
