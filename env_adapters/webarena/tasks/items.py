"""Reading and validation of tasks in WebArena's JSON format, and their conversion to task items."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from env_adapters.webarena.grading.answers import BRIEF_ANSWER, NUMBER_VALUES
from env_adapters.webarena.grading.helpers import parse_call
from env_adapters.webarena.grading.urls import EXACT_URL
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem

ENV = "webarena"
SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia")
CATEGORIES = {"shopping": "Shopping", "shopping_admin": "CMS", "map": "Maps", "gitlab": "GitLab", "reddit": "Reddit"}
"""Category by the site of a task; the paper joins GitLab and Reddit. Tasks of several sites are in `SEVERAL_SITES`."""
SEVERAL_SITES = "Several sites"
URL_RULES = ("GOLD in PRED", EXACT_URL)
"""Values of `url_note`: WebArena's rule, and the exact comparison."""
KINDS = ("string_match", "url_match", "program_html")
MATCHES = ("exact_match", "must_include", "fuzzy_match")
PACKAGES = ("webarena", "webarena_verified/assets/dataset")
"""Folders with the 812 tasks in the packages libwebarena and webarena-verified."""
FILE = "test.raw.json"
INSTALL_COMMAND = "pip install --no-deps libwebarena==0.0.5"


def read_items(file: Path) -> list[TaskItem]:
    """Return the tasks of a file, in its order.

    Raises:
        ConfigError: the file is not a list of tasks, or a task is invalid.
    """
    return list(_read_items(file.resolve(), file.stat().st_mtime_ns if file.is_file() else 0))


@cache
def _read_items(file: Path, modified_ns: int) -> tuple[TaskItem, ...]:
    try:
        tasks = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"the task file {file} cannot be read: {error}.") from error
    if not isinstance(tasks, list) or not tasks:
        raise ConfigError(f"the task file {file} must hold a list of tasks in WebArena's JSON.")
    for index, task in enumerate(tasks):
        if not isinstance(task, dict) or "task_id" not in task:
            raise ConfigError(f"{file}: entry {index} has no task_id.")
        validate_task(task, f"{file}: task {task['task_id']}")
    return tuple(map(make_item, tasks))


ANSWER_RULES: Mapping[str, tuple[str, str]] = {
    "exact_urls": ("url_note", EXACT_URL),
    "brief_answers": ("answer_rule", BRIEF_ANSWER),
    "number_values": ("number_rule", NUMBER_VALUES),
}
"""Field of an evaluator and its value, by the option of `access` that departs from WebArena's rules."""


def with_rules(item: TaskItem, rules: Sequence[str]) -> TaskItem:
    """Return a task whose evaluator departs from WebArena's rules by these options."""
    changed = dict(ANSWER_RULES[name] for name in rules)
    return replace(item, data={**item.data, "eval": {**item.data["eval"], **changed}})


def make_item(task: Mapping[str, Any]) -> TaskItem:
    """Return a valid task as an item with the task as its data."""
    sites = task["sites"]
    category = CATEGORIES.get(sites[0], SEVERAL_SITES) if len(sites) == 1 else SEVERAL_SITES
    return TaskItem(ENV, str(task["task_id"]), dict(task), task.get("category") or category)


def installed_task_file() -> Path:
    """Return the file with WebArena's 812 tasks in an installed package."""
    for path in PACKAGES:
        package, *folders = path.split("/")
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            file = Path(root).joinpath(*folders, FILE)
            if file.is_file():
                return file
    raise ConfigError(
        f"WebArena's tasks were not found. Install them: {INSTALL_COMMAND}; or set env.options.tasks to a task file."
    )


def validate_task(task: Mapping[str, Any], label: str) -> None:
    """Check that a task can be started and evaluated.

    Raises:
        ConfigError: a field is missing or of the wrong type, or an evaluator is unknown.
    """
    _field(task, "intent", str, label)
    _field(task, "start_url", str, label)
    sites = _field(task, "sites", list, label)
    if not sites or not all(isinstance(site, str) for site in sites):
        raise ConfigError(f"{label}: sites must be names of sites, got {sites!r}.")
    evaluation = _field(task, "eval", dict, label)
    kinds = _field(evaluation, "eval_types", list, f"{label}: eval")
    if not kinds:
        raise ConfigError(f"{label}: eval.eval_types is empty. Allowed: {', '.join(KINDS)}.")
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"{label}: eval.eval_types has {kind!r}. {did_you_mean(str(kind), KINDS)}")
    if "string_match" in kinds:
        references = _field(evaluation, "reference_answers", dict, f"{label}: eval")
        _check_references(references, f"{label}: eval.reference_answers")
    if "url_match" in kinds:
        if not _field(evaluation, "reference_url", str, f"{label}: eval"):
            raise ConfigError(f"{label}: eval.reference_url is empty.")
        rule = evaluation.get("url_note") or URL_RULES[0]
        if rule not in URL_RULES:
            raise ConfigError(f"{label}: eval.url_note is {rule!r}. Allowed: {', '.join(map(repr, URL_RULES))}.")
    if "program_html" in kinds:
        targets = _field(evaluation, "program_html", list, f"{label}: eval")
        if not targets:
            raise ConfigError(f"{label}: eval.program_html is empty.")
        for index, target in enumerate(targets):
            _check_target(target, f"{label}: eval.program_html[{index}]")


def _check_references(references: Mapping[str, Any], label: str) -> None:
    if not references:
        raise ConfigError(f"{label} is empty. Allowed: {', '.join(MATCHES)}.")
    for match, value in references.items():
        if match not in MATCHES:
            raise ConfigError(f"{label} has {match!r}. {did_you_mean(match, MATCHES)}")
        is_list = isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)
        valid = isinstance(value, str) if match == "exact_match" else is_list
        if not (valid or (match == "fuzzy_match" and isinstance(value, str))):
            expected = "a string" if match == "exact_match" else "a list of strings"
            raise ConfigError(f"{label}.{match} must be {expected}, got {value!r}.")


def _check_target(target: Any, label: str) -> None:
    if not isinstance(target, dict):
        raise ConfigError(f"{label} must have url, locator and required_contents, got {target!r}.")
    for name in ("url", "locator"):
        text = _field(target, name, str, label)
        if text.startswith("func:"):
            try:
                parse_call(text)
            except ConfigError as error:
                raise ConfigError(f"{label}.{name}: {error}") from error
    locator = target["locator"].strip()
    if locator and not locator.startswith(("document.", "[...document.", "func:", "(")):
        raise ConfigError(
            f"{label}.locator={locator[:60]!r} is not allowed. Allowed: a script on the document, or a helper call."
        )
    required = _field(target, "required_contents", dict, label)
    if len(required) != 1 or not set(required) <= {"exact_match", "must_include"}:
        raise ConfigError(f"{label}.required_contents must have exact_match or must_include, got {sorted(required)}.")
    _check_references(required, f"{label}.required_contents")


def _field(record: Mapping[str, Any], name: str, kind: type, label: str) -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        problem = "is missing" if name not in record else f"must be a {kind.__name__}, got {value!r}"
        raise ConfigError(f"{label}: {name} {problem}.")
    return value


def select_by_sites(items: Sequence[TaskItem], sites: Sequence[str]) -> list[TaskItem]:
    """Return the items that need no other sites than `sites`."""
    return [item for item in items if set(item.data["sites"]) <= set(sites)]


def named_item(task: Mapping[str, Any]) -> TaskItem:
    """Return a task as an item whose id is its site and its name."""
    item = make_item(task)
    return TaskItem(ENV, f"{task['sites'][0]}:{task['id']}", item.data, item.category)
