"""Comparison of an answer with a reference: `exact_match`, `must_include` and `fuzzy_match` of WebArena.

Equal durations and distances are equal however they are written: `1h 35min`, `95 minutes`, `5700 s`.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

SECONDS: Mapping[str, str] = {
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "3600"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "60"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "1"),
    **dict.fromkeys(("day", "days"), "86400"),
}
"""Length of each unit of time in seconds."""
METRES: Mapping[str, str] = {
    **dict.fromkeys(("km", "kms", "kilometer", "kilometers", "kilometre", "kilometres"), "1000"),
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), "1"),
    **dict.fromkeys(("mi", "mile", "miles"), "1609.344"),
    **dict.fromkeys(("ft", "foot", "feet"), "0.3048"),
}
"""Length of each unit of distance in metres."""
NUMBER = r"(?<![\w.,])(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)"
UNITS = "|".join(sorted({*SECONDS, *METRES}, key=len, reverse=True))
QUANTITY = re.compile(rf"{NUMBER}[\s-]?(?P<unit>{UNITS})(?![a-z])", re.IGNORECASE)
GLUED = re.compile(rf"(\d(?:{'|'.join(SECONDS)}))(?=\d)", re.IGNORECASE)
"""Place between two parts of a duration without a space, as in `1h35min`."""
SHORT_MINUTES = re.compile(
    r"(\d\s?(?:h|hrs?|hours?)\s*(?:and\s+)?[0-5]?\d)(?:\s?m(?![a-z])|(?=\s*(?:$|[,;.)](?!\d))))", re.IGNORECASE
)
"""Hours and minutes whose unit is `m` or missing, as in `2h 58m` and `1h 35`."""
JOINT = re.compile(r"[\s,]*(?:and\s+)?", re.IGNORECASE)
"""Text between two parts of a duration."""


def with_base_units(text: str) -> str:
    """Return a text in which every duration is in seconds, and every distance in metres.

    Example:
        >>> with_base_units("1h 35min by car, or 2.4 kilometers")
        '5700s by car, or 2400m'
    """
    text = GLUED.sub(r"\1 ", SHORT_MINUTES.sub(r"\1min", text))
    parts: list[str] = []
    seconds, smallest, end = Decimal(0), Decimal(0), 0
    for match in QUANTITY.finditer(text):
        number, unit = Decimal(match["number"].replace(",", "")), match["unit"].lower()
        between = text[end : match.start()]
        scale = Decimal(SECONDS.get(unit, "0"))
        if not (smallest and 0 < scale < smallest and JOINT.fullmatch(between)):
            parts += [f"{_plain(seconds)}s"] if smallest else []
            parts.append(between)
            seconds, smallest = Decimal(0), Decimal(0)
        if scale:
            seconds, smallest = seconds + number * scale, scale
        else:
            parts.append(f"{_plain(number * Decimal(METRES[unit]))}m")
        end = match.end()
    parts += [f"{_plain(seconds)}s"] if smallest else []
    return "".join([*parts, text[end:]])


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


NUMBER_VALUES = "VALUES"
"""Value of a task's field `number_rule` that reads numbers as `must_include_value` does."""
NUMERAL = re.compile(
    r"(?<!\w)(?<!\d[.:/-])(?P<number>(?:(?<![\w.])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?)"
    rf"(?:[\s-]?(?P<unit>{UNITS})(?!\w))?(?!\w|[.:/-]\d)",
    re.ASCII,
)
"""Number with or without a unit that is not part of a word, another number, a fraction, a date or a clock time."""
FUZZY_SHARE = 0.8
"""Smallest share of the reference's words in an answer that matches without a judge."""
EXTRA_NUMBERS = 2
"""Most numbers of an answer that matches without a judge beside those of the references and of the question."""
EXTRA_WORDS = 4
"""Most further words of such an answer, besides half as many as the references have."""
BRIEF_ANSWER = "BRIEF"
"""Value of a task's field `answer_rule` that limits the length of its answer; see `is_brief`."""
FREE_CHARACTERS = 60
"""Characters of a brief answer besides twice those of its references."""
YES_AND_NO = frozenset(("yes", "no"))
MEASURE = re.compile(r"[\d.]+[sm]")
"""Duration or distance after `with_base_units`."""
STOP_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "at", "be", "by", "for", "from", "in", "is"),
        *("it", "of", "on", "or", "that", "the", "this", "time", "to", "was", "were", "with"),
    )
)
WORDS = re.compile(r"\w+(?:[.,]\w+)*|[^\w\s]")
SEPARATORS = r"\s;@#$%&?!*\[\](){}<>\"`«»\u2013\u2014\u2018\u2019\u201c\u201d\u201e"
"""Characters that end a word wherever they stand, as in NLTK's `word_tokenize`, which WebArena uses."""
WORD_START = rf"(?:^|(?<=[{SEPARATORS}])|(?<=''|\.\.)|(?<=[^-]--)|(?<=^--))"
PERIOD = r"\.(?=\s*$|[\])}>\"'»\u2019\u201d]|\s+[^\sa-z;:,.!?\"'`«\u2018\u201c\u201e])"
"""Period that is not part of its word. NLTK reads `5. the` as one sentence, and WebArena lowers all letters."""
BREAK = rf"(?:$|[{SEPARATORS}]|[,:](?!\d)|''|--|\.\.|{PERIOD})"
WORD_END = rf"(?={BREAK}|(?:n't|'(?:s|m|d|ll|re|ve)?){BREAK})"
NO_QUOTED_WORD = "mtsdn"
"""Letters that NLTK takes for the rest of a contraction after an apostrophe."""


