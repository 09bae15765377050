"""Tests of the command `verl-agent serve`."""

import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests import ROOT
from tests.support.serving import HTTP
from tests.support.waiting import wait_until
from verl_agent.commands.cli import app
from verl_agent.envs.http.run_server import bind_listener
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.errors import ConfigError
from verl_agent.sections import section

SERVE = """
from env_adapters.guess_number.adapter import GuessNumber
from tests.support.serving import pool_of
from verl_agent.envs.http.run_server import DrainingServer, bind_listener, url_of
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex

pool = pool_of(GuessNumber)
listener = bind_listener("127.0.0.1", 0)
print(url_of(listener), flush=True)
server = EnvServer(TaskIndex("guess_number", {}, "train"), pool, ServerLimits())
DrainingServer(server, listener).run_until_stopped()
print(pool.stats()["opened"], pool.stats()["hosts"])
"""


def test_sigterm_lets_a_running_episode_end():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        session = HTTP.post(f"{url}/create").json()["id"]
        HTTP.post(f"{url}/reset", json={"id": session, "data_idx": 0})
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: HTTP.get(f"{url}/health").status_code == 503)
        assert HTTP.post(f"{url}/create").status_code == 503
        assert HTTP.post(f"{url}/step", json={"id": session, "action": "1"}).json()["done"]
        assert process.stdout.read().strip() == "1 0"
        assert process.wait(100) == 0


@pytest.mark.parametrize("field", ["sessions", "body_bytes", "action_chars", "idle_s", "drain_s"])
def test_limits_of_zero_raise_config_error(field):
    with pytest.raises(ConfigError, match=f"limits.{field}=0 is not allowed. Allowed: a (whole )?number >=? [01]"):
        section("limits", ServerLimits, {field: 0})


def command(*arguments: str) -> tuple[int, str]:
    """Run `verl-agent serve` and return its exit code and its output."""
    done = CliRunner().invoke(app, ["serve", *arguments], env={"VERL_AGENT_TOKEN": None})
    return done.exit_code, done.output


def test_a_port_in_use_is_reported():
    with bind_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, output = command("guess_number", "--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use. Choose another with --port" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gess_number"], "'gess_number' is not registered. Did you mean 'guess_number'?"),
        (["guess_number", "--host", "0.0.0.0"], "can be reached from other machines, so a token is needed"),
        (["guess_number", "--split", "trian"], "has no split 'trian'. Did you mean 'train'?"),
        (["guess_number", "--options", "{"], "--options is not JSON"),
        (["guess_number", "--timeout", "0"], "Invalid value for '--timeout': 0 is not allowed."),
        (["guess_number", "--options", '{"tolerent": true}'], "Did you mean 'tolerant'?"),
    ],
)
def test_invalid_options_of_serve_are_reported(arguments, message):
    code, output = command(*arguments)
    assert (code, message in " ".join(output.split())) == (2, True), output


def test_an_invalid_option_of_the_environment_is_reported_at_start():
    code, output = command("guess_number", "--port", "0", "--options", '{"tolerant": "yes"}')
    assert (code, "env.options.tolerant='yes' is not allowed" in output) == (2, True), output


def test_bind_rejects_an_address_of_another_machine():
    with pytest.raises(ConfigError, match=r"port 8000 of 192\.0\.2\.1 cannot be used"):
        bind_listener("192.0.2.1", 8000)
    with pytest.raises(ConfigError, match=r"--host no\.such\.host\.invalid --port 1 is not an address of this machine"):
        bind_listener("no.such.host.invalid", 1)


FORBIDDEN = ("torch", "ray", "verl", "vllm", "transformers", "omegaconf", "hydra", "matplotlib")
"""Packages of training, which a server does without."""
SLOW = ("pydantic", "jinja2", "aiohttp", "numpy")
"""Other packages that `verl-agent --help` would wait for."""


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("verl_agent.commands.cli", (*FORBIDDEN, *SLOW)),
        ("env_adapters.web_sites.cli", (*FORBIDDEN, *SLOW)),
        ("verl_agent.commands.serve", (*FORBIDDEN, "httpx", "aiohttp", "fastapi")),
    ],
)
def test_module_imports_without_the_packages_of_training(module, forbidden):
    code = f"import sys; sys.modules.update(dict.fromkeys({forbidden})); import {module}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
