"""Takes a small picture of each page of the viewer, from a copy of a real run.

python -m tests.support.screenshots runs/textcraft_quickstart docs/pictures/viewer
"""

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
from verl_agent.trace.labels import Label, LabelFile, key_of
from verl_agent.viewer.conditions import GROUP_FIELDS
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.layout import link_to
from verl_agent.viewer.listings import list_groups
from verl_agent.viewer.queries import find_episode, find_episodes, find_ids
from verl_agent.viewer.recorded_tokens import file_with_tokens
from verl_agent.viewer.sources import open_source
from verl_agent.viewer.state import OpenedSource

VIEWPORT = {"width": 1400, "height": 900}
WIDTH = 1000
"""Width of a picture in pixels."""
QUALITY = 60


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    into: Annotated[Path, typer.Argument(help="Folder of the pictures.")],
) -> None:
    """Write one WebP file for each page."""
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
        paths = choose_pages(copy)
        with viewing(copy, Path(parent) / "config") as url, chromium() as browser:
            for name, path in paths.items():
                page = browser.new_page(viewport=VIEWPORT)
                page.goto(at(url, path))
                page.wait_for_timeout(4000)  # charts and tables are drawn after the page has loaded
                picture = Image.open(BytesIO(page.screenshot()))
                height = round(picture.height * WIDTH / picture.width)
                small = picture.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
                small.save(into / f"{name}.webp", quality=QUALITY, method=6)
                page.close()
                typer.echo(f"{into / name}.webp  {(into / f'{name}.webp').stat().st_size / 1000:.0f} kB  {path}")


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
        last, first = latest[0]["step"], find_episodes(index, Filter.parse(shown), 1)[0]["step"]
        tokens = [number for number in find_ids(index, last_first) if has_tokens(run, index, number)][:1]
    task = {"env": episode["env"], "task": episode["task"]}
    middle = (first + last) // 2
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
        "compare": link_to("/compare", {"a_step": f"..{middle}", "b_step": f"{min(last, middle + 1)}.."}),
    }
    if tokens:
        pages["tokens"] = f"{root}/episode/{tokens[0]}/tokens"
    return pages


def has_tokens(run: Path, index: RecordIndex, episode: int) -> bool:
    """Return True if the tokens of an episode are recorded."""
    row = find_episode(index, episode)
    return row is not None and file_with_tokens(OpenedSource(run.name, index.source, index), row) is not None


if __name__ == "__main__":
    typer.run(main)
