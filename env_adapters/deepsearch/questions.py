"""Questions about the World Factbook with their gold chains: single hop, bridge and comparison.

Every country and every wording belongs to one side of the data, training or testing. A question takes both from the
same side. All choices follow from the package's release and from hashes, so they are the same on every machine.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path

from env_adapters.deepsearch.answers import contains, normalize_answer
from env_adapters.deepsearch.corpus import passage_id
from env_adapters.deepsearch.factbook import Country, countries
from env_adapters.deepsearch.facts import Answers, Relation, all_relations
from env_adapters.deepsearch.templates import MEASURES, TEST, TRAIN, WORDINGS, Measure
from verl_agent.envs.tasks import stable_hash

SINGLE, BRIDGE, COMPARISON = "single hop", "bridge", "comparison"
COUNTRIES_PER_TEST_COUNTRY = 4
"""Inverse of the share of countries for testing."""
TEST_QUESTIONS = {SINGLE: 150, BRIDGE: 150, COMPARISON: 100}
"""Number of test questions of each kind; the total is the paper's."""
MAX_QUESTIONS_PER_CLUE = 3
"""Maximum number of bridge questions with the same description of a country."""
MIN_RATIOS = (1.1, 2)
"""Minimum ratios between the numbers of two compared countries."""
MAX_COUNTRIES_PER_ANSWER = 8
"""Maximum number of countries with the same answer to a kind of question; more common answers can be guessed."""
EXCLUDED_CODES = ("ee", "xx")
"""Codes of the European Union and of the world, which are not countries."""
FOREIGN_FACTS = ("only_neighbor", "longest_border", "export_partner")
"""Kinds of facts whose answer is another country."""
EXCLUDED_FILE = Path(__file__).with_name("left_out.txt")
"""File with the ids of questions whose gold queries do not retrieve their passages; written by `verify --write`."""


@dataclass(frozen=True)
class Hop:
    """One search of a gold chain.

    Attributes:
        thought: reason for the search.
        query: query of the search.
        passage: id of the passage that the query must retrieve.
        expected: spellings of the fact; the passage contains at least one of them.
    """

    thought: str
    query: str
    passage: str
    expected: Answers


@dataclass(frozen=True)
class GeneratedQuestion:
    """Question with its answers and its gold chain.

    Attributes:
        id: identifier, the same on every machine.
        kind: `single hop`, `bridge` or `comparison`.
        template: wording with placeholders for names.
        hops: searches that lead to the answer, in order.
        conclusion: final thought of the chain.
        countries: codes of the countries in question and answer.
    """

    id: str
    kind: str
    template: str
    text: str
    answers: Answers
    hops: Sequence[Hop]
    conclusion: str
    countries: tuple[str, ...]


@cache
def split_questions() -> Mapping[str, Sequence[GeneratedQuestion]]:
    """Return the questions of `train` and `test`, sorted by id.

    Raises:
        ConfigError: see `factbook.countries`.
    """
    excluded = set(EXCLUDED_FILE.read_text(encoding="utf-8").splitlines())
    kept = [[question for question in candidates(side) if question.id not in excluded] for side in (TRAIN, TEST)]
    test = chain.from_iterable(sample_questions(kept[TEST], kind, count) for kind, count in TEST_QUESTIONS.items())
    return {"train": sorted(kept[TRAIN], key=attrgetter("id")), "test": sorted(test, key=attrgetter("id"))}


def sample_questions(questions: Sequence[GeneratedQuestion], kind: str, count: int) -> list[GeneratedQuestion]:
    """Return `count` questions of one kind, selected by a hash of their ids."""
    of_kind = (question for question in questions if question.kind == kind)
    return sorted(of_kind, key=lambda question: stable_hash(question.id))[:count]


def candidates(side: int) -> Iterator[GeneratedQuestion]:
    """Yield the unambiguous questions of one side, including those whose passages a search does not retrieve."""
    for question in (*single_questions(side), *bridge_questions(side), *comparison_questions(side)):
        leaks = question.kind != COMPARISON and any(contains(question.text, answer) for answer in question.answers)
        if not leaks and all(side_of(code) == side for code in question.countries):
            yield question


def side_of(code: str) -> int:
    """Return `TRAIN` or `TEST`, the side of a country."""
    return TEST if int(stable_hash(code)[:8], 16) % COUNTRIES_PER_TEST_COUNTRY == 0 else TRAIN


@cache
def relations() -> Mapping[str, Relation]:
    """Return every kind of fact by name."""
    return {relation.name: relation for relation in all_relations()}


@cache
def facts(name: str) -> Mapping[str, Answers]:
    """Return the answers of one kind by country, without common answers and those that reveal the country's name."""
    relation = relations()[name]
    read = {code: relation.read(country) for code, country in countries().items() if code not in EXCLUDED_CODES}
    shared = Counter(normalize_answer(answers[0]) for answers in read.values() if answers)
    return {
        code: answers
        for code, answers in read.items()
        if answers
        and shared[normalize_answer(answers[0])] <= MAX_COUNTRIES_PER_ANSWER
        and not any(
            contains(answer, name) or contains(name, answer) for name in countries()[code].names for answer in answers
        )
    }


@cache
def clues(name: str) -> Mapping[str, str]:
    """Return the facts of one kind that identify a country: no other country's field contains the same words."""
    field = relations()[name].title
    texts = {
        code: f" {normalize_answer(' '.join(country.fields.get(field, {}).values()))} "
        for code, country in countries().items()
    }
    return {
        code: answers[0]
        for code, answers in facts(name).items()
        if not any(f" {normalize_answer(answers[0])} " in text for other, text in texts.items() if other != code)
    }


