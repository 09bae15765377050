"""Episodes of a source whose token data is recorded."""

import logging
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from verl_agent.trace.token_files import read_token_columns, read_tokens, token_files
from verl_agent.viewer.queries import Row
from verl_agent.viewer.state import OpenedSource
from verl_agent.viewer.token_views import values_of

logger = logging.getLogger(__name__)

Key = tuple[int, str, int]
"""Step, group and sample of an episode."""


def file_with_tokens(opened: OpenedSource, row: Row) -> Path | None:
    """Return the file with the tokens of an episode; None if they are not recorded.

    Only the last attempt at an episode has tokens, and training records those of episodes that it trains on.
    """
    wanted = (row["step"], row["group"], row["sample"])
    last = last_attempt(opened, *wanted)
    if last is None or last["id"] != row["id"]:
        return None
    return next((file for file in token_files(opened.source.folder, row["step"]) if wanted in _keys(file)), None)


def trained_advantage(opened: OpenedSource, row: Row) -> float | None:
    """Return the mean advantage of the trained tokens of an episode, as the trainer used it; None if not recorded."""
    file = file_with_tokens(opened, row)
    try:
        segments = [] if file is None else read_tokens(file, row["group"], row["sample"])
    except (OSError, ValueError) as error:
        logger.warning("%s is left out: %s", file, error)
        return None
    found = [
        value
        for segment in segments
        if "advantages" in segment.columns
        for value, trained in zip(values_of(segment, "advantages"), segment.loss_mask, strict=True)
        if trained and value is not None
    ]
    return fmean(found) if found else None


def episodes_with_tokens(opened: OpenedSource) -> list[Row]:
    """Return the columns of all episodes with recorded tokens, by step, group and sample."""
    keys = sorted({key for file in token_files(opened.source.folder) for key in _keys(file)})
    rows = [last_attempt(opened, *key) for key in keys]
    return [row for row in rows if row is not None]


def last_attempt(opened: OpenedSource, step: int, group: str, sample: int) -> Row | None:
    """Return the columns of the last attempt at an episode that may have token data; None without one."""
    found = opened.index.db.execute(
        """SELECT * FROM episodes WHERE "group" = ? AND sample = ? AND step = ?
            AND purpose NOT IN ('validation', 'test') ORDER BY attempt DESC LIMIT 1""",
        (group, sample, step),
    ).fetchone()
    return None if found is None else dict(found)


def _keys(file: Path) -> frozenset[Key]:
    try:
        return _keys_of(file, file.stat().st_mtime_ns)
    except (OSError, ValueError) as error:
        logger.warning("%s is left out: %s", file, error)
        return frozenset()


@lru_cache(maxsize=1024)
def _keys_of(file: Path, changed_at: int) -> frozenset[Key]:
    return frozenset(
        (row["step"], row["group"], row["sample"]) for row in read_token_columns(file, ("step", "group", "sample"))
    )
