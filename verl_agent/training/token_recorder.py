"""Recorder of token data: every so many steps, the tokens of some groups as verl's queue holds them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transfer_queue import KVBatchMeta

from verl_agent.rollout.settings import TokenRecording
from verl_agent.trace.token_files import RecordingBoundary, TokenRow, training_file, write_tokens
from verl_agent.training.groups import group_of, row_order
from verl_agent.training.turn_batch import TurnBatch, computed, fetch_columns

SECONDS = "timing_s/record_tokens"
"""Metric: seconds of the step that the recording took."""
COLUMNS = {
    "rollout_log_probs": "inference_logprobs",
    "old_log_probs": "trainer_logprobs",
    "entropy": "entropy",
    "advantages": "advantages",
    "values": "values",
    "rollout_is_weights": "rollout_is_weights",
}
"""Names of verl's columns, and those in the file."""


@dataclass(frozen=True, slots=True)
class TokenRecorder:
    """Writes `tokens/step_N.parquet` in the folder of a run.

    Attributes:
        bypass_mode: True if the engine's log-probs are also verl's old ones; the trainer's are then unknown.
    """

    settings: TokenRecording
    run: Path
    tokenizer: Any
    bypass_mode: bool = False
    boundary: RecordingBoundary = field(default_factory=RecordingBoundary)

    def record(self, batch: KVBatchMeta, turn_batch: TurnBatch, step: int) -> dict[str, float]:
        """Write the first groups of a batch if its step is due, and return the metric `SECONDS`.

        A failure is logged and ends the recording: the run does not need it.
        """
        if self.boundary.failed or not self.settings.due(step):
            return {}
        start = time.perf_counter()
        with self.boundary(f"step {step}"):
            if rows := self._rows(batch, turn_batch, step):
                write_tokens(training_file(self.run, step), rows, lambda token: str(self.tokenizer.decode([token])))
        return {SECONDS: time.perf_counter() - start}

    def _rows(self, batch: KVBatchMeta, turn_batch: TurnBatch, step: int) -> list[TokenRow]:
        numbers = chosen_rows(batch.keys, turn_batch.padding, self.settings.groups)
        if not numbers:
            return []
        keys = [batch.keys[number] for number in numbers]
        names = ["prompts", "responses", "response_mask", *computed(COLUMNS, self.bypass_mode)]
        part = KVBatchMeta(partition_id=batch.partition_id, keys=keys, tags=[batch.tags[number] for number in numbers])
        columns = fetch_columns(part, names)
        return [
            _row(key, {name: values[index] for name, values in columns.items()}, turn_batch, number, step)
            for index, (number, key) in enumerate(zip(numbers, keys, strict=True))
        ]


def chosen_rows(keys: Sequence[str], padding: Sequence[bool], groups: int) -> list[int]:
    """Return the positions of the rows of the first groups, in the order of groups, samples and segments."""
    rows = [number for number, padded in enumerate(padding) if not padded]
    chosen = set(sorted({group_of(keys[number]) for number in rows})[:groups])
    return sorted((n for n in rows if group_of(keys[n]) in chosen), key=lambda number: row_order(keys[number]))


def _row(key: str, values: Mapping[str, Tensor], turn_batch: TurnBatch, number: int, step: int) -> TokenRow:
    prompt, response = values["prompts"].numpy(), values["responses"].numpy()
    turns = np.full(len(response), -1, np.int16)
    for turn in turn_batch.turns:
        if turn.row == number:
            turns[turn.start : turn.end] = turn.number
    trained = values["response_mask"].numpy().astype(bool) & (not turn_batch.dropped[number])
    group, sample, segment = row_order(key)
    columns: dict[str, Sequence[Any]] = {
        ours: values[name].float().numpy() for name, ours in COLUMNS.items() if name in values
    }
    if (versions_T := turn_batch.versions[number]).max() >= 0:
        columns["versions"] = versions_T.tolist()
    return TokenRow(
        group=group,
        sample=sample,
        segment=segment,
        step=step,
        prompt_length=len(prompt),
        token_ids=np.concatenate([prompt, response]).tolist(),
        loss_mask=[*[False] * len(prompt), *trained.tolist()],
        turns=[*[-1] * len(prompt), *turns.tolist()],
        columns=columns,
    )