def clean_answer(text: str) -> str:
    """Return a text in lower case, without outer white space and one pair of quotes."""
    text = text.strip()
    if text[:1] == text[-1:] and text[:1] in ("'", '"'):
        text = text[1:-1]
    return text.lower()


def exact_match(reference: str, answer: str) -> float:
    """Return 1.0 if both texts are equal after `clean_answer`, else 0.0."""
    return float(clean_answer(answer) == clean_answer(reference))


def must_include(reference: str, answer: str, as_word: bool = False) -> float:
    """Return 1.0 if the answer contains the reference, else 0.0.

    Args:
        as_word: a reference of a single character must be a word of its own, as NLTK separates words.

    Example:
        >>> must_include("1", "There are 10, or 1/2.", as_word=True)
        0.0
    """
    expected, given = clean_answer(reference), clean_answer(answer)
    if as_word and len(expected) == 1:
        return float(_has_word(expected, given))
    return float(expected in given)


def must_include_value(reference: str, answer: str) -> float:
    """Return the score of `must_include` with numbers read as numbers.

    A reference that is a number, a duration or a distance must be a whole number of the answer, however it is written.
    Parts of longer numbers, fractions, dates and clock times do not count. Another reference is read as a text.

    Example:
        >>> must_include_value("0", "The score is $0.00."), must_include_value("16", "There are 160.")
        (1.0, 0.0)
    """
    expected, given = clean_answer(reference), clean_answer(answer)
    for wanted, text in ((expected, given), (with_base_units(expected), with_base_units(given))):
        if one := NUMERAL.fullmatch(wanted):
            found = NUMERAL.finditer(text)
            if any(_value(one) == _value(match) and one["unit"] in (None, match["unit"]) for match in found):
                return 1.0
    return float(not NUMERAL.fullmatch(expected) and must_include(reference, answer, as_word=True))


def _value(numeral: re.Match[str]) -> Decimal:
    return Decimal(numeral["number"].replace(",", ""))


def fuzzy_match(references: Sequence[str], answer: str, known: str = "") -> float:
    """Return 1.0 if the answer agrees with every reference and says little else, else 0.0.

    This rule is used without a judge. The answer must have every number and at least four fifths of the words of each
    reference. Case, order, punctuation, a plural s and stop words do not matter. Equal durations and equal distances
    match in any unit. A list of guesses is wrong: the answer may have only `EXTRA_NUMBERS` further numbers and few
    further words. Beside a duration or a distance, further numbers must have another unit.

    Args:
        known: text whose words and numbers the answer may repeat, for example the question.

    Example:
        >>> fuzzy_match(["7 hours 30 min"], "It takes 7.5 hours")
        1.0
        >>> fuzzy_match(["the Carnegie Library, Oakland"], "oakland: Carnegie library")
        1.0
        >>> fuzzy_match(["7 min"], "6 min or 7 min")
        0.0
    """
    given, wanted = _words(answer), [_words(reference) for reference in references]
    for reference, expected in zip(references, wanted, strict=True):
        if not expected and not exact_match(reference, answer):
            return 0.0
        if any(word not in given for word in expected if word[0].isdigit()):
            return 0.0
        if len(expected & given) < FUZZY_SHARE * len(expected):
            return 0.0
    return float(not _says_more(given, set().union(*wanted), _words(known)))


def _says_more(given: set[str], expected: set[str], known: set[str]) -> bool:
    """Return True if an answer has so many further words or numbers that it may be a list of guesses."""
    further = given - expected - known
    numbers = {word for word in further if word[0].isdigit()}
    units = {unit_of(word) for word in expected} - {""}
    guesses = units and any(unit_of(word) in {"", *units} for word in numbers)
    if guesses or len(numbers) > EXTRA_NUMBERS or given >= YES_AND_NO:
        return True
    return len(further - numbers) > EXTRA_WORDS + len(expected) // 2


def is_brief(references: Sequence[str], answer: str) -> bool:
    """Return True if an answer has at most `FREE_CHARACTERS` more characters than twice its references together.

    Example:
        >>> is_brief(["0.14", "745.00"], "The prices are between $0.14 and $745.00.")
        True
        >>> is_brief(["0.14", "745.00"], " ".join(f"{number}.00" for number in range(1000)))
        False
    """
    return len(answer) <= 2 * sum(map(len, references)) + FREE_CHARACTERS


def unit_of(word: str) -> str:
    """Return the base unit of a duration or a distance (`s` or `m`), or "" for another word."""
    return word[-1] if MEASURE.fullmatch(word) else ""


def _has_word(character: str, text: str) -> bool:
    starts = [WORD_START]
    if not character.isdigit():
        starts.append("(?<=[,:])")
    if character.isalnum() and character not in NO_QUOTED_WORD:
        starts.append(r"(?<=\W')|(?<=^')")
    return re.search(rf"(?:{'|'.join(starts)}){re.escape(character)}{WORD_END}", text) is not None


def _words(text: str) -> set[str]:
    words = {word for word in WORDS.findall(with_base_units(text.lower())) if word[0].isalnum()} - STOP_WORDS
    return {word[:-1] if len(word) > 3 and word.endswith("s") and not word[0].isdigit() else word for word in words}
