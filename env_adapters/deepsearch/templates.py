"""Wordings of questions: for each kind of fact, ways to ask for it and to describe a country by it.

The first wording of each pair is for training, the second for testing, so the splits share no template.
"""

from collections.abc import Mapping
from dataclasses import dataclass

TRAIN, TEST = 0, 1
"""Sides of the data: index into each pair of wordings."""


@dataclass(frozen=True)
class Wording:
    """Wording of one kind of fact.

    Attributes:
        fact: noun phrase for the fact in a thought, such as `the capital`.
        ask: question for each side, with `{x}` for the country; "" if the side does not ask for the fact.
        clue: description of the country for each side, with `{v}` for the fact; "" if the side does not use it.
    """

    fact: str
    ask: tuple[str, str]
    clue: tuple[str, str] = ("", "")


WORDINGS: Mapping[str, Wording] = {
    "capital": Wording(
        "the capital",
        ("What is the capital of {x}?", "Which city is the capital of {x}?"),
        ("the country whose capital is {v}", "the country that has {v} as its capital"),
    ),
    "highest_point": Wording(
        "the highest point",
        ("What is the highest point of {x}?", "Name the highest elevation in {x}."),
        ("the country whose highest point is {v}", "the country where {v} is the highest elevation"),
    ),
    "height": Wording(
        "the height of the highest point",
        ("How high is the highest point of {x}, in meters?", "What is the elevation, in meters, of the top of {x}?"),
    ),
    "independence_year": Wording(
        "the year of independence",
        ("In which year did {x} become independent?", "What year brought independence to {x}?"),
    ),
    "independence_day": Wording(
        "the date of independence",
        ("On which date did {x} become independent?", "Give the full date of independence of {x}."),
    ),
    "anthem": Wording(
        "the title of the national anthem",
        ("What is the title of the national anthem of {x}?", "Which song is the anthem of {x}?"),
        ('the country whose national anthem is "{v}"', 'the country that sings "{v}" as its anthem'),
    ),
    "internet_code": Wording(
        "the internet country code",
        ("What is the internet country code of {x}?", "Which top-level domain do sites in {x} use?"),
        ("the country with the internet country code {v}", "the country of the top-level domain {v}"),
    ),
    "aircraft_prefix": Wording(
        "the prefix of registered aircraft",
        ("", "Which civil aircraft registration prefix does {x} use?"),
        ("", "the country whose aircraft carry the prefix {v}"),
    ),
    "currency": Wording(
        "the currency",
        ("What is the currency of {x}?", "In which currency do people pay in {x}?"),
        ("the country whose currency is called {v}", "the country that pays in {v}"),
    ),
    "nationality": Wording(
        "the adjective of nationality", ("Which adjective describes the nationality of people from {x}?", "")
    ),
    "symbol": Wording(
        "the national symbol",
        ("What is the national symbol of {x}?", "Which emblem stands for {x} as its national symbol?"),
        ("the country whose national symbol is the {v}", "the country that has the {v} as its emblem"),
    ),
    "airports": Wording(
        "the number of airports", ("How many airports does {x} have?", "What is the number of airports in {x}?")
    ),
    "legislature": Wording(
        "the name of the legislature",
        ("", "What is the legislature of {x} called?"),
        ("", "the country whose legislature is called {v}"),
    ),
    "local_name": Wording(
        "the name in its own language",
        ("What is the local short name of {x}?", "By which short name do locals call {x}?"),
        ("the country that is locally called {v}", "the country whose own people name it {v}"),
    ),
    "former_name": Wording(
        "the former name",
        ("What is the former name of {x}?", "What was {x} called in former times?"),
        ("the country that was formerly called {v}", "the country once known as {v}"),
    ),
    "only_neighbor": Wording(
        "the only neighbor",
        ("Which is the only country that {x} shares a land border with?", "Name the single land neighbor of {x}."),
        ("the only country that shares a land border with {v}", "the single land neighbor of {v}"),
    ),
    "longest_border": Wording(
        "the neighbor with the longest border",
        (
            "With which country does {x} share its longest land border?",
            "Which neighbor has the longest land border with {x}?",
        ),
        ("the country that shares the longest land border with {v}", "the neighbor with the longest border to {v}"),
    ),
    "export_partner": Wording(
        "the partner that takes most exports",
        ("Which country takes the largest share of the exports of {x}?", "Who is the top export partner of {x}?"),
        ("the country that takes the largest share of the exports of {v}", "the top export partner of {v}"),
    ),
}


@dataclass(frozen=True)
class Measure:
    """Number by which two countries are compared.

    Attributes:
        field: title of the field in the Factbook.
        subfield: name of the subfield; "" for the field's own text.
        query: search terms that follow the country's name.
        pattern: regular expression from the start of the text; its group is the number.
        ask: question for each side, with `{a}` and `{b}` for the countries; "" if the side does not ask it.
    """

    name: str
    field: str
    subfield: str
    query: str
    pattern: str
    fact: str
    ask: tuple[str, str]


MEASURES = (
    Measure(
        "area",
        "Area",
        "total",
        "area total",
        r"([\d,]+) sq km\b",
        "the area",
        ("Which country has the larger area, {a} or {b}?", "Of {a} and {b}, which covers more square kilometers?"),
    ),
    Measure(
        "population",
        "Population",
        "total",
        "population total male female",
        r"([\d,]+) \(20\d\d est\.\)",
        "the population",
        ("Which country has the larger population, {a} or {b}?", "Of {a} and {b}, where do more people live?"),
    ),
    Measure(
        "coastline",
        "Coastline",
        "",
        "coastline",
        r"([\d,.]+) km\b",
        "the length of the coastline",
        ("Which country has the longer coastline, {a} or {b}?", "Of {a} and {b}, which has more kilometers of coast?"),
    ),
    Measure(
        "railways",
        "Railways",
        "total",
        "railways total",
        r"([\d,.]+) km\b",
        "the length of the railways",
        ("Which country has the longer railways, {a} or {b}?", "Of {a} and {b}, which has the longer rail network?"),
    ),
    Measure(
        "height",
        "Elevation",
        "highest point",
        "highest point elevation",
        r"[^;,()\d]+ ([\d,]+) m$",
        "the height of the highest point",
        (
            "Which country has the higher highest point, {a} or {b}?",
            "Of {a} and {b}, which rises to the greater height?",
        ),
    ),
    Measure(
        "life_expectancy",
        "Life expectancy at birth",
        "total population",
        "life expectancy at birth total population",
        r"([\d.]+) years\b",
        "the life expectancy",
        ("", "Of {a} and {b}, in which country do people live longer?"),
    ),
)
