"""Checks of `tasks()`: ids are unique, and every process lists the same items."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence

from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.parsing import shorten
from verl_agent.envs.registry import item_fault
from verl_agent.envs.testing.violation import ContractViolation, boundary
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

Listed = Mapping[str, Sequence[TaskItem]]
"""Items by split."""

ELSEWHERE = (
    "import sys, json, pickle; sys.path[:] = json.loads(sys.argv[1]); "
    "from verl_agent.envs.testing.task_checks import hash_of_tasks, list_all; "
    "print('listed', hash_of_tasks(list_all(pickle.load(sys.stdin.buffer))))"
)
"""Program that lists the tasks in another process, with the module search path of this one."""
ELSEWHERE_S = 120.0
"""Most seconds of the other process."""


def list_all(env: EnvAdapter) -> dict[str, list[TaskItem]]:
    """Return the items of every split."""
    listed: dict[str, list[TaskItem]] = {}
    for split in env.splits:
        call = f"tasks({split!r})"
        try:
            with boundary(call, "Every name in `splits` must list its items.", settings=True):
                listed[split] = list(env.tasks(split))
        except ConfigError as error:  # such as data that JSON does not keep: its message has the remedy
            got, _, remedy = str(error).rpartition(". ")
            raise ContractViolation(call, f"raised ConfigError: {got}", remedy) from error
        if not listed[split]:
            raise ContractViolation(call, "returned no items", "List at least one, or remove the name from `splits`.")
        for item in listed[split]:
            if fault := item_fault(item):
                raise ContractViolation(call, f"listed {fault[0]}", fault[1])
    if not listed:
        raise ContractViolation("splits", "is empty", "Name at least one split.")
    return listed


def check_names(listed: Listed, name: str | None) -> None:
    """Check that items carry the name of their environment; records and metrics are grouped by it."""
    expected = name or next(item.env for items in listed.values() for item in items)
    for split, items in listed.items():
        for item in items:
            if item.env != expected:
                advice = f"TaskItem.env is the registered name, {name!r}." if name else "Use one name for all items."
                raise ContractViolation(f"tasks({split!r})", f"lists {item.id!r} as one of env {item.env!r}", advice)


def check_ids(listed: Listed) -> None:
    """Check that an id occurs once in a split, names one item in all splits, and is not in both train and test."""
    known: dict[str, TaskItem] = {}
    for split, items in listed.items():
        call, ids = f"tasks({split!r})", {item.id for item in items}
        if len(ids) < len(items):
            raise ContractViolation(call, f"listed {len(items) - len(ids)} ids twice", "Give each item its own id.")
        twin = split[: -len("train")] + "test"
        both = sorted(ids & {item.id for item in listed.get(twin, ())}) if split.endswith("train") else []
        if both:
            raise ContractViolation(
                call, f"shares {len(both)} ids with {twin!r}, such as {both[0]!r}", "Keep the splits apart."
            )
        for item in items:
            if known.setdefault(item.id, item) != item:
                raise ContractViolation(
                    call, f"reuses the id {item.id!r} for another item", "Give each item its own id."
                )


def check_repeat(env: EnvAdapter, listed: Listed) -> None:
    """Check that a second call lists the same items in the same order."""
    if list_all(env) != listed:
        raise ContractViolation(
            "tasks()",
            "listed other items the second time",
            "Sort the items, and draw random numbers from a seeded generator.",
        )


def check_elsewhere(env: EnvAdapter, listed: Listed) -> None:
    """Check that another process, in which sets have another order, lists the same items in the same order."""
    path = json.dumps([entry or os.getcwd() for entry in sys.path])
    try:
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, path],
            input=pickle.dumps(env),
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": "4711"},
            timeout=ELSEWHERE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        got = f"took over {ELSEWHERE_S:g} s in another process"
        raise ContractViolation("tasks()", got, "Listing must be fast; every process lists the tasks.") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        got = f"failed in another process: {shorten(lines[-1], 300)}"
        raise ContractViolation("tasks()", got, "It must be importable on every machine.")
    if done.stdout.decode(errors="replace").rpartition("listed ")[2].strip() != hash_of_tasks(listed):
        advice = "Sort the elements of sets and folders, and draw random numbers from a generator with a fixed seed."
        raise ContractViolation("tasks()", "listed other items in another process", advice)


def hash_of_tasks(listed: Listed) -> str:
    """Return a hash of the items and their order."""
    rows = [
        [split, [[item.env, item.id, item.category, item.data] for item in items]] for split, items in listed.items()
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
