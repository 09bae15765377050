"""Export of the episodes that a filter selects to one file: HTML, Inspect's log, Parquet or records."""

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from verl_agent.errors import ConfigError
from verl_agent.trace.frame import write_parquet
from verl_agent.trace.record import EpisodeRecord
from verl_agent.viewer.export.inspect_log import write_inspect_log
from verl_agent.viewer.export.static_page import RunPart, static_page
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.images import ImageBudget
from verl_agent.viewer.listings import count_groups, list_groups
from verl_agent.viewer.parts import read_part
from verl_agent.viewer.queries import count_episodes, find_ids
from verl_agent.viewer.run_data import read_run
from verl_agent.viewer.state import OpenedSource, ViewerState

FORMATS = (".html", ".eval", ".parquet", ".jsonl")
"""Allowed ends of the file: a page, Inspect's log, whole records in Parquet, records as they are."""
MAX_ON_PAGE = 500
"""Episodes of each run on a page unless another number is given."""


def parse_where(where: str) -> Filter:
    """Return the filter in a text such as `step=3..7&success=no`, the parameters of the page of episodes.

    Raises:
        ConfigError: a parameter is unknown, or a value is not allowed.
    """
    try:
        pairs = parse_qsl(where, strict_parsing=bool(where), keep_blank_values=True)
    except ValueError as error:
        raise ConfigError(
            f"--where {where!r} is not allowed. Allowed: parameters such as step=3..7&success=no."
        ) from error
    return Filter.parse(dict(pairs))


def export_episodes(paths: Sequence[Path], to: Path, where: str = "", limit: int | None = None) -> int:
    """Write the episodes that a filter selects to a file and return their number.

    Episodes of steps and groups that a resumed run played again are left out.

    Args:
        paths: runs, evaluations and files of records.
        to: file to write; its end chooses one of `FORMATS`. A file that exists is replaced.
        where: see `parse_where`.
        limit: most episodes of each run; None for all, on a page for `MAX_ON_PAGE`.

    Raises:
        ConfigError: the format is unknown, no episode is selected, the file cannot be written, or it would be read as
            further episodes of the same sources.
    """
    if to.suffix not in FORMATS:
        raise ConfigError(f"--export {to} ends with {to.suffix!r}. Allowed: {', '.join(FORMATS)}.")
    chosen = parse_where(where)
    if not to.parent.is_dir():
        raise ConfigError(f"--export {to} cannot be written: there is no folder {to.parent}. Create it first.")
    draft = to.with_name(f".{to.stem}.part{to.suffix}")
    state = ViewerState(paths)
    try:
        if to.suffix == ".jsonl":
            _check_place(to, list(state.opened.values()), paths)
        for opened in state.opened.values():
            opened.index.update()
        if not any(count_episodes(opened.index, chosen, replaced=False) for opened in state.opened.values()):
            raise _nothing_selected(list(state.opened.values()), paths, where)
        count = _write(list(state.opened.values()), draft, chosen, limit)
        os.replace(draft, to)
    except OSError as error:
        reason = str(error).replace(str(draft), str(to))
        raise ConfigError(f"--export {to} cannot be written: {reason}.") from error
    finally:
        draft.unlink(missing_ok=True)
        state.close()
    return count


def _check_place(to: Path, sources: Sequence[OpenedSource], paths: Sequence[Path]) -> None:
    """Check that no file or folder that is read holds the file of records: each episode would count twice."""
    opened = {one.source.path: one.source for one in sources}
    read = [path if path.is_file() else source.records for path, source in opened.items()]
    read += [path for path in (Path(one).resolve() for one in paths) if path not in opened]  # folders of runs
    if place := next((place for place in read if to.resolve().is_relative_to(place)), None):
        raise ConfigError(
            f"--export {to} is not allowed: the viewer reads the records of {place}, so each exported episode would "
            "count twice. Choose a file outside of it."
        )


def _nothing_selected(sources: Sequence[OpenedSource], paths: Sequence[Path], where: str) -> ConfigError:
    """Return the error of an export without episodes: the filter is the reason only where there are any."""
    named = ", ".join(map(str, paths))
    if any(count_episodes(opened.index, Filter()) for opened in sources):
        return ConfigError(f"no episode of {named} is selected by {where!r}.")
    bad = [line for opened in sources for line in opened.index.bad_lines(1)]
    if not bad:
        return ConfigError(f"{named} has no episode yet. Name a run, an evaluation or a file of records with episodes.")
    return ConfigError(
        f"{named} has no episode record: {bad[0].file.name}, byte {bad[0].offset}: {bad[0].message} Episodes of other "
        "programs become records with: verl-agent records import FILE --as FORMAT --env NAME --into FOLDER"
    )


def _write(sources: Sequence[OpenedSource], draft: Path, chosen: Filter, limit: int | None) -> int:
    if draft.suffix == ".html":
        images = ImageBudget()
        parts = [_part(opened, chosen, limit or MAX_ON_PAGE, images) for opened in sources]
        described = "&".join(f"{name}={value}" for name, value in chosen.values.items())
        page, count = static_page(parts, described, images)
        draft.write_text(page, encoding="utf-8", errors="replace")
        return count
    records = (record for opened in sources for record in _records(opened, chosen, limit))
    if draft.suffix == ".eval":
        return write_inspect_log(records, draft, ", ".join(opened.key for opened in sources))
    if draft.suffix == ".parquet":
        return write_parquet(records, draft)
    count = 0
    with draft.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
            count += 1
    return count


def _records(opened: OpenedSource, chosen: Filter, limit: int | None) -> Iterator[EpisodeRecord]:
    for number in find_ids(opened.index, chosen, limit):
        yield opened.index.read(number)


def _part(opened: OpenedSource, chosen: Filter, limit: int, images: ImageBudget) -> RunPart:
    total = count_episodes(opened.index, chosen, replaced=False)
    episodes = [read_part(opened.index, number) for number in find_ids(opened.index, chosen, limit)]
    groups = list_groups(opened.index, chosen, limit)
    return RunPart(
        read_run(opened), episodes, total, groups, count_groups(opened.index, chosen)[0], partial(images.embed, opened)
    )
