"""Tests that no reward of the embedded sites' tasks can be earned without the task, and that right solutions earn 1."""

from collections import Counter

import pytest

from env_adapters.web_sites.tasks import site_tasks
from env_adapters.webarena.grading.changes import Change
from env_adapters.webarena.grading.strict import answer_values, final_page, single_answer, state_change
from tests.support.web_attacks import (
    MAX_ANSWER,
    earned,
    kind_of,
    long_answers,
    offline_outcomes,
    said,
    tasks_by_template,
    world_values,
)

TEMPLATES = tasks_by_template()
ASKING = {name: tasks for name, tasks in TEMPLATES.items() if kind_of(tasks[0]) == "single_answer"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_right_solutions_of_a_template_earn_a_reward(name):
    rows = [row for task in TEMPLATES[name] for row in offline_outcomes(task)]
    assert [row for row in rows if row[2] != row[3]] == []
    assert {row[2] for row in rows} == {0.0, 1.0}


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_two_tasks_of_a_template_have_one_solution(name):
    """An answer is reduced to one value, so it earns the tasks with this value: at most one."""
    tasks = TEMPLATES[name]
    assert len({kind_of(task) for task in tasks}) == 1
    if name in ASKING:
        assert len(set(map(kinds_of, tasks))) == 1
        solutions = [answer_values(kinds_of(task), said(task)) for task in tasks]
    else:
        solutions = [str(task["eval"]) for task in tasks]
    assert max(Counter(solutions).values()) == 1


def test_no_long_answer_earns_a_task():
    """Lists of all values of the world, of all answers of a template, and of the answers of all templates."""
    listed = [*world_values().values(), *([said(task) for task in tasks] for tasks in ASKING.values())]
    constants = {answer for values in listed for answer in long_answers(values)}
    assert len(constants) > 500 and max(map(len, constants)) <= MAX_ANSWER
    earning = []
    for kinds in {kinds_of(tasks[0]) for tasks in ASKING.values()}:
        same = [task for tasks in ASKING.values() if kinds_of(tasks[0]) == kinds for task in tasks]
        solutions = {answer_values(kinds, said(task)): task["id"] for task in same}
        earning += [
            (solutions[found], answer) for answer in constants if (found := answer_values(kinds, answer)) in solutions
        ]
    assert earning == []


def kinds_of(task):
    """Return the kinds of the parts of a task's answer."""
    return tuple(part["kind"] for part in task["eval"]["single_answer"])


def test_parts_of_answers_contain_no_separator():
    """Otherwise the right answer would be split into too many parts."""
    for task in site_tasks():
        if kind_of(task) == "single_answer":
            assert earned(task, said(task)) == 1.0, task["id"]


@pytest.mark.parametrize(
    ("kind", "right", "accepted", "refused"),
    [
        (
            "money",
            "$1,234.50",
            ["1234.5", "1,234.50", "USD 1234.50", "$ 1,234.50.", "US$1234.50", "1,234.50 dollars", "1234.50$"],
            ["$1,234.5 or $2", "1234", "$12,34.50", "\u20ac1234.50", "9" * 5000],
        ),
        ("money", "$12.00", ["12", "$12", "12.0", "12.00 USD", "12 US dollars"], ["1200", "0.12", "-12", "12 %"]),
        (
            "time",
            "19:30",
            ["7:30 pm", "7.30 PM", "7:30 p.m.", "19.30", "07:30pm"],
            ["7:30", "7:30 am", "19", "19:30 pm", "19:3", "19:30 or 20:00", "1930", "0:30 pm"],
        ),
        ("time", "12:00", ["12 pm", "12:00 PM"], ["12 am", "0:00", "24:00"]),
        ("grams", "195", ["195 g", "195g", "195 grams"], ["1195", "19", "195 kg", "195, 200"]),
        ("number", "7", ["07", '"7"', "7."], ["1 2 3 4 5 6 7", "7-9", "seven", "17", "7" * 5000]),
        (
            "text",
            "Mill Lane",
            ["mill lane", "\u2018Mill  Lane\u2019"],
            ["Mill", "Mill Lane, York", "Mill Lane Mill Lane"],
        ),
    ],
)
def test_answers_of_one_value_are_accepted_in_the_usual_notations(kind, right, accepted, refused):
    reference = [{"kind": kind, "text": right}]
    assert [single_answer(reference, answer) for answer in (right, *accepted)] == [1.0] * (len(accepted) + 1)
    assert [single_answer(reference, answer) for answer in refused] == [0.0] * len(refused)


def test_answer_of_two_parts_needs_both_in_order():
    reference = [{"kind": "text", "text": "Pending"}, {"kind": "money", "text": "$1,234.50"}]
    for answer in ("pending, $1,234.50", "Pending,$1234.5", "Pending; 1,234.50"):
        assert single_answer(reference, answer) == 1.0
    for answer in ("Pending", "$1,234.50, Pending", "Pending, Shipped, $1,234.50", "Pending $1,234.50"):
        assert single_answer(reference, answer) == 0.0


@pytest.mark.parametrize(
    ("kinds", "right", "accepted", "refused"),
    [
        ("text text", "Open, 2025-06-08", ["Open,2025-06-08"], ["Open 2025-06-08", "Open,2025,06,08"]),
        ("text number", "3.12, 8398", ["3.12,8398", "3.12; 8398", "3.12, 8,398"], ["3.12.8398", "8398, 3.12"]),
        ("number money", "2, $9.49", ["2,9.49", "2,$9.49", "02, 9.49 USD"], ["2.9.49", "2,949"]),
    ],
)
def test_parts_of_an_answer_may_be_separated_by_commas_without_space(kinds, right, accepted, refused):
    parts = right.split(", ")
    reference = [{"kind": kind, "text": part} for kind, part in zip(kinds.split(), parts, strict=True)]
    assert [single_answer(reference, answer) for answer in (right, *accepted)] == [1.0] * (len(accepted) + 1)
    assert [single_answer(reference, answer) for answer in refused] == [0.0] * len(refused)


def test_final_page_ignores_only_the_order_of_a_list():
    reference = {"urls": ["http://shop.test/search/?q=red hat"], "ignored": ["sort_by"]}
    for url in ("http://shop.test/search/?q=red+hat", "http://shop.test/search?sort_by=x&q=Red%20hat#top"):
        assert final_page(reference, url) == 1.0
    for url in (
        "http://shop.test/search/?q=red+hat&q=kettle",
        "http://shop.test/a/search/?q=red+hat",
        "http://shop.test/search//?q=red+hat",
        "about:blank",
    ):
        assert final_page(reference, url) == 0.0


def test_each_address_of_a_ticket_is_its_page():
    task = TEMPLATES["show_ticket"][0]
    right = task["eval"]["final_page"]["urls"][0]
    host, uuid = right.rpartition("/tktview/")[::2]
    for url in (f"{host}/info/{uuid}", f"{host}/tktview?name={uuid}"):
        assert final_page(task["eval"]["final_page"], url) == 1.0
    assert final_page(task["eval"]["final_page"], f"{host}/tktview?name={uuid[:-1]}") == 0.0


def expected(change, record, key="", **values):
    return {"change": change, "record": record, "key": key, "values": values}


def test_permanent_record_may_follow_one_wrong_record():
    task = [expected("added", "order", lines="1 x Pan")]
    right, wrong = (
        Change("added", "order", key, {"lines": lines}) for key, lines in (("2", "1 x Pan"), ("1", "2 x Pan"))
    )
    assert state_change(task, [wrong, right]) == 1.0
    assert state_change(task, [right, wrong]) == state_change(task, [wrong, wrong, right]) == 0.0


def added(record, key, **values):
    return Change("added", record, key, values)


def test_ticket_in_another_project_may_be_the_mistake():
    task = [expected("added", "mill ticket", title="Dark", type="Bug", text="At night.")]
    elsewhere, right = (
        added(f"{name} ticket", key, title="Dark", type="Bug", text="At night.")
        for name, key in (("dicecup", "1"), ("mill", "2"))
    )
    assert state_change(task, [elsewhere, right]) == 1.0
    assert state_change(task, [elsewhere]) == 0.0
    assert state_change(task, [elsewhere, added("tidepool ticket", "1", **right.values), right]) == 0.0


ADDRESS = {"first_name": "Greta", "line1": "1 Mill Lane", "postcode": "12345", "country": "US", "customer": "a@b.test"}
SHIPPED = "Greta, 1 Mill Lane, 12345, US"


@pytest.mark.parametrize(
    ("besides", "reward"),
    [
        ([added("order", "1", lines="1 x Pan", ship_to=SHIPPED), added("address", "9", **ADDRESS)], 1.0),
        ([added("order", "1", lines="1 x Pan", ship_to="Mine"), added("address", "9", **ADDRESS)], 0.0),
        ([added("address", "9", **ADDRESS)], 0.0),
        ([added("order", "1", lines="1 x Pan; 1 x Pot; 1 x Lid; 2 x Large Kettle; 1 x Bowl", ship_to="Mine")], 0.0),
        ([added("order", "1", lines="1 x Pan; 1 x Pot", ship_to="Mine")], 1.0),
        ([added("order", "1", lines="1 x Pan", ship_to=SHIPPED), added("wish", "9", product="Pan")], 0.0),
    ],
)
def test_mistake_before_an_order_must_resemble_it(besides, reward):
    """The shop keeps the address of an order in the address book."""
    task = [expected("added", "order", lines="1 x Pan", ship_to="Mine")]
    right = added("order", "2", lines="1 x Pan", ship_to="Mine")
    assert state_change(task, [*besides, right]) == reward


def test_private_message_is_no_mistake_of_a_topic():
    values = {"category": "Cooking", "title": "Pans", "text": "Which one?", "participants": ""}
    task, right = [expected("added", "topic", **values)], added("topic", "2", **values)
    assert state_change(task, [added("topic", "1", **{**values, "text": "Which?"}), right]) == 1.0
    assert state_change(task, [added("message", "1", **{**values, "participants": "ida"}), right]) == 0.0
    wrong = {"category": "Games", "title": "Spam", "text": "Buy this"}
    assert state_change(task, [added("topic", "1", **{**values, **wrong}), right]) == 0.0


def test_record_that_can_be_removed_must_be_the_only_change():
    task = [expected("added", "cart line", product="Pan")]
    right, wrong = (
        Change("added", "cart line", key, {"product": product}) for key, product in (("2", "Pan"), ("1", "Pot"))
    )
    assert state_change(task, [right]) == 1.0
    assert state_change(task, [wrong, right]) == 0.0


def test_change_of_another_key_or_value_is_not_the_expected_one():
    task = [expected("changed", "review", "17", status="Approved")]
    assert state_change(task, [Change("changed", "review", "17", {"status": "Approved"})]) == 1.0
    assert state_change(task, [Change("changed", "review", "18", {"status": "Approved"})]) == 0.0
    assert state_change(task, [Change("changed", "review", "17", {"status": "Approved", "title": "x"})]) == 0.0


@pytest.mark.parametrize(
    "disguise",
    [
        "[{values}]",
        '{{"answer": ["{values}"]}}',
        "\u200b{values}\u200b",
        "<!-- {values} -->{right}",
        "{right}\x00{other}",
        "{right} \n\n\n {other}",
        "{right}\u2028{other}",
        "0-9999",
        ".*",
        "the answer to the question",
        "any",
        "{{{{answer}}}}",
        "{right}?{other}",
        "{right} (or {other})",
    ],
)
def test_disguised_list_earns_nothing(disguise):
    for tasks in ASKING.values():
        for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True):
            values = ", ".join(map(said, tasks))
            answer = disguise.format(values=values, right=said(task), other=said(other))
            assert earned(task, answer) == 0.0, (task["id"], answer)
