# mypy: ignore-errors
"""Run WebArena's own evaluators on cases from the standard input, and write their verdicts to the standard output.

`make webarena-verdicts` runs this file in a virtual environment of its own (`requirements/webarena-code.txt`). It
imports nothing of this project. The evaluators get a page that returns what the browser would. A text of verdicts has
one character for each case: 1, 0, or E if the evaluator raises an error.

Nothing of WebArena is changed but two calls that need a network: the client of a model provider, which no case uses,
is an empty class, and NLTK reads its sentence model from the package `llama-index-core`.
"""

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import types
from importlib.metadata import version
from pathlib import Path

import nltk

for name in ("REDDIT", "SHOPPING", "SHOPPING_ADMIN", "GITLAB", "WIKIPEDIA", "MAP", "HOMEPAGE"):
    os.environ[name] = f"http://{name.lower()}.test"
provider = types.ModuleType("text_generation")
provider.Client = object
sys.modules["text_generation"] = provider
package = importlib.util.find_spec("llama_index").submodule_search_locations[0]
nltk.data.path.insert(0, f"{package}/core/_static/nltk_cache")

from webarena.browser_env.actions import create_stop_action  # noqa: E402
from webarena.evaluation_harness.evaluators import evaluator_router  # noqa: E402
from webarena.evaluation_harness.helper_functions import PseudoPage  # noqa: E402


class CannedPage:
    """Page whose script has a known result."""

    def __init__(self, case: dict) -> None:
        self.case = case

    def evaluate(self, script: str) -> object:
        if self.case.get("fails"):
            raise ValueError("the script fails")
        return self.case["value"]

    def content(self) -> str:
        return self.case["value"]


def verdict(case: dict, config: Path) -> str:
    """Return the verdict on a case."""
    config.write_text(json.dumps({"intent": "", "eval": case["eval"]}))
    page = PseudoPage(CannedPage(case), case.get("url", "http://shop.test/"))
    try:
        return str(int(evaluator_router(config)([create_stop_action(case.get("answer", ""))], config, page, None)))
    except Exception:  # any error of WebArena's code is its verdict
        return "E"


def main() -> None:
    """Evaluate all cases."""
    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        verdicts = "".join(verdict(case, Path(folder) / "config.json") for case in cases)
    made_with = {name: version(name) for name in ("libwebarena", "nltk", "llama-index-core", "beartype")}
    digest = hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()
    json.dump({"made_with": made_with, "cases": digest, "verdicts": verdicts}, sys.stdout, indent=1)


main()
