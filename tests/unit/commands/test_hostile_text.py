"""Every command that shows an agent's text, in a real terminal, against replies that act on one."""

import ast
import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.fakes import ITEM, ScriptedPolicy, plain, talk_class
from tests.support.hostile import ACTION, IMITATION
from tests.support.terminals import HOSTILE, Terminal, acting_bytes
from tests.support.viewing import cli
from tests.support.waiting import wait_until
from tests.support.what_if import of_evaluation
from verl_agent.oversight.control import RunControl
from verl_agent.oversight.socket import controlled
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.trace.record_files import read_records
from verl_agent.types import Episode, TaskItem

POLICY = "python:tests.support.hostile"
PROMPT = "> "


def approved(shown: str) -> str:
    """Return the action whose bytes a question shows."""
    lines = shown.replace("\r\n", "\n").split("\n")
    first = next(number for number, line in enumerate(lines) if "the action as bytes" in line) + 1
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("│ "))
    literal = "".join(line.removeprefix("│ ") for line in lines[first:last])
    return str(ast.literal_eval(literal).decode("utf-8", "surrogatepass"))


def lines_of_ours(shown: str) -> list[str]:
    return [line for line in shown.replace("\r\n", "\n").split("\n") if line.startswith("── ")]


def evaluation(folder: Path, policy: str, *overrides: str) -> list[str]:
    settings = ("evaluation.max_tasks=1", "evaluation.samples=1", "horizon.eval_max_turns=1", "env.hosts.where=inline")
    recipe = "recipes/guess_number/eval_cpu.yaml"
    command = ("eval", recipe, f"model.path={POLICY}:{policy}", f"evaluation.output_dir={folder}")
    return cli(*command, *settings, *overrides)


@pytest.mark.parametrize(("policy", "action"), [("everything", ACTION), ("imitating", IMITATION)])
def test_approval_carries_out_the_bytes_that_were_shown(tmp_path: Path, policy: str, action: str) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules:\n- {actions: ['*'], text: zzz, decision: reject}\n- {actions: ['*'], by: human}\n")
    command = evaluation(tmp_path / "out", policy, f"evaluation.approve={rules}")
    with Terminal(command, ROOT) as terminal:
        shown = terminal.until(PROMPT)
        while "[reason] ends the episode; or type another action." not in shown:
            shown += terminal.until(PROMPT)
        terminal.type("/approve")
        assert terminal.wait() == 0
    assert acting_bytes(terminal.output) == []
    (record,) = read_records(tmp_path / "out" / "episodes.jsonl")
    assert record["turns"][0]["action"] == approved(shown) and action in approved(shown)
    assert [line.split(" ")[1] for line in lines_of_ours(shown)] == [
        *(record["task"] + ",", "observation:", "the", "action", "the", "rule", "/approve")
    ]
    assert "rule 2 of the approval policy asks you" in shown


def test_play_shows_the_agents_replies_and_candidates_as_text(tmp_path: Path) -> None:
    options = ("--copilot", f"{POLICY}:everything", "--samples", "2", "--agent", "react", "--into", str(tmp_path))
    with Terminal(cli("play", "guess_number", "--split", "small_test", *options), ROOT) as terminal:
        shown = terminal.until("or type another action.")
        assert "/1   100%" in shown or "/1  100%" in shown
        terminal.until(PROMPT)
        terminal.type("/1")
        terminal.until(PROMPT)
        terminal.type(f"/end {chr(0x202E)}done")
        assert terminal.wait() == 0
    echo = f"/end {chr(0x202E)}done".encode()
    assert acting_bytes(terminal.output.replace(echo, b"")) == []
    (record,) = read_records(tmp_path / "episodes.jsonl")
    assert record["turns"][0]["action"].startswith(HOSTILE["escapes"])


