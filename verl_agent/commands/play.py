"""Command `verl-agent play`: play one task by hand, in terminal or browser, with a model's proposals, or watch it."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from verl_agent.commands.terminal import print_line, read_json
from verl_agent.errors import MAX_MESSAGE_CHARS, ConfigError, did_you_mean
from verl_agent.system.user import user_name
from verl_agent.terminal import say

if TYPE_CHECKING:  # imported by the command itself, since every other command would wait for it
    from verl_agent.evaluation.by_hand import GameSetup


def play_game(  # noqa: PLR0913 - one for each option
    env: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    task: Annotated[str | None, typer.Option(help="Id of the task. Default: the first of the split.")] = None,
    split: Annotated[str, typer.Option(help="Split that has the task.")] = "train",
    options: Annotated[str, typer.Option(help="Keyword arguments of the adapter, as JSON.")] = "{}",
    agent: Annotated[str, typer.Option(help="Agent whose prompts and replies the record has.")] = "act",
    turns: Annotated[int, typer.Option(help="Turn limit.", min=1)] = 50,
    copilot: Annotated[
        str | None,
        typer.Option(help="Model that proposes actions: what model.path of `verl-agent eval` names.", metavar="MODEL"),
    ] = None,
    samples: Annotated[int, typer.Option(help="Replies that the model draws at each turn.", min=1)] = 8,
    watch: Annotated[bool, typer.Option("--watch", help="Let the model of --copilot play; show it.")] = False,
    browser: Annotated[bool, typer.Option("--browser", help="Play on a page of the viewer.")] = False,
    port: Annotated[int, typer.Option(help="Port of the viewer, for --browser; 0 for any.", min=0, max=65535)] = 8080,
    tokens: Annotated[int, typer.Option(help="Most tokens of the model's context, for --copilot.", min=64)] = 4096,
    into: Annotated[Path | None, typer.Option(help="Folder of the record. Default: a new one in runs/play.")] = None,
) -> None:
    """Play one task in the terminal or a browser. The record says who acted, so that agents can learn from it."""
    from verl_agent.evaluation.by_hand import claim_folder, ending, run_game
    from verl_agent.oversight.terminal import check_terminal
    from verl_agent.runs.console import redirect_output

    signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))  # a closed terminal ends the game
    try:
        if watch and copilot is None:
            raise ConfigError("--watch shows a model that plays. Name it with --copilot MODEL.")
        if watch and browser:
            raise ConfigError(
                "--browser is for a person who plays, and --watch has none. To see the model's episode in a browser, "
                "open the folder that the command prints with `verl-agent view`."
            )
        if not watch and copilot == "oracle":
            raise ConfigError("--copilot oracle has one plan and no candidates. Add --watch to see it play.")
        sys.path.insert(0, "")  # python:MODULE:NAME, as in `verl-agent eval`, which runs as `python -m`
        sections = _config(env, read_json(options), agent, turns, copilot, tokens)
        where: Literal["terminal", "browser", "watch"] = "watch" if watch else "browser" if browser else "terminal"
        game = _game(sections, split, task, copilot, samples, where, into)
        if where == "terminal":
            check_terminal("verl-agent play", "add --browser to play on a page, or --watch to see --copilot MODEL play")
        claim_folder(game)
        with redirect_output(game.folder / "play.log") as console, _page(game.folder, browser, port) as url:
            say(console, f"folder: {game.folder}")
            if url:
                say(console, f"Open {url}")
            episode = run_game(game, console)
            say(console, ending(episode))
            if url:
                say(console, "The pages stay open until Ctrl-C.")
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
    except KeyboardInterrupt:
        print_line("Stopped. The episode was not recorded; /end ends and records one.")
        raise


@contextmanager
def _page(folder: Path, wanted: bool, port: int) -> Iterator[str | None]:
    """Serve the viewer if it is wanted, and yield the URL of the page on which the person plays."""
    if not wanted:
        yield None
        return
    from verl_agent.results.folder import RECORDS
    from verl_agent.viewer.server import serving_pages
    from verl_agent.viewer.state import ViewerState

    records = folder / RECORDS
    records.touch()
    try:
        with serving_pages(ViewerState([folder]), port) as address:
            yield address.link(f"/run/{quote(folder.name)}/control/1?name={quote(user_name())}")
    finally:
        if records.is_file() and not records.stat().st_size:
            records.unlink()


def _config(env: str, options: dict[str, Any], agent: str, turns: int, copilot: str | None, tokens: int) -> Any:
    """Return the sections of an evaluation of one episode."""
    from omegaconf import OmegaConf

    from verl_agent.config.keys import as_text
    from verl_agent.config.search_path import register_config
    from verl_agent.evaluation.settings import evaluation_base, read_evaluation

    register_config()
    reply = min(512, tokens // 4)
    values = {
        "env": {"name": env, "options": options},
        "agent": {"name": agent},
        "horizon": {"eval_max_turns": turns},
        "data": {"max_prompt_length": tokens - reply, "max_response_length": reply},
        "episode": {"max_tokens_per_turn": reply},
        "model": {"path": copilot or "none"},
        "evaluation": {"concurrency": 16},
    }
    return read_evaluation(OmegaConf.merge(evaluation_base(), as_text(values)))


def _game(
    sections: Any, split: str, task: str | None, copilot: str | None, samples: int, where: Any, into: Path | None
) -> "GameSetup":
    from verl_agent.evaluation.by_hand import GameSetup

    sections.run.new_agent()
    sections.run.live.check_split(split)
    items = {item.id: item for item in sections.run.tasks(split)}
    if task is not None and task not in items:
        raise ConfigError(
            f"--task {task!r} is no task of split {split!r}. {did_you_mean(task, items, MAX_MESSAGE_CHARS)}"
        )
    item = items[task] if task is not None else next(iter(items.values()))
    folder = into or Path(f"runs/play/{sections.run.env.name}_{datetime.now():%Y%m%d-%H%M%S}")
    return GameSetup(sections, item, split, copilot, samples, where, folder.resolve())
