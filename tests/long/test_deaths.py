"""Kill or stop each process of a training run: the run names it, restarts from its last checkpoint, and continues.

One run with a tiny random model serves all tests, because every restart is the start of the next test. Each takes as
long as a start of Ray and vLLM. `make test-chaos` runs them in each layout of `LAYOUTS` (the environment variable
`CHAOS` chooses one) and prints a table: layout, signal, process, moment, seconds to notice, message with the step after
which the run resumed, processes left.
"""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import psutil
import pytest

from tests.support.models import write_byte_model
from tests.support.training_runs import (
    command_line,
    last_step,
    marked_processes,
    run_environment,
    running_after,
    wait_for_end,
)
from tests.support.waiting import wait_until
from verl_agent.runs.hang_watch import PHASE_FILE

RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}, timeout_s: 10}
agent: {name: raw, context: {keep: last, turns: 1}}
horizon: {max_turns: [8]}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
data: {train_batch_size: 2, max_prompt_length: 128, max_response_length: 256}
actor_rollout_ref:
  actor: {use_kl_loss: false}
  rollout: {n: 4, max_num_seqs: 16}
trainer: {total_training_steps: 10000, save_freq: 1, max_actor_ckpt_to_keep: 1, experiment_name: deaths}
"""
LAYOUTS = {
    "fsdp2": (),
    "two_ranks": ("+overlay/size=2ranks_cpu",),
    "partial": ("+overlay/rollout=partial", "algorithm.rollout_correction.bypass_mode=false"),
    "megatron": ("model_engine=megatron",),
    "sglang": ("+overlay/rollout=sglang",),
}
"""Overrides of each layout; the last two need an environment of their own, see the Makefile."""
LAYOUT = os.environ.get("CHAOS", "fsdp2")
HANG_S = 30
"""`trainer.hang_timeout_s` of the run."""
EVALUATION = """
defaults: [agent_eval, cpu_eval, _self_]
env: {name: guess_number, options: {tolerant: true}}
agent: {name: raw, context: {keep: last, turns: 1}}
horizon: {eval_max_turns: 8}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
data: {max_prompt_length: 128, max_response_length: 256}
evaluation: {tasks: small_train, samples: 500, concurrency: 4}
"""
START_S, NOTICE_S, END_S = 1200, 30, 60
"""Most seconds for a start, for the message, and for the end of all processes of the start that died."""
ENGINE = (
    ("sglang::", "A process of the rollout engine (SGLang)")
    if LAYOUT == "sglang"
    else ("VLLM::EngineCore", "The rollout engine (vLLM's EngineCore)")
)
WORKER = ("ray::WorkerDict", "A training worker")
DRIVER = ("driver", "The driver of the run")  # and its trainer, on a CPU
KILLED = [
    ENGINE,
    WORKER,
    DRIVER,
    ("ray::AgentLoopWorkerTQ", "An agent-loop worker"),
    ("raylet/raylet ", "Ray's node manager (raylet)"),
    ("gcs/gcs_server ", "Ray's control service (gcs_server)"),
    ("ray::RunScopedHttpServer", "The server of a rollout engine"),
    ("ray::SimpleStorageUnit", "A storage unit of TransferQueue"),
    ("ray::TransferQueueController", "The controller of TransferQueue"),
]
"""Part of the command line of each process that the run cannot do without, and its name in the message."""
MOMENTS = ("sending the weights to the engine", "saving a checkpoint", "")
"""Phases in which a process is killed; empty for any moment."""
CASES = [
    *((signal.SIGKILL, *one, MOMENTS[number] if number < 2 else "") for number, one in enumerate(KILLED)),
    (signal.SIGKILL, *WORKER, MOMENTS[0]),
    (signal.SIGKILL, *WORKER, ""),
    (signal.SIGSTOP, *WORKER, ""),
    (signal.SIGSTOP, *ENGINE, ""),
    (signal.SIGSTOP, *DRIVER, ""),
    (signal.SIGSTOP, "raylet/raylet ", "Ray's node manager (raylet)", ""),
]
"""Signal, part of the command line, name in the message, and moment."""
REPLACED = "verl_agent.envs.hosts.host_main"
"""Part of the command line of a host process, which its pool replaces."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass
class Run:
    """A training run and the lines of its terminal."""

    command: "subprocess.Popen[str]"
    folder: Path
    mark: Path
    lines: list[tuple[float, str]] = field(default_factory=list)

    def read(self) -> None:
        """Record the terminal until the command ends."""
        for line in self.command.stdout or ():
            self.lines.append((time.monotonic(), line))

    def text(self, since_s: float) -> str:
        """Return the text of the terminal since a time."""
        return "".join(line for at_s, line in self.lines if at_s >= since_s)

    def wait_for_steps(self, count: int) -> None:
        """Wait until the run has saved `count` further steps."""
        target = last_step(self.folder) + count
        self.wait_until(lambda: last_step(self.folder) >= target)

    def wait_for_phase(self, phase: str) -> None:
        """Wait until the run begins a phase."""
        self.wait_until(lambda: (self.folder / PHASE_FILE).read_text() == phase)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the run goes on."""
        wait_until(condition, START_S, lambda: self.text(0), self.command, every_s=0.01)

    def find(self, part: str) -> psutil.Process:
        """Return a process of the run by a part of its command line."""
        if part == "driver":
            return psutil.Process(self.command.pid).children()[0]
        found = [process for process in marked_processes(self.mark) if part in " ".join(process.cmdline()) + " "]
        assert found, part
        return found[0]


def write_model(folder: Path) -> Path:
    """Write the tiny model."""
    return write_byte_model(folder / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    root = tmp_path_factory.mktemp("deaths")
    recipes = root / "recipes"
    recipes.mkdir()
    recipes.joinpath("deaths.yaml").write_text(RECIPE)
    overrides = [f"actor_rollout_ref.model.path={write_model(root)}", f"trainer.default_local_dir={root / 'run'}"]
    overrides += [f"trainer.hang_timeout_s={HANG_S}", *LAYOUTS[LAYOUT]]
    command = subprocess.Popen(
        command_line("train", recipes, "deaths", *overrides),
        env=run_environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    run = Run(command, root / "run", root)
    Thread(target=run.read, daemon=True).start()
    yield run
    command.kill()
    wait_for_end(root)


@pytest.mark.parametrize(("number", "part", "name", "moment"), CASES)
def test_a_killed_or_stopped_process_is_named_and_the_run_resumes(
    run: Run, number: signal.Signals, part: str, name: str, moment: str
):
    run.wait_for_steps(2 if number == signal.SIGSTOP else 1)  # the phases of a start are measured in its first steps
    if moment:
        run.wait_for_phase(moment)
    else:
        time.sleep(random.uniform(0, 4))
    victim, others = run.find(part), {*marked_processes(run.mark)} - {psutil.Process(run.command.pid)}
    sent_s, notice_s = time.monotonic(), NOTICE_S if number == signal.SIGKILL else 8 * HANG_S
    victim.send_signal(number)

    while "Restart" not in run.text(sent_s) and time.monotonic() - sent_s < notice_s + END_S:
        time.sleep(0.1)
    noticed_s = time.monotonic() - sent_s
    left = running_after(list(others), END_S)
    text = " ".join(run.text(sent_s).split())
    resumed = re.search(r"Restart 1 of 3: the run resumes after step \d+", text)
    row = (LAYOUT, number.name, name, moment or "any", f"{noticed_s:.0f} s", text, f"{len(left)} left")
    print(f"\n| {' | '.join(row)} |")  # noqa: T201 - a measurement
    ended = "ended unexpectedly|was killed by signal 9" if number == signal.SIGKILL else "is stopped by a signal"
    assert re.search(rf"{re.escape(name)}, process {victim.pid}, ({ended})", text)
    assert resumed and "Traceback" not in text and noticed_s < notice_s
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_host_is_replaced_without_a_restart(run: Run, number: signal.Signals):
    run.wait_for_steps(2)
    sent_s, victim = time.monotonic(), run.find(REPLACED)
    victim.send_signal(number)
    run.wait_for_steps(2)
    left = running_after([victim], END_S)
    row = (
        LAYOUT,
        number.name,
        "An environment host",
        "any",
        f"{time.monotonic() - sent_s:.0f} s for two further steps",
    )
    print(f"\n| {' | '.join(row)} | replaced | {len(left)} left |")  # noqa: T201 - a measurement
    assert "Restart" not in run.text(sent_s) and left == []


def test_the_death_of_the_command_ends_every_process(run: Run):
    run.command.send_signal(signal.SIGKILL)
    run.command.wait()
    assert wait_for_end(run.mark, timeout_s=END_S) == []


@pytest.fixture
def evaluation(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start an evaluation and wait until it has recorded an episode."""
    tmp_path.joinpath("dead.yaml").write_text(EVALUATION)
    overrides = [f"model.path={write_model(tmp_path)}", f"evaluation.output_dir={tmp_path / 'out'}"]
    command = subprocess.Popen(
        command_line("evaluate", tmp_path, "dead", *overrides),
        env=run_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    records, deadline = tmp_path / "out/episodes.jsonl", time.monotonic() + START_S
    while not (records.is_file() and records.stat().st_size) and time.monotonic() < deadline:
        assert command.poll() is None, command.communicate()[0]
        time.sleep(0.2)
    yield command
    command.kill()
    command.communicate()


def descendants(command: "subprocess.Popen[str]") -> tuple[psutil.Process, list[psutil.Process]]:
    """Return the engine of an evaluation, and all processes that it has started.

    vLLM's title of the engine overwrites its environment, and with it the mark.
    """
    found = psutil.Process(command.pid).children(recursive=True)
    return next(one for one in found if "VLLM::EngineCore" in " ".join(one.cmdline())), found


def test_an_evaluation_names_its_dead_engine_and_reports_what_it_has_played(evaluation: "subprocess.Popen[str]"):
    engine, children = descendants(evaluation)
    engine.kill()
    output = evaluation.communicate(timeout=END_S)[0]
    assert evaluation.returncode == 2 and "Traceback" not in output
    assert "error: the rollout engine (vLLM's EngineCore) ended unexpectedly" in output
    assert "results: " in output and running_after(children, END_S) == []


def test_the_death_of_an_evaluation_ends_its_engine_and_hosts(evaluation: "subprocess.Popen[str]"):
    _, children = descendants(evaluation)
    assert any(REPLACED in " ".join(child.cmdline()) for child in children)
    killed_s = time.monotonic()
    evaluation.kill()
    evaluation.wait()
    left = running_after(children, END_S)
    print(f"\n| evaluation | {len(children)} ended after {time.monotonic() - killed_s:.1f} s |")  # noqa: T201 - a measurement
    for process in left:
        process.kill()
    assert left == []
