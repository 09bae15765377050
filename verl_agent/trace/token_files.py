"""Files of token data: one row for each trained segment, in Parquet, and their reader.

Columns have the names of prime-rl's token export (src/prime_rl/trainer/rl/token_export.py) where it has one.
Arrow and NumPy hold 43 MB: they are imported by what reads or writes a file.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

TOKEN_FILE_VERSION = 1
"""Version of the format. It increases when a column changes its meaning or disappears, not for a new one."""
_VERSION_KEY = b"verl_agent_tokens"
FOLDER = "tokens"
"""Folder of the files in that of a run or an evaluation."""
ROW_GROUP = 8
"""Rows of a row group, the least that a reader of one segment loads."""


@dataclass(frozen=True, slots=True)
class TokenColumn:
    """Definition of a column with one value for each token.

    Attributes:
        written_only: True if only tokens that the model wrote have a value; the others are null.
        kind: type of the value in Arrow, `[]` after that of a list's elements.
    """

    name: str
    meaning: str
    written_only: bool = False
    kind: str = "float32"


COLUMNS = (
    TokenColumn("inference_logprobs", "log-prob in the engine that sampled the token", written_only=True),
    TokenColumn("trainer_logprobs", "log-prob in the trainer before the update"),
    TokenColumn("entropy", "entropy of the trainer's policy at the token, in nats"),
    TokenColumn("advantages", "advantage, as the loss uses it", written_only=True),
    TokenColumn("values", "critic's value of the state before the token"),
    TokenColumn("rollout_is_weights", "importance weight of the token in the loss (verl's name)", written_only=True),
    TokenColumn("versions", "training step of the weights that sampled the token", True, "int32"),
    TokenColumn("top_token_ids", "ids of the most likely tokens", True, "int32[]"),
    TokenColumn("top_logprobs", "log-probs of `top_token_ids`", True, "float32[]"),
)
"""Columns beside `token_ids`, `tokens`, `loss_mask` and `turns`. One that a run does not have is left out."""


@dataclass(slots=True)
class TokenRow:
    """Tokens of one segment of an episode: N tokens, of which the last T came after the prompt.

    Attributes:
        group: group of the episode, as in its record.
        sample: index of the episode in the group.
        segment: number of the segment in its episode, from 0.
        step: training step; 0 in an evaluation.
        prompt_length: number of tokens before the first reply, N - T.
        token_ids: ids, N values.
        loss_mask: N values, True where the token is in the loss; in an evaluation, where the model wrote it.
        turns: N values, number of the turn in which the model wrote the token, from 0; -1 for other tokens.
        columns: values of `COLUMNS` by name, for the T tokens after the prompt.
        texts: text of each token; filled in by the reader.
        top_texts: texts of `top_token_ids`; filled in by the reader.
    """

    group: str
    sample: int
    segment: int
    step: int
    prompt_length: int
    token_ids: Sequence[int]
    loss_mask: Sequence[bool]
    turns: Sequence[int]
    columns: Mapping[str, Sequence[Any]]
    texts: list[str] = field(default_factory=list)
    top_texts: list[list[str]] = field(default_factory=list)


def write_tokens(path: Path, rows: Sequence[TokenRow], decode: Callable[[int], str]) -> None:
    """Write a file, replacing an older one at once.

    Args:
        path: path of the file; its folder is created.
        rows: segments. A column that only some of them have is null in the others.
        decode: text of a token id; called once for each distinct id.

    Raises:
        OSError: the file cannot be written, for example because the disk is full.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.concatenate([np.asarray(row.token_ids, dtype=np.int32) for row in rows])
    offsets = np.cumsum([0, *(len(row.token_ids) for row in rows)], dtype=np.int32)
    written = np.concatenate([np.asarray(row.turns) for row in rows]) >= 0
    prompt = np.concatenate([np.arange(len(row.token_ids)) < row.prompt_length for row in rows])

    def by_token(values: pa.Array) -> Any:
        return pa.ListArray.from_arrays(pa.array(offsets), values)

    table = {
        "step": pa.array([row.step for row in rows], pa.int32()),
        "group": pa.array([row.group for row in rows], pa.string()),
        "sample": pa.array([row.sample for row in rows], pa.int32()),
        "segment": pa.array([row.segment for row in rows], pa.int32()),
        "prompt_length": pa.array([row.prompt_length for row in rows], pa.int32()),
        "token_ids": by_token(pa.array(ids)),
        "tokens": by_token(_texts(ids, decode)),
        "loss_mask": by_token(pa.array(np.concatenate([np.asarray(row.loss_mask, dtype=bool) for row in rows]))),
        "turns": by_token(pa.array(np.concatenate([np.asarray(row.turns, dtype=np.int16) for row in rows]))),
    }
    for column in COLUMNS:
        if any(column.name in row.columns for row in rows):
            lacking = np.concatenate([np.full(len(row.token_ids), column.name not in row.columns) for row in rows])
            absent = (~written if column.written_only else prompt) | lacking
            table[column.name] = by_token(_values(rows, column, absent))
    if "top_token_ids" in table:
        top = table["top_token_ids"].values
        texts = _texts(top.values.to_numpy(zero_copy_only=False), decode)
        nested = pa.ListArray.from_arrays(top.offsets, texts, mask=top.is_null())
        table["top_tokens"] = by_token(nested)
    metadata = {_VERSION_KEY: str(TOKEN_FILE_VERSION).encode()}
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        arrays = pa.table(table).replace_schema_metadata(metadata)
        repeated = ["group", "tokens.list.element", "top_tokens.list.element.list.element"]
        pq.write_table(arrays, partial, compression="zstd", row_group_size=ROW_GROUP, use_dictionary=repeated)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _texts(ids: Any, decode: Callable[[int], str]) -> Any:
    """Return the text of each id; a text that occurs often is stored once."""
    import numpy as np
    import pyarrow as pa

    distinct, index = np.unique(ids, return_inverse=True)
    texts = [decode(int(token)).encode("utf-8", "replace").decode() for token in distinct]
    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32)), pa.array(texts, pa.string()))


