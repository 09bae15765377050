"""Evaluators of WebArena-Verified: the package `webarena-verified` checks the agent's response and its network log.

The package compares typed values (for example, `$3.50` with `3.5 USD`) and requests instead of texts of pages.
"""

import json
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from env_adapters.webarena.tasks.site_urls import placeholder
from verl_agent.errors import ConfigError, EnvError

KIND = "webarena_verified"
"""Evaluator in the field `eval.eval_types` of these tasks."""
INSTALL_COMMAND = "pip install --no-deps -r requirements/webarena-verified.txt"
NO_RESPONSE: Mapping[str, Any] = {"task_type": "NAVIGATE", "status": "UNKNOWN_ERROR"}
PATTERN_MARK = "^"
"""A text that begins with `^` and ends with `$` is a regular expression for the package, also in an answer."""
PLACE = "webarena_verified/assets/dataset"


def data_file(name: str) -> Path:
    """Return a file of the package's data set, without importing the package.

    Raises:
        ConfigError: the package is not installed.
    """
    package, *folders = PLACE.split("/")
    spec = find_spec(package)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        return Path(root).joinpath(*folders, name)
    raise ConfigError(f"tasks=webarena_verified needs the package webarena-verified. Install it: {INSTALL_COMMAND}")


def score(task_id: int, answer: str, network_log: Path, sites: Mapping[str, str]) -> float:
    """Return the score of an episode, 0.0 or 1.0.

    Args:
        answer: answer of the agent, a JSON object with `task_type`, `status` and `retrieved_data`; see
            `plain_response`.

    Raises:
        ConfigError: the package or one of its dependencies is not installed.
        EnvError: the package could not evaluate the episode.
    """
    response = plain_response(answer)
    if response is None:
        return 0.0
    evaluator = _evaluator(tuple(sorted(sites.items())))
    result = evaluator.evaluate_task(task_id=task_id, agent_response=response, network_trace=network_log)
    if result.error_msg is not None:  # is the answer or the log the reason?
        result = evaluator.evaluate_task(task_id=task_id, agent_response=NO_RESPONSE, network_trace=network_log)
        if result.error_msg is not None:
            raise EnvError(f"webarena-verified could not evaluate task {task_id}: {result.error_msg[:300]}")
    return float(result.score)


def plain_response(answer: str) -> dict[str, Any] | None:
    """Return the JSON object of an answer, or None if the answer has another form or names more than one value.

    The package matches regular expressions and lists of alternatives from both sides. So `^.*$` would be right for
    every task, and a list of all values for many.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        response = json.loads(answer)
        if not isinstance(response, dict):
            return None
        data = response.get("retrieved_data")
        if not all(map(_is_single, data if isinstance(data, list) else [data])):
            return None
        return None if PATTERN_MARK in as_the_package_reads(json.dumps(response, ensure_ascii=False)) else response
    except (ValueError, RecursionError):  # no JSON, or nested too deeply
        return None


def as_the_package_reads(text: str) -> str:
    """Return a text in ASCII without percent-encoding, as the package compares it.

    Many characters become `^`, for example U+2303. See `core/evaluation/data_types/base.py` of the package.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        from unidecode import unidecode
    except ImportError as error:
        raise _missing(error) from error
    while (decoded := unquote(text)) != text:
        text = decoded
    return str(unidecode(text) + unidecode(unicodedata.normalize("NFKC", text)))


def _is_single(value: Any) -> bool:
    """Return True if a value contains no list."""
    return all(map(_is_single, value.values())) if isinstance(value, dict) else not isinstance(value, list)


@cache
def _evaluator(sites: tuple[tuple[str, str], ...]) -> Any:
    try:
        from webarena_verified.api import WebArenaVerified
        from webarena_verified.types.config import WebArenaVerifiedConfig
    except ImportError as error:
        raise _missing(error) from error
    environments = {placeholder(site): {"urls": [url]} for site, url in sites}
    return WebArenaVerified(config=WebArenaVerifiedConfig(environments=environments))


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"webarena-verified cannot be imported ({error}). Install it: {INSTALL_COMMAND}")
