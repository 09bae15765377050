"""File of results beside a file of records. It has samples only; `summary` computes the shares."""

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from verl_agent.envs.machine.locks import locked
from verl_agent.errors import ConfigError
from verl_agent.json_lines import remove_unfinished_line
from verl_agent.trace.turn_record import StopName

logger = logging.getLogger(__name__)

VERSION: Literal[2] = 2
"""Version of the lines. It increases when a field changes its meaning or disappears."""
SUFFIX = ".what_if"
"""Text after the name of a file of records that gives its file of results."""

Source = Literal["recorded", "given", "oracle"]
"""Origin of an action: the recorded turn, the command line, or the environment's oracle."""


class SampledTurn(TypedDict):
    """Fields of both kinds of results: the turn, the policy, and the samples' indexes among those of one seed.

    `settings` is a checksum of the other settings with which the samples were drawn; see `Sampling`. `indexes` has the
    index of each sample, in their order.
    """

    version: Literal[2]
    episode: str
    task: str
    turn: int
    model: str
    temperature: float
    top_p: float
    seed: int
    settings: str
    indexes: list[int]
    measured_at: str


class SampledReply(TypedDict):
    """One reply: its text, the action that the agent read in it, and its length in tokens."""

    text: str
    action: str | None
    tokens: int


class PlayedEpisode(TypedDict):
    """One episode that was played on: its result, and its actions from the chosen turn on."""

    success: bool
    reward: float
    stop: StopName
    actions: list[str | None]


@with_config(ConfigDict(strict=True))
class Replies(SampledTurn):
    """Replies that a policy gave at a recorded turn.

    `with_thought` is false if the beginning of the action was given, so that the reply has no thought before it.
    """

    kind: Literal["replies"]
    with_thought: bool
    replies: list[SampledReply]


@with_config(ConfigDict(strict=True))
class Continuations(SampledTurn):
    """Episodes that a policy played on after an action at a recorded turn.

    `reply` is the text in which the action stood; `failed` has the indexes of the episodes that are left out, because
    their environment failed.
    """

    kind: Literal["continuations"]
    action: str | None
    source: Source
    reply: str
    max_turns: int
    failed: list[int]
    episodes: list[PlayedEpisode]


Result = Replies | Continuations
_RESULT: TypeAdapter[Result] = TypeAdapter(Annotated[Result, Field(discriminator="kind")])


def results_file(records: Path) -> Path:
    """Return the file of results of a file of records; readers of `*.jsonl` do not see it."""
    return records.with_name(records.name + SUFFIX)


def read_results(file: Path) -> list[Result]:
    """Return the results in a file, oldest first; a missing file has none, and invalid lines are skipped and logged."""
    if not file.is_file():
        return []
    results = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            results.append(_RESULT.validate_python(json.loads(line)))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            logger.warning("%s:%d: skipped: %s: %s", file, number, ".".join(map(str, first["loc"])), first["msg"])
        except ValueError as error:
            logger.warning("%s:%d: skipped: %s", file, number, error)
    return results


def append_results(file: Path, results: Iterable[Result]) -> None:
    """Append results; each is complete on disk before this returns, also where two commands write at once.

    Raises:
        ConfigError: the file cannot be written.
    """
    lines = "".join(json.dumps(result) + "\n" for result in results)
    try:
        with locked(file):
            remove_unfinished_line(file)
            with file.open("a", encoding="utf-8") as out:
                out.write(lines)
    except OSError as error:
        raise _not_writable(file, error) from error


def check_writable(file: Path) -> None:
    """Check that results can be appended, before a model is loaded.

    Raises:
        ConfigError: they cannot.
    """
    target = file if file.exists() else file.parent
    if not os.access(target, os.W_OK):
        raise _not_writable(file, PermissionError("no permission"))


def _not_writable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the results cannot be written to {file} ({error.strerror or error}). Free disk space, or copy the records to "
        "a folder that you may write to, together with play.json of the run."
    )
