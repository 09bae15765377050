"""Supervisor of a run with small real processes: a death is named, the run is restarted, and nothing is left."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.training_runs import marked_processes, run_environment, wait_for_end
from verl_agent.errors import ConfigError
from verl_agent.oversight.socket import SOCKET, send_command
from verl_agent.platform.exits import KILLED, describe_status
from verl_agent.runs.child import Child, StopRequest
from verl_agent.runs.deaths import Death, MemoryWatch, count_oom_kills, name_actor, name_process
from verl_agent.system.resources import Memory

PROGRAM = """
import multiprocessing, os, pathlib, psutil, setproctitle, signal, subprocess, sys, time
from verl_agent.models.checkpoints import begin_checkpoint, finish_checkpoint
from verl_agent.platform.exits import report_kills
from verl_agent.config.plan_parts import Schedule, read_part
from verl_agent.runs.child import Child, StopRequest
from verl_agent.runs.deaths import Death
from verl_agent.runs.hang_watch import mark_phase
from verl_agent.runs.processes import ending_all_children
from verl_agent.runs.supervisor import supervise

root, story = pathlib.Path(sys.argv[1]), sys.argv[2]
trainer = {"default_local_dir": str(root), "max_restarts": 2, "resume_mode": "disable"}
trainer["hang_timeout_s"] = {"engine stops": 0.5, "leaves": 0.05}.get(story, 600)
given = read_part(Schedule, {"trainer": trainer}, folder=root)


COPY = "(read -t 2); ((read -t 2) &); read -t 60"  # copies of itself, one with the parent of the original


def engine():
    process = subprocess.Popen(["VLLM::EngineCore", "60"], executable="/bin/sleep")
    time.sleep(1.5)  # until the supervisor has seen it
    return process


FORK = multiprocessing.get_context("fork")


def be_engine():
    setproctitle.setproctitle("VLLM::EngineCore")
    time.sleep(60)


def serve():  # has its output in a file, as a Ray actor has, and the errors that follow from the engine's death
    file = (root / "engine.err").open("w")
    os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
    process = FORK.Process(target=be_engine)
    process.start()
    print("Traceback (most recent call last):\\n  File 1\\nEngineDeadError: a consequence", flush=True)
    report_kills([process])
    time.sleep(2.5)  # until the supervisor has seen it
    process.kill()
    process.join()
    time.sleep(60)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def log_step():
    (root / "metrics").mkdir(exist_ok=True)
    with (root / "metrics" / f"{time.time_ns()}.jsonl").open("w") as file:
        file.write('{"step": 1, "data": {}}')


def save(step):
    begin_checkpoint(root / f"global_step_{step}")
    finish_checkpoint(root / f"global_step_{step}")


def run(link, schedule):
    start = len(list(root.glob("start_*")))
    (root / f"start_{start}").write_text(schedule.resume)
    exec(STORIES[story])


