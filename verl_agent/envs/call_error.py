"""Errors of function calls: their kinds, and the answer that a model reads."""

from collections.abc import Mapping
from dataclasses import dataclass

from verl_agent.actions import CALL_ERROR
from verl_agent.types import StepResult

NO_CALL = "no_call"
BROKEN_JSON = "broken_json"
UNKNOWN_FUNCTION = "unknown_function"
MISSING = "missing_argument"
UNKNOWN = "unknown_argument"
WRONG = "wrong_argument"
FAILED = "function_failed"
NOT_DONE = "not_done"
CALL_ERRORS: Mapping[str, str] = {
    NO_CALL: "the reply has no call",
    BROKEN_JSON: "the call is cut off, or is not in its format",
    UNKNOWN_FUNCTION: "the function does not exist",
    MISSING: "an argument is missing",
    UNKNOWN: "an argument does not exist",
    WRONG: "an argument has a value that is not allowed",
    FAILED: "the function raised an exception or returned no JSON",
    NOT_DONE: "the call was not carried out because of another one in the same reply",
}
"""Kinds of errors of a call, and their meaning."""


@dataclass(frozen=True, slots=True)
class CallError:
    """Answer to a call, or to a reply without one, that does not reach the environment.

    Attributes:
        kinds: keys of `CALL_ERRORS`, each once.
        text: explanation for the model.
        name: name of the function, as the model wrote it; "" if it wrote none.
    """

    kinds: tuple[str, ...]
    text: str
    name: str = ""

    @property
    def step(self) -> StepResult:
        """Answer to the model, which counts the kinds."""
        if self.kinds == (NOT_DONE,):
            return StepResult(self.text, info={f"{CALL_ERROR}_{NOT_DONE}": 1.0})
        kinds = {f"{CALL_ERROR}_{kind}": 1.0 for kind in self.kinds}
        return StepResult(self.text, info={"invalid_action": 1.0, CALL_ERROR: 1.0, **kinds})


def errors_of(step: StepResult) -> tuple[str, ...]:
    """Return the kinds of errors that the answer to one call counts."""
    return tuple(kind for kind in CALL_ERRORS if step.info.get(f"{CALL_ERROR}_{kind}"))
