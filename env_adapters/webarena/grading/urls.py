"""Comparison of the URL of the agent's last page with the references of a task."""

from urllib.parse import SplitResult, parse_qs, urlsplit

OR = " |OR| "
EXACT_URL = "EXACT"
"""Value of a task's field `url_note` that selects the exact comparison of `url_match`."""


def url_match(reference: str, url: str, exact: bool = False) -> float:
    """Return 1.0 if `url` matches one of the references, else 0.0.

    It must contain host and path of a reference, and every parameter of the references' queries with an allowed value.
    So one URL can match the references of many tasks.

    Args:
        reference: URLs joined by ` |OR| `.
        exact: require host and path of a reference, and only allowed values of its parameters.

    Example:
        >>> url_match("http://shop.test/list?size=m", "http://shop.test/list?page=2&size=m")
        1.0
    """
    given = urlsplit(url.rstrip("/"))
    query = parse_qs(given.query)
    references = [urlsplit(text.rstrip("/")) for text in reference.split(OR)]
    if exact:
        return float(any(_is_page(expected, given) for expected in references))
    if not any(expected.netloc + expected.path in given.netloc + given.path for expected in references):
        return 0.0
    allowed: dict[str, set[str]] = {}
    for expected in references:
        for key, values in parse_qs(expected.query).items():
            allowed.setdefault(key, set()).update(values)
    return float(all(values & set(query.get(key, ())) for key, values in allowed.items()))


def _is_page(expected: SplitResult, given: SplitResult) -> bool:
    """Return True for the page of a reference, with any further parameters."""
    query, allowed = parse_qs(given.query), parse_qs(expected.query)
    same = all(key in query and set(query[key]) <= set(values) for key, values in allowed.items())
    return (given.netloc, given.path.rstrip("/")) == (expected.netloc, expected.path.rstrip("/")) and same
