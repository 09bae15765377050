"""Takes a small picture of each page of the viewer in a wide and in a narrow window, from a copy of a run.

python -m tests.support.screenshots runs/textcraft_quickstart docs/pictures/viewer --beside runs/eval/NAME
"""

import itertools
import shutil
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from PIL import Image

from tests.support.viewing import at, chromium, viewing
from verl_agent.results.folder import REPORT
from verl_agent.trace.labels import Label, LabelFile, key_of
from verl_agent.viewer.conditions import GROUP_FIELDS
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.links import link_to
from verl_agent.viewer.listings import list_groups
from verl_agent.viewer.queries import find_episodes, find_ids, find_row
from verl_agent.viewer.recorded_tokens import file_with_tokens
from verl_agent.viewer.sources import open_source
from verl_agent.viewer.state import OpenedSource

WINDOWS = {"": (1400, 1000), "_narrow": (400, 400)}
"""Width of the window and of the picture in pixels, by the end of the picture's name."""
HEIGHT = 900
QUALITY = 50


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    into: Annotated[Path, typer.Argument(help="Folder of the pictures.")],
    beside: Annotated[list[Path] | None, typer.Option(help="Run or evaluation that is opened beside it.")] = None,
) -> None:
    """Write a WebP file for each page and window."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as parent:
        copy = Path(parent) / run.name
        copy.mkdir()
        for name in ("episodes", "metrics", "tokens", "media"):
            if (run / name).is_dir():
                shutil.copytree(run / name, copy / name)
        for name in ("run.json", "settings.json", "episodes.jsonl"):
            if (run / name).is_file():
                shutil.copy(run / name, copy)
        paths = {"home": "/", **choose_pages(copy), "leaderboard": "/leaderboard"}
        for one in beside or []:
            if (one / REPORT).is_file():
                root = quote(f"/run/{one.name}")
                paths |= {"evaluation": root, "scaling": f"{root}/scaling", "failures": f"{root}/failures"}
        with viewing([copy, *(beside or [])], Path(parent) / "config") as url, chromium() as browser:
            for (name, path), (end, (wide, width)) in itertools.product(paths.items(), WINDOWS.items()):
                page = browser.new_page(viewport={"width": wide, "height": HEIGHT})
                page.goto(at(url, path))
                page.wait_for_timeout(4000)  # charts and tables are drawn after the page has loaded
                picture = Image.open(BytesIO(page.screenshot()))
                height = round(picture.height * width / picture.width)
                small = picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
                file = into / f"{name}{end}.webp"
                small.save(file, quality=QUALITY, method=6)
                page.close()
                typer.echo(f"{file}  {file.stat().st_size / 1000:.0f} kB  {path}")


def choose_pages(run: Path) -> Mapping[str, str]:
    """Return the path of each page; label two episodes of the run."""
    root = quote(f"/run/{run.name}")
    with RecordIndex(open_source(run)) as index:
        index.update()
        last_first = Filter.parse({"purpose": "train", "sort": "-step"})
        if not find_episodes(index, last_first, 1):
            last_first = Filter.parse({"sort": "-step"})  # of an evaluation
        shown = {name: value for name, value in last_first.values.items() if name != "sort"}
        solved = find_episodes(index, Filter.parse({**shown, "success": "yes", "sort": "-turns"}), 2)
        for row, label in zip(solved, (Label(("good",), "shortest way to the goal"), Label(("lucky",))), strict=False):
            LabelFile.of(run).change(key_of(row), label)
        latest = find_episodes(index, last_first, 1)
        if not latest:
            raise typer.BadParameter(f"{run} has no episode yet.")
        episode = (solved or latest)[0]
        groups = list_groups(index, last_first, 1000)
        group = max(groups, key=lambda one: (one["spread"], one["step"])) if groups else {}
        tokens = [number for number in find_ids(index, last_first) if has_tokens(run, index, number)][:1]
    task = {"env": episode["env"], "task": episode["task"]}
    pages = {
        "run": root,
        "episodes": link_to(f"{root}/episodes", last_first.values),
        "episode": link_to(f"{root}/episode/{episode['id']}", {"turn": 1}),
        "groups": f"{root}/group",
        "group": link_to(f"{root}/group", {name: group.get(name) for name in GROUP_FIELDS}),
        "tasks": f"{root}/task",
        "task": link_to(f"{root}/task", task),
        "horizon": f"{root}/horizon",
        "labels": f"{root}/labels",
        "compare": link_to("/compare", {"a": run.name, "b": run.name}),
    }
    if tokens:
        pages["tokens"] = f"{root}/episode/{tokens[0]}/tokens"
    return pages


def has_tokens(run: Path, index: RecordIndex, episode: int) -> bool:
    """Return True if the tokens of an episode are recorded."""
    row = find_row(index, episode)
    return row is not None and file_with_tokens(OpenedSource(run.name, index.source, index), row) is not None


if __name__ == "__main__":
    typer.run(main)
