"""Cases for the comparison with WebArena's own evaluators, made from the tasks' references and mutations of them.

`make webarena-verdicts` runs WebArena's code on these cases and stores its verdicts in `VERDICTS`. Cases with a model
as the judge are left out.
"""

import hashlib
import json
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from env_adapters.webarena.tasks.items import installed_task_file, read_items
from env_adapters.webarena.tasks.miniwob import LOCATOR
from tests import ROOT

VERDICTS = ROOT / "tests" / "data" / "webarena_verdicts.json"
SITES: Mapping[str, str] = {
    "__SHOPPING_ADMIN__": "http://shop.test:7780/admin",
    "__SHOPPING__": "http://shop.test:7770",
    "__REDDIT__": "http://forum.test",
    "__GITLAB__": "http://code.test:8023",
    "__MAP__": "http://map.test:3000",
    "__WIKIPEDIA__": "http://wiki.test:8888",
}
SMALL_NUMBERS = range(10)
FURTHER: Sequence[Mapping[str, Any]] = (
    {"exact_match": "$24.90"},
    {"exact_match": "walnut, 340 g"},
    {"exact_match": "4"},
    {"exact_match": "town hall, Saturday 5 July"},
    {"exact_match": "Ruth O'Neil"},
    {"must_include": ["harbour", "Saturday 5 July"]},
    {"must_include": ["#17"]},
    {"must_include": ["3.11"]},
)
"""References in forms that few of WebArena's tasks have; the embedded sites have evaluators of their own."""
MARKS = (
    *string.punctuation,
    *"\u2013\u2014\u2018\u2019\u201c\u201d\u00ab\u00bb\u201e\u2026\u00b7\u2022\u20ac\u00a3\u00b0\u00d7\u2212\u00bd\u00a0",
    *("--", "---", "..", "...", "''", "``", "'s", "'ll", "n't", "%)", "),"),
    *(".)", ".'", '."', "?!", ",000", ":00", "th"),
)
"""Marks beside a number, of which some end a word."""
Case = Mapping[str, Any]
"""`kind` (answer, url or page), the task's `eval`, and the `answer`, the `url` or the `value` of the page's script.

`fails` replaces `value` if the script fails.
"""


def answer_cases() -> Iterator[Case]:
    """Yield answers: mutations of the reference of each task, and of each small number."""
    references = [task["eval"]["reference_answers"] for task in webarena_tasks() if is_exact(task["eval"])]
    numbers = [{"must_include": [str(number)]} for number in SMALL_NUMBERS]
    for reference in unique([*references, *numbers, *FURTHER]):
        evaluation = {"eval_types": ["string_match"], "reference_answers": reference, "string_note": ""}
        for answer in unique(answers(reference)):
            yield {"kind": "answer", "eval": evaluation, "answer": answer}
    evaluation = {"eval_types": ["string_match"], "reference_answers": {"must_include": ["5"]}, "string_note": ""}
    for answer in unique(numbers_in_context()):
        yield {"kind": "answer", "eval": evaluation, "answer": answer}


def url_cases() -> Iterator[Case]:
    """Yield URLs of last pages: mutations of the reference of each task."""
    for evaluation in unique([task["eval"] for task in webarena_tasks() if "url_match" in task["eval"]["eval_types"]]):
        reference = fill(evaluation["reference_url"])
        kept = {"eval_types": ["url_match"], "reference_url": reference, "url_note": "GOLD in PRED"}
        for url in unique(urls(reference)):
            yield {"kind": "url", "eval": kept, "url": url}


def page_cases() -> Iterator[Case]:
    """Yield contents of pages: results of the task's script, or the body of a page without a script.

    The last page stands for the page that a task names. A value that no string can hold is a number, true or null.
    """
    targets = [target for task in webarena_tasks() for target in task["eval"]["program_html"]]
    reward = {"url": "last", "locator": LOCATOR, "required_contents": {"exact_match": "1"}}
    kept = [
        {**target, "url": "last", "prep_actions": []}
        for target in [*targets, reward]
        if not target["locator"].startswith("func:")
    ]
    for target in unique(kept):
        for value in unique(values(target["required_contents"])):
            if target["locator"].strip() or isinstance(value, str):
                yield {
                    "kind": "page",
                    "eval": {"eval_types": ["program_html"], "program_html": [target]},
                    "value": value,
                }


def all_cases() -> list[Case]:
    """Return all cases, in the same order everywhere."""
    return [*answer_cases(), *url_cases(), *page_cases()]


def digest(cases: Sequence[Case]) -> str:
    """Return a hash of cases, which the stored verdicts belong to."""
    return hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()