def _values(rows: Sequence[TokenRow], column: TokenColumn, absent: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    kind = pa.type_for_alias(column.kind.removesuffix("[]"))
    kind = pa.list_(kind) if column.kind.endswith("[]") else kind
    parts = [row.columns.get(column.name, [0] * (len(row.token_ids) - row.prompt_length)) for row in rows]
    if not pa.types.is_floating(kind):
        values = [value for row, part in zip(rows, parts, strict=True) for value in [*[0] * row.prompt_length, *part]]
        return pa.array([None if out else value for value, out in zip(values, absent, strict=True)], kind)
    padded = [
        np.concatenate([np.zeros(row.prompt_length, np.float32), np.asarray(part, np.float32)])
        for row, part in zip(rows, parts, strict=True)
    ]
    return pa.array(np.concatenate(padded), kind, mask=absent)


@dataclass(slots=True)
class RecordingBoundary:
    """Error boundary of a recorder of tokens: the first failure is logged and ends the recording, never the run.

    Attributes:
        failed: True after a failure; the recorder then does nothing.
    """

    failed: bool = False

    @contextmanager
    def __call__(self, place: str) -> Iterator[None]:
        """Run the body; `place` begins the message of a failure."""
        try:
            yield
        except Exception as error:  # boundary: token data is an aid, and a run of days does not need it
            self.failed = True
            text = "%s: the token data is not written, and no more is recorded (%s)"
            logger.warning(text, place, error, exc_info=not isinstance(error, OSError))


def training_file(run: Path, step: int) -> Path:
    """Return the path of the token data of a training step."""
    return run / FOLDER / f"step_{step}.parquet"


def token_files(folder: Path, step: int | None = None) -> list[Path]:
    """Return the token files of a run or an evaluation, sorted; those of one training step if it is given."""
    if step:
        file = training_file(folder, step)
        return [file] if file.is_file() else []
    return sorted((folder / FOLDER).glob("*.parquet"))


def read_tokens(path: Path, group: str, sample: int) -> list[TokenRow]:
    """Return the segments of one episode, in order; an empty list if the file does not have it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a file of token data, or of a newer version.
    """
    import pyarrow.parquet as pq

    column_names(path)
    table = pq.read_table(path, filters=[("group", "=", group), ("sample", "=", sample)])
    rows = sorted(table.to_pylist(), key=lambda values: int(values["segment"]))
    names = {column.name for column in COLUMNS}
    return [
        TokenRow(
            group=values["group"],
            sample=values["sample"],
            segment=values["segment"],
            step=values["step"],
            prompt_length=values["prompt_length"],
            token_ids=values["token_ids"],
            loss_mask=values["loss_mask"],
            turns=values["turns"],
            columns={name: value[values["prompt_length"] :] for name, value in values.items() if name in names},
            texts=values["tokens"],
            top_texts=values.get("top_tokens") or [],
        )
        for values in rows
    ]


@dataclass(frozen=True, slots=True)
class TurnValue:
    """Critic's value of the state in which a turn begins.

    Attributes:
        value: value before the first token of the reply.
        tokens: number of tokens that the model wrote in the turn.
    """

    value: float
    tokens: int


def read_token_columns(path: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return columns of all segments of a file: their values by name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a file of token data.
    """
    import pyarrow.parquet as pq

    return list(pq.read_table(path, columns=list(names)).to_pylist())


def read_turn_values(path: Path) -> dict[tuple[str, int], dict[int, TurnValue]]:
    """Return the values of the turns, from 0, of each episode by group and sample; empty without a critic.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a file of token data, or of a newer version.
    """
    import numpy as np
    import pyarrow.parquet as pq

    if "values" not in column_names(path):
        return {}
    table = pq.read_table(path, columns=["group", "sample", "turns", "values"]).combine_chunks()
    keys = list(zip(table["group"].to_pylist(), table["sample"].to_pylist(), strict=True))
    lengths = table["turns"].combine_chunks().value_lengths().to_numpy()
    turns = table["turns"].combine_chunks().flatten().to_numpy()
    values = table["values"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    written = np.flatnonzero((turns >= 0) & ~np.isnan(values))
    rows, turns, values = np.repeat(np.arange(len(keys)), lengths)[written], turns[written], values[written]
    found, first, counts = np.unique(rows << 16 | turns, return_index=True, return_counts=True)  # turns are int16
    episodes: dict[tuple[str, int], dict[int, TurnValue]] = {}
    for place, start, count in zip(found.tolist(), first.tolist(), counts.tolist(), strict=True):
        episodes.setdefault(keys[place >> 16], {})[place & 0xFFFF] = TurnValue(float(values[start]), count)
    return episodes


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
    version = int((schema.metadata or {}).get(_VERSION_KEY, 0))
    if not 1 <= version <= TOKEN_FILE_VERSION:
        raise ValueError(f"token data of version {version}; this verl_agent reads 1 to {TOKEN_FILE_VERSION}")
    return [str(name) for name in schema.names]
