"""Section `judge`: a model that grades episodes against a rubric."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass as strict_dataclass

from verl_agent.envs.model_api.prices import check_prices
from verl_agent.envs.model_api.settings import OWN_FIELDS, ApiSettings, Prices, read_key
from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT, Needs, OnResume, section, settings
from verl_agent.values import read_plain_yaml

RUBRIC = "Set judge.rubric to a file with a question or with criteria."
ANSWER = "answer"
"""Name of the only criterion of a rubric with one question."""
TOLERANCE = 1e-6
"""Largest difference between the sum of the weights and 1."""


@strict_dataclass(frozen=True, slots=True, config=STRICT)
class Criterion:
    """One criterion of a rubric."""

    name: Annotated[str, Field(pattern=r"^\w[\w -]{0,59}$")]
    """Name in requests, records and reports: letters, digits, spaces, `-` and `_`."""
    description: Annotated[str, Field(min_length=1)]
    """Text that the judge reads."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the score, > 0; the weights of a rubric sum to 1."""


def named(error: Exception) -> str:
    """Return the message of the API client with the keys of section `judge`."""
    return str(error).replace("model.api.", "judge.api.").replace("evaluation.max_usd", "judge.max_usd")


@contextmanager
def naming_judge() -> Iterator[None]:
    """Let a ConfigError of the block name the keys of section `judge`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(named(error)) from error


NEEDS = Needs("judge.rubric", instead=RUBRIC)


@settings("judge.api.prices", NEEDS)
class JudgePrices(Prices):
    """Prices of the judge in US dollars per million tokens. Without prices the package genai-prices is asked."""

    def __post_init__(self) -> None:
        with naming_judge():
            Prices.__post_init__(self)


@settings("judge.api", NEEDS)
class JudgeApi(ApiSettings):
    """Model of the judge, by API or on a local server; the fields are those of `model.api`."""

    kind: Literal["openai", "anthropic"] | None = "openai"
    """Protocol of the server: `openai` (chat completions, also vLLM, SGLang, Ollama, llama.cpp) or `anthropic`."""
    max_output_tokens: Annotated[int, Field(ge=1)] = 1024
    """Most tokens of one verdict, reasoning included; twice as many when it is asked again after a cut reply."""
    prices: Annotated[JudgePrices, OnResume("train", "eval")] = Field(default_factory=JudgePrices)
    """Prices of the model, for the cost of each verdict and for `judge.max_usd`."""

    def __post_init__(self) -> None:
        for field in self.options:
            if field in OWN_FIELDS:
                raise ConfigError(f"judge.api.options.{field} is not allowed: the judge sets it. Leave it out.")
        if self.name is not None:  # else `JudgeSettings` refuses it with a rubric
            with naming_judge():
                ApiSettings.__post_init__(self)


@settings("judge")
class JudgeSettings:
    """A model that grades each finished episode, for its reward."""

    rubric: str | Mapping[str, Any] | None = None
    """YAML or JSON file with `question`, or with `criteria`: a list of `name`, `description` and `weight`, whose
    weights sum to 1; or this content itself. Null for no judge."""
    api: JudgeApi = Field(default_factory=JudgeApi)
    """Model of the judge."""
    when: Annotated[Literal["end", "turn"], NEEDS] = "end"
    """`end`: one request for an episode, whose last turn has the reward. `turn`: one request for each turn, with the
    episode up to it; a turn then has its score divided by the number of turns."""
    mode: Annotated[Literal["add", "replace"], NEEDS] = "add"
    """`add`: training adds the judge's reward to the shaped return, and return and success stay those of the
    environment. `replace`: the judge's reward is the return, and `success_score` decides on success."""
    weight: Annotated[float, NEEDS] = 1.0
    """Reward of an episode with the score 1, not 0; above 0 with `mode: replace`."""
    success_score: Annotated[Annotated[float, Field(gt=0, le=1)], Needs("judge.mode", "replace")] = 0.5
    """Score from which an episode counts as solved, above 0, up to 1."""
    max_chars: Annotated[Annotated[int, Field(ge=1000)], NEEDS] = 60_000
    """Most characters of an episode in a request; of a longer one the middle is left out."""
    concurrency: Annotated[Annotated[int, Field(ge=1)], NEEDS, OnResume("train", "play")] = 16
    """Most requests at once of a process that plays."""
    max_requests: Annotated[Annotated[int, Field(ge=1)] | None, NEEDS, OnResume("train", "eval")] = None
    """Most requests in the cache of a run; the run stops before the next one. Null for no limit."""
    max_usd: Annotated[Annotated[float, Field(gt=0)] | None, NEEDS, OnResume("train", "eval")] = None
    """Most US dollars that the requests in the cache may cost; the run stops before it exceeds them. Null: no limit."""
    cache: Annotated[str | None, NEEDS, OnResume("train", "play")] = None
    """Folder with the replies of the judge, by the content of the request; null for `judge` in the run's folder."""

    def __post_init__(self) -> None:
        if self.rubric is None:
            return
        self.criteria()
        if self.api.kind is None or not self.api.name:
            raise ConfigError("judge.api.name is missing. Set the name of the model that judges.")
        if not self.weight or (self.mode == "replace" and self.weight < 0):
            allowed = "a number above 0" if self.mode == "replace" else "a number but 0"
            raise ConfigError(f"judge.weight={self.weight:g} is not allowed. Allowed: {allowed}.")

    def criteria(self) -> Sequence[Criterion]:
        """Return the criteria of the rubric.

        Raises:
            ConfigError: the rubric cannot be read, or is not one.
        """
        return read_rubric(self.rubric)

    def check(self, judges: int = 1) -> None:
        """Check what a run needs before it starts.

        Args:
            judges: number of judges that share its limits.

        Raises:
            ConfigError: the key of the server is missing, `max_usd` needs prices that are unknown, or a judge has no
                request.
        """
        if self.rubric is not None:
            if self.max_requests is not None and self.max_requests < judges:
                raise ConfigError(
                    f"judge.max_requests={self.max_requests} is not allowed: each process that plays has a judge for "
                    f"each environment with judge.rubric, and shares of {judges} judges would be below 1. Allowed: "
                    f"{judges} or more, or null. Or lower actor_rollout_ref.rollout.agent.num_workers."
                )
            with naming_judge():
                read_key(self.api)
                check_prices(self.api, self.max_usd)

    def identity(self) -> Mapping[str, Any]:
        """Return the content of the rubric, which a resumed run keeps; empty without a judge."""
        return {} if self.rubric is None else {"rubric": [asdict(one) for one in self.criteria()]}