def countries_of_fact(name: str, code: str) -> tuple[str, ...]:
    """Return the codes of the countries of a fact: its own, and the one that the answer names."""
    if name not in FOREIGN_FACTS:
        return (code,)
    return code, next(other for other, country in countries().items() if country.names == facts(name)[code])


def single_questions(side: int) -> Iterator[GeneratedQuestion]:
    """Yield questions for one fact of one country."""
    for name, relation in relations().items():
        pattern = WORDINGS[name].ask[side]
        for code in facts(name) if pattern else ():
            named = countries()[code].name_in_sentence
            hop = make_hop(relation, countries()[code], f"I look up {WORDINGS[name].fact} of {named}.")
            yield GeneratedQuestion(
                f"single:{name}:{code}",
                SINGLE,
                pattern,
                pattern.format(x=named),
                facts(name)[code],
                [hop],
                f"It is {facts(name)[code][0]}.",
                countries_of_fact(name, code),
            )


def bridge_questions(side: int) -> Iterator[GeneratedQuestion]:
    """Yield questions for a fact of a country that another fact describes."""
    for clue, wording in WORDINGS.items():
        for start in (facts(clue) if clue in FOREIGN_FACTS else clues(clue)) if wording.clue[side] else ():
            code = countries_of_fact(clue, start)[-1]
            asked = [name for name, other in WORDINGS.items() if other.ask[side] and code in facts(name)]
            asked = [name for name in asked if relations()[name].title != relations()[clue].title]
            asked.sort(key=lambda name: stable_hash(f"{clue} {start} {name}"))
            for name in [name for name in asked if name != "nationality"][:MAX_QUESTIONS_PER_CLUE]:
                yield make_bridge(clue, name, start, side)


def make_bridge(clue: str, name: str, start: str, side: int) -> GeneratedQuestion:
    """Return a question with two hops: the country that a fact describes, then another fact of that country.

    Args:
        clue: kind of the fact that describes the country.
        name: kind of the fact that is asked for.
        start: code of the country whose passage the first hop retrieves.
    """
    code = countries_of_fact(clue, start)[-1]
    named, value = (
        countries()[code].name_in_sentence,
        countries()[start].name_in_sentence if clue in FOREIGN_FACTS else clues(clue)[start],
    )
    description, fact, answers = WORDINGS[clue].clue[side], WORDINGS[name].fact, facts(name)[code]
    first = make_hop(relations()[clue], countries()[start], f"I need to find {description.format(v=value)}.")
    if clue not in FOREIGN_FACTS:  # the country is unknown, so the query holds the fact
        first = Hop(first.thought, f"{value} {relations()[clue].query}", first.passage, (value,))
    second = make_hop(relations()[name], countries()[code], f"It is {named}. Now I look up {fact} of {named}.")
    template = WORDINGS[name].ask[side].format(x=description)
    return GeneratedQuestion(
        f"bridge:{clue}:{name}:{start}",
        BRIDGE,
        template,
        template.format(v=value),
        answers,
        [first, second],
        f"It is {answers[0]}.",
        tuple(dict.fromkeys((start, *countries_of_fact(name, code)))),
    )


def comparison_questions(side: int) -> Iterator[GeneratedQuestion]:
    """Yield questions that compare two independent countries with similar numbers, which are hard to guess."""
    for measure in MEASURES:
        numbers = {
            code: float(number_text(measure, country).replace(",", "") or 0)
            for code, country in countries().items()
            if is_independent(country)
        }
        known = sorted((number, code) for code, number in numbers.items() if number and side_of(code) == side)
        for small, code in known if measure.ask[side] else ():
            near = (next((other for large, other in known if large >= ratio * small), code) for ratio in MIN_RATIOS)
            for larger in dict.fromkeys(other for other in near if other != code):
                pair = sorted((code, larger), key=lambda member: stable_hash(f"{code} {larger} {member}"))
                yield make_comparison(measure, [countries()[member] for member in pair], countries()[larger], side)


def make_comparison(measure: Measure, pair: Sequence[Country], winner: Country, side: int) -> GeneratedQuestion:
    """Return a question with the same search for two countries."""
    hops = [
        Hop(
            f"{lead} {measure.fact} of {country.name_in_sentence}.",
            f"{country.name} {measure.query}",
            passage_id(country.code, measure.field),
            (number_text(measure, country),),
        )
        for lead, country in zip(("I look up", "Now I look up"), pair, strict=True)
    ]
    codes = tuple(country.code for country in pair)
    return GeneratedQuestion(
        f"comparison:{measure.name}:{':'.join(codes)}",
        COMPARISON,
        measure.ask[side],
        measure.ask[side].format(a=pair[0].name_in_sentence, b=pair[1].name_in_sentence),
        winner.names,
        hops,
        f"{winner.name_in_sentence[0].upper()}{winner.name_in_sentence[1:]} has more.",
        codes,
    )


def make_hop(relation: Relation, country: Country, thought: str) -> Hop:
    """Return the search for one fact of one country."""
    query = f"{country.name} {relation.query}"
    return Hop(thought, query, passage_id(country.code, relation.title), relation.read(country))


def number_text(measure: Measure, country: Country) -> str:
    """Return the number as the Factbook prints it; "" if it is missing or ambiguous."""
    match = re.match(measure.pattern, country.fact(measure.field, measure.subfield))
    return match[1] if match else ""


def is_independent(country: Country) -> bool:
    """Return True if the Factbook states a date of independence."""
    return bool(re.match(r"\d", country.fact("Independence"))) and country.code not in EXCLUDED_CODES
