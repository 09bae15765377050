"""Test the episodes, the generated questions, the splits and the gold chains of Deep Search."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from env_adapters.deepsearch.__main__ import app, unsupported_questions
from env_adapters.deepsearch.adapter import EASY_CHARS, MAX_QUERY_CHARS, DeepSearch
from env_adapters.deepsearch.answers import contains_all, is_accepted, normalize_answer
from env_adapters.deepsearch.factbook import countries
from env_adapters.deepsearch.questions import split_questions
from env_adapters.deepsearch.store import embedded_folder, open_passage_index
from tests.support.corpus import embedded_corpus
from verl_agent.envs.parsing import first_tag
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import StepResult, TaskItem

MALI = TaskItem("deepsearch", "x", {"question": "What is the capital of Mali?", "answers": ["Bamako"]})


@pytest.fixture(scope="module", autouse=True)
def corpus() -> Iterator[str]:
    """Build the embedded corpus in a temporary cache with the users' command; yield its output."""
    with embedded_corpus() as output:
        yield output


def play(actions: list[str], item: TaskItem = MALI, **options: object) -> list[StepResult]:
    env = DeepSearch(**options)  # type: ignore[arg-type]
    asyncio.run(env.reset(item))
    return [asyncio.run(env.step(action)) for action in actions]


def play_chain(item: TaskItem, **options: object) -> list[StepResult]:
    return play([demo.action for demo in DeepSearch(**options).demonstration(item)], item, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "accepted", "right"),
    [
        ("bamako", ["Bamako"], True),
        ("The  Bamako.", ["bamako"], True),
        ("Bamako, Mali", ["Bamako"], False),
        ("", ["Bamako"], False),
        ("8,849 m", ["8849 m"], True),
        ("Cote dIvoire", ["Côte d'Ivoire", "Cote d'Ivoire"], True),
        ("Theodore", ["odore"], False),
    ],
)
def test_answers_are_compared_after_normalization(answer, accepted, right):
    assert is_accepted(answer, accepted) is right


def test_contains_all_needs_every_part_as_whole_words():
    assert contains_all("Avatar: James Cameron; Titanic: the same", ["Titanic", "James Cameron"])
    assert not contains_all("Avatar, Titanics", ["Titanic"])
    assert not contains_all("anything", [])


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<search>France capital</search>", ("search", "France capital")),
        ("<think>hm</think>\n< Search >\n France\n capital </SEARCH>", ("search", " France\n capital")),
        ("```\n<answer>`Paris`</answer>\n```", ("answer", "`Paris`")),
        ("<search>a</search><information>b</information><answer>c</answer>", ("search", "a")),
        ("<think>maybe <answer>Rome</answer>?</think><answer>Paris</answer>", ("answer", "Paris")),
        ("maybe <answer>Rome</answer>?</think><answer>Paris</answer>", ("answer", "Paris")),
        ("<think>I never stop <search>France</search>", ("search", "France")),
        ("I will use <search> like so: <search>France</search>", ("search", "France")),
        ("<search>France capital", ("search", "France capital")),
        ("<answer>Paris\nbecause", ("answer", "Paris")),
        ("<answer>Paris</search>", ("answer", "Paris")),
        ("<search>Mali</search></think>", ("search", "Mali")),
        ("<answer></answer>", ("answer", "")),
        ("Paris", None),
        ("</search>", None),
        ("<think><search>France</search></think>", None),
    ],
)
def test_the_first_tag_outside_thoughts_is_the_action(reply, action):
    assert first_tag(reply, ("search", "answer")) == action


def test_line_breaks_and_quotes_around_queries_and_answers_are_ignored():
    plain, quoted, answer = play(
        ["<search>Mali capital</search>", '<search>\n "Mali\n capital"</search>', "<answer>`Bamako`</answer>"]
    )
    assert quoted.observation == plain.observation
    assert answer.reward == 1.0


def test_searches_show_passages_and_the_first_answer_terminates():
    search, answer, late = play(["<search>Mali capital</search>", "<answer>Bamako</answer>", "<answer>Bamako</answer>"])
    assert search.observation.startswith('<information>Doc 1(Title: "Mali: Capital") name: Bamako; ')
    assert search.observation.count("\nDoc ") == 2
    assert search.observation.endswith("</information>")
    assert search.info == {"search_queries": 1.0, "repeated_query": 0.0, "answer_seen": 1.0}
    assert answer == StepResult("Right.", 1.0, True)
    assert late == StepResult("The question is already answered.", 0.0, True)


def test_a_wrong_answer_terminates_without_reward():
    assert play(["<answer>Dakar</answer>"]) == [StepResult("Wrong.", 0.0, True, {"wrong_answer": 1.0})]


def test_guess_again_continues_after_a_wrong_answer():
    wrong, right, late = play(["<answer>Dakar</answer>", *["<answer>Bamako</answer>"] * 2], guess_again=True)
    assert (wrong.observation, wrong.terminated) == ("Wrong. Search again, or give another answer.", False)
    assert (right.reward, right.terminated) == (1.0, True)
    assert (late.reward, late.terminated) == (0.0, True)


