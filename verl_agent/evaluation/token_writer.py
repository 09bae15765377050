"""Writer of the tokens of an evaluation, with the most likely alternatives at each one (`evaluation.logprobs`)."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Self

from verl_agent.rollout.engine_policy import EnginePolicy, TopLogProbs
from verl_agent.rollout.tokens import Segment
from verl_agent.trace.token_files import FOLDER, RecordingBoundary, TokenRow, write_tokens
from verl_agent.types import TaskItem

ROWS = 32
"""Segments that are written in one file. Those of a process that is killed are lost; the episodes are not."""


class TokenWriter:
    """Writes `<folder>/tokens/*.parquet`. A failure is logged and ends the recording, not the evaluation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._rows: list[TokenRow] = []
        self._boundary = RecordingBoundary()
        self._decode: Callable[[int], str] = str
        self._started, self._numbers = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}", count()

    def add(self, policy: EnginePolicy, item: TaskItem, sample: int) -> None:
        """Add the tokens of an episode that has ended; its group in the record is the id of its task."""
        if self._boundary.failed:
            return
        with self._boundary(f"{item.id}, sample {sample}"):
            self._rows += token_rows(policy.tokens.segments(), policy.top_log_probs, item.id, sample)
            self._decode = lambda token: str(policy.tokenizer.decode([token]))
            if len(self._rows) >= ROWS:
                self._write()

    def _write(self) -> None:
        if self._rows:
            file = self._folder / f"{self._started}-{next(self._numbers):04d}.parquet"
            write_tokens(file, self._rows, self._decode)
            self._rows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._boundary.failed:
            with self._boundary("last episodes"):
                self._write()


def token_rows(
    segments: Sequence[Segment], alternatives: Sequence[TopLogProbs], group: str, sample: int
) -> list[TokenRow]:
    """Return the rows of one episode.

    Args:
        alternatives: most likely tokens at each token that the model wrote, in order.

    Raises:
        ValueError: there is not one entry of `alternatives` for each written token, which is a bug.
    """
    left, rows, turn = iter(alternatives), [], -1
    for number, segment in enumerate(segments):
        mask = segment.response_mask
        turns = []
        for before, written in pairwise([0, *mask]):
            turn += written > before
            turns.append(turn if written else -1)
        top = [next(left, None) if written else None for written in mask]
        if any(entry is None and written for entry, written in zip(top, mask, strict=True)):
            raise ValueError(f"segment {number} of {group!r} has more written tokens than alternatives were recorded.")
        columns: dict[str, Sequence[Any]] = {
            "top_token_ids": [entry and [token for token, _ in entry] for entry in top],
            "top_logprobs": [entry and [value for _, value in entry] for entry in top],
        }
        if segment.response_log_probs is not None:
            columns["inference_logprobs"] = segment.response_log_probs
        prompt = len(segment.prompt_ids)
        rows.append(
            TokenRow(
                group=group,
                sample=sample,
                segment=number,
                step=0,
                prompt_length=prompt,
                token_ids=[*segment.prompt_ids, *segment.response_ids],
                loss_mask=[*[False] * prompt, *map(bool, mask)],
                turns=[*[-1] * prompt, *turns],
                columns=columns,
            )
        )
    if next(left, None) is not None:
        raise ValueError(f"{group!r} has fewer written tokens than alternatives were recorded.")
    return rows