def read_rubric(source: Any) -> Sequence[Criterion]:
    """Return the criteria of a file or of its content; see `JudgeSettings.rubric`."""
    where = f"judge.rubric={source!r}" if isinstance(source, str) else "judge.rubric"
    content = source
    if isinstance(source, str):
        try:
            content = read_plain_yaml(Path(source))
        except (ConfigError, yaml.YAMLError) as error:
            raise ConfigError(f"{where} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping) or len(content) != 1 or not {"question", "criteria"} & content.keys():
        raise ConfigError(f"{where} is no rubric. Allowed: either `question: TEXT`, or `criteria` as a list.")
    if "question" in content:
        return (section(f"{where}: question", Criterion, {"name": ANSWER, "description": content["question"]}),)
    rows = content["criteria"]
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise ConfigError(f"{where}: criteria must be a list of {{name, description, weight}}.")
    criteria = [section(f"{where}: criteria[{index}]", Criterion, _numbers(row)) for index, row in enumerate(rows)]
    names = [one.name for one in criteria]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where} has several criteria with the name {', '.join(repeated)}. Rename them.")
    total = math.fsum(one.weight for one in criteria)
    if abs(total - 1) > TOLERANCE:
        raise ConfigError(f"{where}: the weights sum to {total:g}. Let them sum to 1.")
    return criteria


def _numbers(row: Any) -> Any:
    """Return a criterion whose whole weight is a float, as strict types want it."""
    if isinstance(row, Mapping) and type(row.get("weight")) is int:
        return {**row, "weight": float(row["weight"])}
    return row