def test_repeated_queries_are_counted_and_answer_seen_is_reported_once():
    steps = play(["<search>Mali capital</search>", "<search>the MALI  capital!</search>"])
    assert [(step.info["repeated_query"], "answer_seen" in step.info) for step in steps] == [(0.0, True), (1.0, False)]


@pytest.mark.parametrize(
    "reply",
    ["Bamako", "<search></search>", '<search>""</search>', "", f"<search>{'x' * (MAX_QUERY_CHARS + 1)}</search>"],
)
def test_invalid_actions_are_counted(reply):
    (step,) = play([reply])
    assert step.info == {"invalid_action": 1.0}
    assert len(step.observation) < 120


def test_a_search_without_results_reports_that_no_passage_was_found():
    (step,) = play(["<search>xyzzyx</search>"])
    assert step.observation == "<information>No passage was found. Search in other words.</information>"
    assert step.info["search_queries"] == 1.0


def test_top_k_and_passage_chars_limit_the_observation():
    (step,) = play(["<search>Mali capital</search>"], top_k=1, passage_chars=20)
    assert step.observation == '<information>Doc 1(Title: "Mali: Capital") name: Bamako; geogr…</information>'


@pytest.mark.parametrize("prompt", ["full", "short"])
def test_gold_chains_solve_every_test_question(prompt):
    solved = 0
    for item in DeepSearch().tasks("test"):
        steps = play_chain(item, prompt=prompt)
        assert sum(step.info.get("invalid_action", 0.0) for step in steps) == 0
        solved += sum(step.reward for step in steps) == 1.0 and steps[-1].terminated
    assert solved == 400


def test_gold_queries_of_test_questions_retrieve_passages_with_the_answers():
    unsupported = unsupported_questions(split_questions()["test"], open_passage_index(embedded_folder()))
    assert [question.id for question in unsupported] == []


def test_the_first_passage_of_easy_questions_starts_with_the_answer():
    for item in DeepSearch().tasks("easy_test"):
        steps = play_chain(item, prompt="short", top_k=1, passage_chars=EASY_CHARS)
        assert [len(steps), steps[0].info.get("answer_seen"), steps[-1].reward] == [2, 1.0, 1.0], item.id


def test_splits_have_the_documented_numbers_of_questions():
    assert {split: Counter(item.category for item in DeepSearch().tasks(split)) for split in DeepSearch.splits} == {
        "train": {"single hop": 1524, "bridge": 2469, "comparison": 1109},
        "test": {"single hop": 150, "bridge": 150, "comparison": 100},
        "easy_train": {"single hop": 1113},
        "easy_test": {"single hop": 102},
    }


def test_train_and_test_share_no_country_and_no_wording():
    train, test = (split_questions()[split] for split in ("train", "test"))
    for values in (
        lambda question: set(question.countries),
        lambda question: {question.template},
        lambda question: {question.text},
        lambda question: {question.id},
    ):
        assert not set().union(*map(values, train)) & set().union(*map(values, test))


def test_easy_splits_are_parts_of_train_and_test():
    env = DeepSearch()
    for split in ("train", "test"):
        assert {item.id for item in env.tasks(f"easy_{split}")} < {item.id for item in env.tasks(split)}


def test_only_comparisons_contain_their_answer():
    for question in [*split_questions()["train"], *split_questions()["test"]]:
        if question.kind != "comparison":
            text = f" {normalize_answer(question.text)} "
            assert not any(f" {normalize_answer(answer)} " in text for answer in question.answers), question.id


def test_the_answer_of_a_comparison_has_the_larger_number_in_its_passage():
    for question in split_questions()["train"]:
        if question.kind == "comparison":
            numbers = [float(hop.expected[0].replace(",", "")) for hop in question.hops]
            larger = question.countries[numbers.index(max(numbers))]
            assert question.answers == countries()[larger].names, question.id
            assert max(numbers) >= 1.1 * min(numbers), question.id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "cot"}, "env.options.prompt='cot' is not allowed. Allowed: full, short."),
        ({"top_k": 0}, "env.options.top_k=0 is not allowed. Allowed: a whole number from 1 to 10."),
        (
            {"passage_chars": True},
            "env.options.passage_chars=True is not allowed. Allowed: a whole number from 20 to 1",
        ),
        ({"guess_again": 1}, "env.options.guess_again=1 is not allowed. Allowed: true or false."),
        ({"timeout_s": 0}, "env.options.timeout_s=0 is not allowed. Allowed: a number above 0 and below 3600."),
        ({"retriever": ["a", "b"]}, "env.options.retriever=['a', 'b'] is not allowed. Allowed: 'embedded', the folder"),
    ],
)
def test_invalid_options_raise_config_error_naming_the_key(options, message):
    with pytest.raises(ConfigError) as error:
        DeepSearch(**options)
    assert str(error.value).startswith(message)


def test_an_item_of_another_environment_raises_env_error():
    with pytest.raises(EnvError, match="is no question"):
        asyncio.run(DeepSearch().reset(TaskItem("textcraft", "minecraft:stick", {"goal": "minecraft:stick"})))


def test_a_second_build_is_already_up_to_date(corpus):
    assert "Ready: " in corpus
    assert "passages." in corpus
    again = CliRunner().invoke(app, ["build"])
    assert "Already up to date" in again.output