def test_watching_shows_the_agents_replies_as_text(tmp_path: Path) -> None:
    options = ("--copilot", f"{POLICY}:everything", "--watch", "--turns", "2", "--into", str(tmp_path))
    with Terminal(cli("play", "guess_number", *options), ROOT) as terminal:
        assert terminal.wait() == 0
    assert acting_bytes(terminal.output) == [] and "␛]0;owned␇".encode() in terminal.output


def test_error_of_a_policy_is_text(tmp_path: Path) -> None:
    with Terminal(evaluation(tmp_path / "out", "failing"), ROOT) as terminal:
        assert terminal.wait() == 2
    assert acting_bytes(terminal.output) == [] and "␛]0;owned␇".encode() in terminal.output


def test_tables_of_what_if_show_text(tmp_path: Path) -> None:
    recorded = of_evaluation(tmp_path, f"{POLICY}:everything", agent={"name": "react", "options": {}, "context": {}})
    command = cli("what-if", recorded.name, "--turn", "2", "--samples", "4", "env.hosts.where=inline")
    with Terminal(command, ROOT) as terminal:
        assert terminal.wait() == 0
    assert acting_bytes(terminal.output) == [] and b"[2J" in terminal.output


@contextmanager
def running(folder: Path, control: RunControl, script: tuple[str, ...], task: str) -> Iterator[Callable[[], Episode]]:
    """Play an episode of `Talk` in a thread, under control; yield a function that waits for its end."""
    episodes: list[Episode] = []

    async def play() -> None:
        with controlled(folder, control):
            item = TaskItem(ITEM.env, task, ITEM.data)
            limits = EpisodeLimits(len(script))
            session = talk_class()(turns=len(script))
            episodes.append(await play_episode(item, session, plain(), ScriptedPolicy(script), limits, control))

    thread = threading.Thread(target=asyncio.run, args=(play(),))

    def end() -> Episode:
        thread.join(60)
        return episodes[0]

    thread.start()
    try:
        yield end
    finally:
        thread.join(60)


def test_attending_a_paused_run_says_so_and_shows_text(tmp_path: Path) -> None:
    control = RunControl(attended=True)
    with running(tmp_path, control, (ACTION, "b"), ACTION) as end:
        wait_until(lambda: (tmp_path / "control.sock").exists() and control._live)
        with Terminal(cli("control", str(tmp_path), "pause"), ROOT, size=(24, 200)) as status:
            assert status.wait() == 0
        assert acting_bytes(status.output) == [] and b"paused" in status.output
        with Terminal(cli("control", str(tmp_path), "attend", "1"), ROOT) as terminal:
            shown = terminal.until("or type another action.")
            assert "The run is paused by" in shown and approved(shown) == ACTION
            terminal.until(PROMPT)
            terminal.type("/approve")
            assert "not carried out yet" in terminal.until("(command step).")
            assert not next(iter(control._live.values())).episode.turns
            with Terminal(cli("control", str(tmp_path), "resume"), ROOT) as resuming:
                assert resuming.wait() == 0
            terminal.until("or type another action.")
            terminal.until(PROMPT)
            terminal.type("/end enough")
            assert terminal.wait() == 0
        assert acting_bytes(terminal.output) == []
        assert end().turns[0].action == ACTION


def test_names_of_files_are_text(tmp_path: Path) -> None:
    name = "a\x1b]0;owned\x07\u202e\udc80.jsonl"
    for command in (
        ("failures", name),
        ("view", name, "--port", "0"),
        ("what-if", f"{name}:1", "--turn", "1"),
        (name,),
    ):
        with Terminal(cli(*command), tmp_path, PYTHONPATH=str(ROOT)) as terminal:
            assert terminal.wait() == 2
        assert acting_bytes(terminal.output) == [], command
    (tmp_path / name).write_text(json.dumps({"version": ACTION}) + "\n")
    with Terminal(cli("failures", name), tmp_path, PYTHONPATH=str(ROOT)) as terminal:
        terminal.wait()
    assert acting_bytes(terminal.output) == []