STORIES = {
    "fails before a step": "die()",
    "dies once": "if start == 0:\\n log_step(); engine().kill(); time.sleep(60)",
    "explains": "if start == 0:\\n log_step(); file = (root / 'engine.err').open('w')\\n"
    " file.write('Traceback (most recent call last):\\\\n  File 1\\\\nImportError: no [libnuma]\\\\n')\\n"
    " file.flush(); (root / 'logs').mkdir(); (root / 'logs' / '0.log').touch()\\n"
    " process = subprocess.Popen(['VLLM::EngineCore', '60'], executable='/bin/sleep', stdout=file, stderr=file)\\n"
    " time.sleep(1.5); process.kill(); time.sleep(60)",
    "kills": "if start == 0:\\n log_step(); (root / 'logs').mkdir(); (root / 'logs' / '0.log').touch()\\n"
    " FORK.Process(target=serve).start(); time.sleep(60)",
    "dies always": "log_step(); die()",
    "saves and dies": "log_step(); save(start + 1)\\n"
    "if start < 3:\\n die()",
    "hangs": "signal.signal(signal.SIGINT, signal.SIG_IGN); log_step(); engine(); time.sleep(60)",
    "engine stops": "if start == 0:\\n log_step(); mark_phase(root, 'playing episodes')\\n"
    " engine().send_signal(signal.SIGSTOP); time.sleep(60)",
    "server": "if start == 0:\\n log_step(); starts = '(exec -a VLLM::Worker sleep 60) & wait'\\n"
    " server = subprocess.Popen(['ray::RunScopedHttpServer.run', '-c', starts], executable='/bin/bash')\\n"
    " time.sleep(1.5); (worker,) = psutil.Process(server.pid).children()\\n"
    " server.kill(); server.wait(); worker.kill(); time.sleep(60)",
    "dies after a checkpoint": "save(3)\\n"
    "if start == 0:\\n die()",
    "driver after a service": "if start == 0:\\n log_step()\\n"
    " process = subprocess.Popen(['raylet/raylet', '60'], executable='/bin/sleep')\\n"
    " time.sleep(1.5); process.kill(); die()",
    "driver": "if start == 0:\\n log_step(); engine(); die()",
    "actor": "log_step()\\nif start == 0:\\n link.report(Death('a training worker', 12, '10.0.0.7'))",
    "raises after a death": "process = engine(); process.kill(); process.wait(); link.leave(); print('unreachable')",
    "leaves": "process = engine(); link.leave(); process.kill(); process.wait(); time.sleep(2); sys.exit(5)",
    "copies": "with ending_all_children():\\n"
    " bash = subprocess.Popen(['raylet/raylet', '-c', COPY], executable='/bin/bash', stdin=subprocess.PIPE)\\n"
    " time.sleep(4); link.leave(); bash.kill(); sys.exit(5)",
    "waits": "with ending_all_children():\\n try:\\n  subprocess.Popen(['sleep', '60']); print('ready', flush=True)\\n"
    "  time.sleep(60)\\n except KeyboardInterrupt:\\n  print('interrupted', flush=True); sys.exit(130)",
    "signalled late": "class Late:\\n def __del__(self, kill=os.kill, own=os.getpid()): kill(own, 2)\\n"
    "os.late = Late()  # deleted with the modules, at Python's own end\\nsys.exit(7)",
}
run(*supervise(given))
"""


def start(root: Path, story: str, *prefix: str) -> "subprocess.Popen[str]":
    """Start the program; every process that it starts is marked with its folder."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PROGRAM, str(root), story],
        env=run_environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_to_end(root: Path, story: str) -> tuple[int, str, int]:
    """Return exit status, output and number of starts of a story, which leaves no process behind."""
    process = start(root, story)
    output = process.communicate(timeout=60)[0]
    assert marked_processes(root) == []
    return process.returncode, output, len(list(root.glob("start_*")))


def test_a_dead_engine_is_named_and_the_run_resumes(tmp_path):
    status, output, starts = run_to_end(tmp_path, "dies once")
    assert (status, starts) == (0, 2)
    modes = [(tmp_path / f"start_{number}").read_text() for number in range(starts)]
    assert modes == ["disable", "auto"], "a restart resumes, although the run was to start anew"
    assert "The rollout engine (vLLM's EngineCore), process " in output and ", ended unexpectedly." in output
    assert "Restart 1 of 2: the run resumes after step 0." in output
    assert "memory" not in output.lower(), "there is no evidence of a lack of memory"


def test_the_first_error_of_a_dead_process_is_quoted_on_the_terminal_and_in_the_log(tmp_path):
    status, output, starts = run_to_end(tmp_path, "explains")
    assert (status, starts) == (0, 2)
    assert ", ended unexpectedly. Its first error:\n  ImportError: no [libnuma]\nLog: " in output
    assert "ImportError: no [libnuma]" in (tmp_path / "logs" / "0.log").read_text()


def test_a_killed_engine_is_explained_by_the_signal_and_not_by_the_errors_that_followed(tmp_path):
    status, output, starts = run_to_end(tmp_path, "kills")
    assert (status, starts) == (0, 2)
    assert "(vLLM's EngineCore), process " in output and ", was killed by signal 9 (SIGKILL)." in output
    assert "EngineDeadError" not in output


GB = 10**9


