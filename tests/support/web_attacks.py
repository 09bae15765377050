"""Attacks on the rewards of the embedded sites' tasks that need no browser: answers, URLs, and changes of the sites."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from env_adapters.web_sites.tasks import site_tasks
from env_adapters.web_sites.world import GeneratedWorld, world
from env_adapters.webarena.browser.grammar import parse_action
from env_adapters.webarena.grading.changes import Change
from env_adapters.webarena.grading.strict import (
    PERMANENT,
    final_page,
    is_permanent,
    record_kind,
    single_answer,
    state_change,
)

Task = Mapping[str, Any]
Row = tuple[str, str, float, float, str]
"""Template, attempt, expected reward, reward, and task."""
MAX_ANSWER = 2000
SEPARATORS = (", ", ",", "; ", "\n", " ", " or ", " and ", "|", '", "', "</li><li>", " - ")


def template_of(task: Task) -> str:
    """Return the name of the template of a task."""
    return str(task["id"]).partition(":")[0]


@cache
def tasks_by_template() -> Mapping[str, Sequence[Task]]:
    """Return all tasks of both splits by their template."""
    found: dict[str, list[Task]] = defaultdict(list)
    for task in site_tasks():
        found[template_of(task)].append(task)
    return found


def kind_of(task: Task) -> str:
    """Return the evaluator of a task."""
    return str(task["eval"]["eval_types"][0])


def said(task: Task) -> str:
    """Return the oracle's answer."""
    return parse_action(task["oracle"][-1]).text


def as_changes(task: Task) -> list[Change]:
    """Return the changes of the sites that a task expects."""
    expected = task["eval"]["state_change"]
    return [Change(one["change"], one["record"], one["key"] or "1", one["values"]) for one in expected]


def earned(task: Task, attempt: Any) -> float:
    """Return the reward of an answer, a URL, or changes of the sites, whichever the task expects."""
    kind = kind_of(task)
    judge = {"single_answer": single_answer, "final_page": final_page, "state_change": state_change}[kind]
    return judge(task["eval"][kind], attempt)


def offline_outcomes(task: Task) -> Iterator[Row]:
    """Yield the attempts at a task with the rewards that they must earn and that they earn."""
    attempts = {"single_answer": answers, "final_page": urls, "state_change": state_changes}[kind_of(task)]
    for name, attempt, expected in attempts(task):
        yield template_of(task), name, expected, earned(task, attempt), str(task["id"])


def answers(task: Task) -> Iterator[tuple[str, str, float]]:
    """Yield the right answer, and wrong ones: constants of the template, parts of the answer, lists of values."""
    right, listed = said(task), tasks_by_template()[template_of(task)]
    yield "oracle", right, 1.0
    yield "oracle", f'  "{right.upper()}."\n', 1.0
    yield "empty", "", 0.0
    for script in task["wrong"].values():
        yield "wrong answer", parse_action(script[-1]).text, 0.0
    for other in listed:
        if other is not task:
            yield "constant of another task", said(other), 0.0
            yield "two answers", f"{right}, {said(other)}", 0.0
            yield "two answers", f"{said(other)} {right}", 0.0
    for separator in SEPARATORS:
        yield "all answers of the template", separator.join(map(said, listed)), 0.0
    yield "with a sentence around it", f"Either {right} or something else", 0.0
    yield "twice", f"{right} {right}", 0.0
    yield "negated", f"not {right}", 0.0
    if task["eval"]["single_answer"][-1]["kind"] == "text":
        yield "shorter", right[:-1], 0.0
    yield "longer", f"{right}1", 0.0


def urls(task: Task) -> Iterator[tuple[str, str, float]]:
    """Yield the right URLs and wrong ones: those of other tasks, and URLs that contain several of them."""
    right = task["eval"]["final_page"]["urls"]
    listed = [other["eval"]["final_page"]["urls"][0] for other in tasks_by_template()[template_of(task)]]
    for url in right:
        yield "reference", url, 1.0
        yield "reference", f"{url}#top", 1.0
        yield "below the page", f"{url.rstrip('/')}/edit/", 0.0
        yield "as a parameter", f"{url.split('/')[0]}/?next={url}", 0.0
        yield "another host", f"http://other.test/{url}", 0.0
        yield "further parameter", f"{url}{'&' if '?' in url else '?'}q=other", 0.0
    yield "start page", right[0].partition("/")[0], 0.0
    for other in listed:
        if other not in right:
            yield "page of another task", other, 0.0
    yield "all pages in one URL", "/".join(listed), 0.0
    queries = "&".join(url.partition("?")[2] for url in listed)
    if queries.strip("&"):
        yield "all parameters in one URL", f"{right[0].partition('?')[0]}?{queries}", 0.0