def answers(reference: Mapping[str, Any]) -> Iterator[str]:
    """Yield the right answer and mutations of it."""
    parts = [part for value in reference.values() for part in ([value] if isinstance(value, str) else value)]
    right, first = ", ".join(parts), parts[0]
    for left, end in zip(
        ("'", '"', "\u201c", "\u2018", "`", "(", "**"), ("'", '"', "\u201d", "\u2019", "`", ")", "**"), strict=True
    ):
        yield f"{left}{right}{end}"
        yield f"The answer is {left}{right}{end}."
    yield from (f"'\"{right}\"'", f"\"'{right}'\"", f"''{right}''", f"\" '{right}' \"")
    yield from (right, right.upper(), right.lower(), f"  {right}\n", f"{right}.", f"{right}!", f"{right}?", f"{right};")
    yield from (f"The answer is {right}.", f"It is {right}. That is all.", f"It is {right}. 3 others are not.")
    yield from (f"{right}, I think", f"{right} or so", f"{right}'s", f"{right}s", f"{right} and {right}", f"{right}...")
    yield from (f"-{right}", f".{right}", f"${right}", f"#{right}", f"={right}", f"~{right}", f"{right}%", f"{right}/2")
    yield from (f"1{right}", f"{right}0", f"{right},5", f"{right}, 5", f"{right}:5", f"is:{right}", f"is: {right}")
    yield f"{right}-5"
    yield from ("\n".join(parts), "; ".join(parts), " and ".join(parts), json.dumps(parts), f"{right}\u2013{right}")
    yield from (first, ", ".join(parts[1:]), ", ".join(reversed(parts)), right[: len(right) // 2])
    yield from (right[1:], right[:-1])
    yield from ("", "N/A", "n/a", "0", "10", "'", "No answer.", right.replace(" ", "  "), right.replace(",", ""))


def numbers_in_context() -> Iterator[str]:
    """Yield texts with the number 5 beside a mark."""
    for mark in MARKS:
        yield from (f"5{mark}", f"{mark}5", f"{mark}5{mark}", f"a {mark}5 b", f"a 5{mark} b", f"a 5{mark}b")
        yield f"a{mark}5 b"
        yield from (f"It is 5{mark} then.", f"(5{mark})", f"5{mark}.", f"5. {mark} b", f"a {mark} 5 {mark}")


def urls(reference: str) -> Iterator[str]:
    """Yield the right URL and mutations of it."""
    for right in reference.split(" |OR| "):
        base, _, query = right.partition("?")
        parameters = query.split("&") if query else []
        scheme, _, rest = base.partition("://")
        host, _, path = rest.partition("/")
        yield from (right, f"{right}/", f"{right}//", f"{right}#part", right.upper(), f" {right}", f"{base}/", base)
        yield from (f"{base}?{'&'.join([*parameters, 'p=2'])}", f"{base}?{'&'.join(reversed(parameters))}")
        yield f"{base}?p=2"
        yield from (f"{base}?{'&'.join(parameters[1:])}", f"{base}?{'&'.join(part + '1' for part in parameters)}")
        yield from (f"{base}?{'&'.join(part.partition('=')[0] + '=' for part in parameters)}", f"{base}#{query}")
        yield from (f"{base}?{'&'.join([*parameters, *(part + '9' for part in parameters)])}", f"{base}?{query};x=1")
        yield from (f"https://{rest}", f"{scheme}://other.test/{path}", f"{scheme}://other.test/{host}/{path}")
        yield from (f"{base}/more?{query}", f"{base}more?{query}", f"{scheme}://{host}")
        yield f"{scheme}://{host}/x/{path}?{query}"
        yield from (right.replace("%20", "+"), right.replace("+", "%20"), right.replace("/", "%2F"), right[:-1])
        yield from (f"http://other.test/?u={right}", f"{scheme}://user@{rest}", base.replace("/", "//"), "about:blank")


def values(required: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a right content of a page and mutations of it."""
    if "exact_match" in required:
        parts = [required["exact_match"]]
    else:
        parts = [part.split(" |OR| ")[0] for part in required["must_include"]]
        yield from (part.split(" |OR| ")[-1] for part in required["must_include"])
    right = " ".join(parts)
    yield from (right, right.upper(), f"'{right}'", f"'\"{right}\"'", f"\n {right} \t", f"a {right} b", f"{right}0")
    yield from (right[:-1], " ".join(parts[1:]), " ".join(reversed(parts)), right.replace("&", "&amp;"))
    yield right.replace(" ", "&nbsp;")
    yield from (right.replace("'", "&#39;"), right.replace(" ", "\n"), "", "None", "null", "true", "&lt;p&gt;")
    yield from (None, True, False, 0, 1, 2, 1.5, [right], {"x": right})
    if right.isdigit():
        yield int(right)


def is_exact(evaluation: Mapping[str, Any]) -> bool:
    """Return True if no model judges the answer."""
    references = evaluation["reference_answers"] or {}
    return "string_match" in evaluation["eval_types"] and "fuzzy_match" not in references


def webarena_tasks() -> list[Mapping[str, Any]]:
    """Return WebArena's 812 tasks."""
    return [item.data for item in read_items(installed_task_file())]


def fill(text: str) -> str:
    """Return a text with the placeholders of sites replaced by URLs."""
    for mark, url in SITES.items():
        text = text.replace(mark, url)
    return text


def unique(records: Sequence[Any] | Iterator[Any]) -> list[Any]:
    """Return records without repetitions, in their order."""
    return list({json.dumps(record, sort_keys=True): record for record in records}.values())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(all_cases()))