@pytest.mark.parametrize(
    ("kills", "free", "says"),
    [
        ([0, 0], 20 * GB, ""),
        ([3, 3], 9 * GB, ""),
        ([3, 4], 20 * GB, "The kernel killed a process of this machine because memory ran out."),
        ([0, 0], GB // 10, "Memory had run out: 0.1 of the 24.0 GB of this machine were free"),
    ],
)
def test_a_lack_of_memory_is_named_only_with_evidence(kills, free, says):
    watch = MemoryWatch(lambda: Memory(24 * GB, free), lambda: kills.pop(0))
    watch.sample()
    evidence = watch.evidence()
    assert evidence.startswith(says) and bool(evidence) == bool(says)


def test_kill_switch_ends_a_run_that_ignores_the_interrupt_and_does_not_restart_it(tmp_path):
    process = start(tmp_path, "hangs")
    try:
        deadline = time.monotonic() + 30
        while len(marked_processes(tmp_path)) < 3 or not (tmp_path / SOCKET).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(ConfigError, match="'pause' is not possible while a run trains"):
            send_command(tmp_path, {"command": "pause"})
        began = time.monotonic()
        assert send_command(tmp_path, {"command": "end"})["killed"] == 2
        assert process.wait(timeout=5) in (130, -signal.SIGKILL)
        assert time.monotonic() - began < 5
    finally:
        process.kill()
        process.wait()
    assert marked_processes(tmp_path) == []
    assert len(list(tmp_path.glob("start_*"))) == 1


def test_a_hanging_engine_is_named_in_a_warning_and_the_run_restarts(tmp_path):
    status, output, starts = run_to_end(tmp_path, "engine stops")
    assert (status, starts) == (0, 2)
    engine = r"The rollout engine \(vLLM's EngineCore\), process \d+, is stopped by a signal"
    warning, message, restart = output.strip().splitlines()
    assert re.match(rf"No progress for \d+ s while playing episodes, whose deadline is \d+ s\. {engine}\. ", warning)
    assert re.match(rf"{engine}: no progress for \d+ s while playing episodes\.", message)
    assert restart == "Restart 1 of 2: the run resumes after step 0."
    assert "memory" not in message
    stacks = tmp_path / "logs" / "stacks.txt"
    assert "== the driver of the run" in stacks.read_text()


def test_restarts_without_a_new_checkpoint_are_bounded(tmp_path):
    status, output, starts = run_to_end(tmp_path, "dies always")
    assert (status, starts) == (1, 3)
    assert "trainer.max_restarts=2 allows no further restart without a new checkpoint." in output
    assert "Run the same command again to resume after step 0." in output


def test_a_new_checkpoint_allows_new_restarts(tmp_path):
    status, output, starts = run_to_end(tmp_path, "saves and dies")
    assert (status, starts) == (0, 4)
    assert output.count("Restart 1 of 2") == 3 and "the run resumes after step 3." in output


def test_a_run_that_dies_before_its_first_step_is_not_restarted(tmp_path):
    status, output, starts = run_to_end(tmp_path, "fails before a step")
    assert (status, starts) == (1, 1)
    assert "The run is not restarted, because it died before its first step." in output


def test_a_run_that_dies_between_a_checkpoint_and_the_log_of_its_step_is_restarted(tmp_path):
    status, output, starts = run_to_end(tmp_path, "dies after a checkpoint")
    assert (status, starts) == (0, 2) and "Restart 1 of 2: the run resumes after step 3." in output


def test_a_killed_driver_is_named_and_its_processes_end(tmp_path):
    status, output, starts = run_to_end(tmp_path, "driver")
    assert (status, starts) == (0, 2)
    assert ", was killed by signal 9 (SIGKILL)." in output and output.startswith("The driver of the run, process ")


def test_of_a_driver_and_a_service_that_end_together_the_driver_is_named(tmp_path):
    status, output, starts = run_to_end(tmp_path, "driver after a service")
    assert (status, starts) == (0, 2)
    assert output.startswith("The driver of the run, process ")


def test_an_engine_that_ends_with_its_server_is_not_named_in_its_place(tmp_path):
    status, output, starts = run_to_end(tmp_path, "server")
    assert (status, starts) == (0, 2)
    assert output.startswith("The server of a rollout engine, process ")


def test_a_reported_actor_is_named_with_its_machine(tmp_path):
    status, output, starts = run_to_end(tmp_path, "actor")
    assert (status, starts) == (0, 2)
    assert "A training worker, process 12 on 10.0.0.7, ended unexpectedly." in output


def test_a_death_comes_before_the_error_that_it_causes(tmp_path):
    status, output, _ = run_to_end(tmp_path, "raises after a death")
    assert status == 1 and "EngineCore" in output and "unreachable" not in output


def test_processes_that_the_run_ends_itself_are_no_deaths(tmp_path):
    assert run_to_end(tmp_path, "leaves") == (5, "", 1)


def test_copies_between_fork_and_exec_are_no_processes_of_their_own(tmp_path):
    assert run_to_end(tmp_path, "copies") == (5, "", 1)


@pytest.mark.parametrize("answers_unread", [False, True])
def test_a_child_that_ends_before_it_reads_an_answer_is_waited_for(answers_unread):
    own, other = socket.socketpair()
    with subprocess.Popen(["sleep", "1"]) as process:
        child = Child(process.pid, own)
        if answers_unread:
            own.sendall(b"\n")
        else:
            other.sendall(b'{"leaving": true}\n')
        other.close()
        assert child.wait(StopRequest()) is None and child.status == 0
    own.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_interrupts_the_run_once(tmp_path, number):
    process = start(tmp_path, "waits")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.send_signal(number)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert process.returncode == 130 and marked_processes(tmp_path) == []


@pytest.mark.parametrize("by", ["sigterm", "control"])
def test_a_run_that_was_started_to_ignore_ctrl_c_ends_nevertheless(tmp_path, by):
    process = start(tmp_path, "waits", "sh", "-c", "trap '' INT; exec \"$@\"", "sh")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    if by == "sigterm":
        process.send_signal(signal.SIGTERM)
    else:
        send_command(tmp_path, {"command": "end"})
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 130 and marked_processes(tmp_path) == []
    assert by == "control" or output == "interrupted\n"


def test_repeated_signals_do_not_interrupt_the_end_of_a_run(tmp_path):
    process = start(tmp_path, "waits")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    (run,) = psutil.Process(process.pid).children()
    (own,) = run.children()
    while own.is_running() and run.is_running():
        run.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert marked_processes(tmp_path) == []


def test_signal_at_pythons_own_end_does_not_change_the_exit_status(tmp_path):
    assert run_to_end(tmp_path, "signalled late") == (7, "", 1)


def test_a_killed_supervisor_leaves_no_process(tmp_path):
    process = start(tmp_path, "waits")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.kill()
    assert wait_for_end(tmp_path, timeout_s=20) == []
    assert process.communicate()[0] == "interrupted\n"


@pytest.mark.parametrize(
    ("command_line", "name"),
    [
        ("/venv/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/s", "Ray's node manager (raylet)"),
        ("/venv/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "Ray's control service (gcs_server)"),
        ("VLLM::EngineCore_DP0", "the rollout engine (vLLM's EngineCore)"),
        ("VLLM::Worker_TP1", "a worker of the rollout engine (vLLM's Worker)"),
        ("sglang::scheduler", "a process of the rollout engine (SGLang)"),
        ("ray::IDLE", None),
        ("python -c from verl_agent.envs.hosts.host_main import main", None),
    ],
)
def test_processes_that_a_run_needs_have_plain_names(command_line, name):
    assert name_process(command_line) == name


@pytest.mark.parametrize("title", ["ray::RunScopedHttpServer.run_server", "ray::FullContextServer"])
def test_the_servers_of_both_rollout_engines_have_the_same_plain_name(title):
    assert name_actor(title) == "the server of a rollout engine"


def test_out_of_memory_kills_are_counted(tmp_path):
    events, missing = tmp_path / "memory.events", tmp_path / "none"
    events.write_text("oom 3\noom_kill 2\noom_group_kill 9\n")
    assert count_oom_kills([events, missing]) == 2
    assert count_oom_kills([missing]) == 0


def test_an_exit_status_is_described():
    for status, text in ((-9, "was killed by signal 9 (SIGKILL)"), (-35, "was killed by signal 35")):
        assert describe_status(status) == text
        found = KILLED.search(f"process 7 {text}\n")
        assert found is not None and found[2] == text
    assert str(Death("the driver", 3, cause=describe_status(1))) == "The driver, process 3, ended with exit code 1."
