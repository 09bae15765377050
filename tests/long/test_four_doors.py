"""Test that one conversation is trained on the same tokens, by whichever door its environment comes in.

The doors: the adapter in the episode loop; its server behind OpenEnv's protocol; verifiers, as a task set that was
exported and as a program that asks the endpoint of an episode. A fourth, a program with the plain `openai` client, is
in tests/verl/rollout/test_program_tokens.py. Needs `make setup-verifiers`.
"""

import asyncio
import json
import os
import subprocess
from itertools import chain, cycle, islice

import pytest
from typer.testing import CliRunner

from env_adapters.openenv.adapter import OpenEnv
from tests import ROOT
from tests.support.fakes import ScriptedEngine
from tests.support.model_server import ModelServer
from tests.support.serving import RunningEnv, pool_of
from tests.support.tokens import REPLIES, load_model
from tests.support.waiting import wait_until
from verl_agent.agents.plain import Raw
from verl_agent.agents.program import ProgramAgent
from verl_agent.commands.cli import app
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.program.adapter import Program
from verl_agent.envs.registry import load_adapter, make_env
from verl_agent.rollout.episode import EpisodeLimits, play_episode

PYTHON = ROOT / ".venv-verifiers/bin/python"
ENV = "textcraft"
SPLIT = "train"
EPISODES = 116
TURNS = 14
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="verifiers is not installed: make setup-verifiers"),
]


@pytest.fixture(scope="module")
def model():
    return load_model()


@pytest.fixture(scope="module")
def expected(model):
    env = make_env(ENV)
    return [by_loop(model, env, item, replies_to(env, item, number)) for number, item in chosen(env)]


def chosen(env):
    return list(enumerate(env.tasks(SPLIT)))[:EPISODES]


def replies_to(env, item, number):
    """Return a solution of the task among replies that are wrong or empty."""
    good = [demo.action for demo in env.demonstration(item)]
    odd = islice(cycle(REPLIES), number, number + 6)
    return list(islice(chain(chain.from_iterable(zip(odd, good, strict=False)), good[6:], cycle(REPLIES)), TURNS))


def outcome(policy, episode):
    assert not episode.error
    return policy.tokens.segments(), episode.reward, len(episode.turns)


def by_loop(model, env, item, replies):
    policy = model.policy(ScriptedEngine(model.tokenizer, replies))
    agent = Raw(env.action_format)
    return outcome(policy, asyncio.run(play_episode(item, env.new_session(), agent, policy, EpisodeLimits(TURNS))))


def test_openenv(model, expected):
    pool, native = pool_of(load_adapter(ENV)), make_env(ENV)
    server = EnvServer(TaskIndex(ENV, {}, SPLIT), pool, ServerLimits(), None)
    running = RunningEnv(server, pool, 0)
    try:
        env = OpenEnv(running.url, observation=["text"])
        found = [
            by_loop(model, env, env.tasks("train")[number], replies_to(native, item, number))
            for number, item in chosen(native)
        ]
    finally:
        running.stop()
    assert found == expected


def test_verifiers(model, expected, tmp_path, monkeypatch):
    module = tmp_path / "textcraft_verifiers.py"
    export = ["export-env", ENV, "--as", "verifiers", "--out", str(module)]
    subprocess.run([PYTHON.with_name("verl-agent"), *export], check=True)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    options = json.dumps({"split": SPLIT, "agent": "raw", "max_turns": TURNS})
    command = [str(PYTHON), "-m", "verl_agent.envs.program.verifiers_program", "textcraft_verifiers"]
    command += ["--options", options]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_bytes(subprocess.run([*command, "--list", str(EPISODES)], check=True, capture_output=True).stdout)
    program, native = Program(command, str(tasks)), make_env(ENV)
    items = sorted(chain(program.tasks("train"), program.tasks("test")), key=lambda item: item.data["index"])

    async def one(number, item, gate):
        policy = model.policy(ScriptedEngine(model.tokenizer, replies_to(native, native.tasks(SPLIT)[number], number)))
        agent, limits = ProgramAgent(program.action_format), EpisodeLimits(TURNS + 1, timeout_s=120)
        async with gate:
            return outcome(policy, await play_episode(item, program.new_session(), agent, policy, limits))

    async def all_of_them():
        gate = asyncio.Semaphore(3)
        return await asyncio.gather(*(one(number, item, gate) for number, item in enumerate(items)))

    assert asyncio.run(all_of_them()) == expected
    assert sum(turns for _, _, turns in expected) >= 1000
    assert sum(reward for _, reward, _ in expected) >= EPISODES / 4


def test_the_printed_command_of_vf_eval_plays_tasks_without_a_login(tmp_path):
    exported = CliRunner().invoke(app, ["export-env", "guess_number", "--out", str(tmp_path / "guesses.py")])
    assert exported.exit_code == 0, exported.output
    command = exported.output.splitlines()[-1].replace("vf-eval", str(PYTHON.with_name("vf-eval")))
    command = command.replace("PYTHONPATH=", f"exec env PYTHONPATH={ROOT}:", 1) + " -n 2"
    log = tmp_path / "log"
    with ModelServer().running() as server, log.open("w") as file:
        keys = {"MODEL": "m", "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "k", "HOME": str(tmp_path)}
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            env={**keys, "PATH": os.environ["PATH"]},
            cwd=tmp_path,
            stdout=file,
            stderr=file,
        )
        try:  # it may go on after its report
            wait_until(lambda: "task name" in log.read_text(), 600, log.read_text, process)
        finally:
            process.kill()
            process.wait()
    said = log.read_text()
    assert "reward 1.00" in said and said.count("[success ]") == 2, said