def state_changes(task: Task) -> Iterator[tuple[str, list[Change], float]]:
    """Yield the right changes, and changes with something left out, wrong or added."""
    right = as_changes(task)
    others = [as_changes(other) for other in tasks_by_template()[template_of(task)] if other is not task]
    yield "reference", right, 1.0
    yield "nothing", [], 0.0
    yield "everything", [*right, *(change for other in others for change in other)], 0.0
    for other in others:
        yield "change of another task", other, 0.0
    for place, change in enumerate(right):
        without = right[:place] + right[place + 1 :]
        yield "a record left out", without, 0.0
        for name, value in change.values.items():
            for wrong in ("", f"{value} x", f"{value}0", "x"):
                if wrong != value:
                    changed = Change(change.change, change.record, change.key, {**change.values, name: wrong})
                    yield f"wrong {name}", [*without, changed], 0.0
        yield (
            "a further value",
            [*without, Change(change.change, change.record, change.key, {**change.values, "x": "1"})],
            0.0,
        )
        yield from extra_records(right, change)
    for extra in (Change("changed", "product", "1", {"price": "1"}), Change("removed", "wish", "1", {"product": "x"})):
        yield "and something else", [*right, extra], 0.0
    yield "and a new row", [*right, Change("added", "table payment_bankcard", "1", {"name": "x"})], 0.0


def extra_records(right: list[Change], change: Change) -> Iterator[tuple[str, list[Change], float]]:
    """Yield the right changes with further records of one kind, before and after the right one."""
    key = change.key if change.change == "added" else f"{change.key}0"
    name = next((name for name in ("text", "lines") if name in change.values), next(iter(change.values)))
    wrong = [
        Change(change.change, change.record, key, {**change.values, name: f"{change.values[name][:-1]}{number}"})
        for number in (1, 2)
    ]
    permanent = is_permanent(change)
    yield ("corrected" if permanent else "and another record"), [wrong[0], *right], float(permanent)
    yield "another record afterwards", [*right, wrong[0]], 0.0
    yield "two other records before", [*wrong, *right], 0.0
    yield "twice", [*right, change], 0.0
    listed = {**change.values, name: "; ".join([change.values[name] + " x"] * 20)}
    yield "a list of records before", [Change(change.change, change.record, key, listed), *right], 0.0
    other = {value: f"other {text}"[: len(text)] or "x" for value, text in change.values.items()}
    yield "another subject before", [Change(change.change, change.record, key, other), *right], 0.0
    for kind in sorted(PERMANENT - {record_kind(change.record)}):
        yield "a record of another kind before", [Change("added", kind, "1", change.values), *right], 0.0


@cache
def world_values(made: GeneratedWorld | None = None) -> Mapping[str, Sequence[str]]:
    """Return all values of the generated data that an answer could list, by kind."""
    made = made or world()
    shop, forum, code = made.shop, made.forum, made.code
    tickets = [ticket for project in code.projects for ticket in project.tickets]
    return {
        "prices": [product.price for product in shop.products],
        "totals": [order.total for order in shop.orders],
        "counts": [str(count) for count in range(400)],
        "weights": [str(product.grams) for product in shop.products],
        "titles": [product.title for product in shop.products],
        "UPCs": [product.upc for product in shop.products],
        "orders": [order.number for order in shop.orders],
        "customers": [customer.name for customer in shop.customers],
        "addresses": [customer.email for customer in shop.customers],
        "reviews": [f"{review.stars}, {review.title}" for review in shop.reviews],
        "colours": [f"{product.colour}, {product.warranty} years" for product in shop.products],
        "statuses": [f"{order.status}, {order.total}" for order in shop.orders],
        "members": list(forum.members),
        "topics": [topic.title for topic in forum.topics],
        "times": [topic.facts["hour"] for topic in forum.topics if "hour" in topic.facts],
        "places": [f"{topic.facts['place']}, {topic.facts['day']}" for topic in forum.topics if "day" in topic.facts],
        "logins": list(code.people),
        "messages": [one.message for project in code.projects for one in project.checkins],
        "tickets": [f"{ticket.status}, {ticket.moment:%Y-%m-%d}" for ticket in tickets],
        "reporters": [f"{ticket.reporter}, {ticket.priority}" for ticket in tickets],
        "facts": [fact for project in code.projects for fact in project.facts.values()],
    }


def long_answers(values: Sequence[str]) -> Iterator[str]:
    """Yield answers of at most `MAX_ANSWER` characters that together list all values with each separator."""
    for separator in SEPARATORS:
        parts: list[str] = []
        length = 0
        for value in dict.fromkeys(values):
            if length + len(value) + len(separator) > MAX_ANSWER:
                yield separator.join(parts)
                parts, length = [], 0
            parts.append(value)
            length += len(value) + len(separator)
        yield separator.join(parts)
