"""The contract of `tasks()`: what is listed is named once, travels as JSON, and is the same everywhere."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.parsing import shorten
from verl_agent.envs.testing.violation import ContractViolation, boundary
from verl_agent.types import TaskItem

Listed = Mapping[str, Sequence[TaskItem]]
"""Items by split."""

ELSEWHERE = (
    "import sys, json, pickle; sys.path[:] = json.loads(sys.argv[1]); "
    "from verl_agent.envs.testing.task_checks import digest, list_all; "
    "print('listed', digest(list_all(pickle.load(sys.stdin.buffer))))"
)
"""Lists the tasks in another process, with the search path of this one."""
ELSEWHERE_S = 120.0
"""Seconds that the other process may take."""


def list_all(env: EnvAdapter) -> dict[str, list[TaskItem]]:
    """The items of every split."""
    listed: dict[str, list[TaskItem]] = {}
    for split in env.splits:
        call = f"tasks({split!r})"
        with boundary(call, "Every name in `splits` must list its items."):
            listed[split] = list(env.tasks(split))
        if not listed[split]:
            raise ContractViolation(call, "returned no items", "List at least one, or take the name out of `splits`.")
        for item in listed[split]:
            if not isinstance(item, TaskItem) or not isinstance(item.id, str) or not item.id:
                raise ContractViolation(call, f"listed {shorten(repr(item))}", "List TaskItems whose id is a text.")
    if not listed:
        raise ContractViolation("splits", "is empty", "Name at least one split.")
    return listed


def check_names(listed: Listed, name: str | None) -> None:
    """Items carry the name of their environment, which records and metrics are sorted by.

    Args:
        listed: the items.
        name: registered name of the environment; None if it has none yet.
    """
    wanted = name or next(item.env for items in listed.values() for item in items)
    for split, items in listed.items():
        for item in items:
            if item.env != wanted:
                advice = f"TaskItem.env is the registered name, {name!r}." if name else "One environment, one name."
                raise ContractViolation(f"tasks({split!r})", f"lists {item.id!r} as one of env {item.env!r}", advice)


def check_ids(listed: Listed) -> None:
    """An id occurs once in a split, means the same item in all, and is never in both train and test."""
    known: dict[str, TaskItem] = {}
    for split, items in listed.items():
        call, ids = f"tasks({split!r})", {item.id for item in items}
        if len(ids) < len(items):
            raise ContractViolation(
                call, f"listed {len(items) - len(ids)} ids twice", "Give each item an id of its own."
            )
        twin = split[: -len("train")] + "test"
        both = sorted(ids & {item.id for item in listed.get(twin, ())}) if split.endswith("train") else []
        if both:
            raise ContractViolation(
                call, f"shares {len(both)} ids with {twin!r}, such as {both[0]!r}", "Keep them apart."
            )
        for item in items:
            if known.setdefault(item.id, item) != item:
                raise ContractViolation(call, f"reuses the id {item.id!r} for another item", "One id, one item.")


def check_json(listed: Listed) -> None:
    """The data of an item survives being written and read, since it travels between processes."""
    advice = "Use only texts, finite numbers, booleans, None, lists and dicts of those."
    for split, items in listed.items():
        for item in items:
            call = f"tasks({split!r})"
            with boundary(f"{call} has item {item.id!r}, whose data", advice):
                data = dict(item.data)
                if json.loads(json.dumps(data, allow_nan=False)) != data:
                    raise ContractViolation(call, f"has data that JSON changes in item {item.id!r}", advice)


def check_repeat(env: EnvAdapter, listed: Listed) -> None:
    """The same items in the same order, every time."""
    if list_all(env) != listed:
        raise ContractViolation(
            "tasks()", "listed other items the second time", "Sort, and draw from a seeded generator."
        )


def check_elsewhere(env: EnvAdapter, listed: Listed) -> None:
    """The same items in the same order in another process, where sets of texts have another order.

    Args:
        env: the environment; it can be pickled.
        listed: its items in this process.
    """
    sent = pickle.dumps(env)
    path = json.dumps([entry or os.getcwd() for entry in sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, path],
        input=sent,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        timeout=ELSEWHERE_S,
        check=False,
    )
    found = done.stdout.decode(errors="replace").rpartition("listed ")[2].strip()
    if done.returncode:
        why = shorten((done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1], 300)
        raise ContractViolation(
            "tasks()", f"failed in another process: {why}", "It must be importable on every machine."
        )
    if found != digest(listed):
        advice = "Sort what comes out of a set or a folder, and draw from a generator with a fixed seed."
        raise ContractViolation("tasks()", "listed other items in another process", advice)


def digest(listed: Listed) -> str:
    """A number for a listing, its order included."""
    rows = [
        [split, [[item.env, item.id, item.category, item.data] for item in items]] for split, items in listed.items()
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
