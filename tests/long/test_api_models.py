"""Test models behind an API: vLLM's own server, the vendors' own clients, and a killed command.

vLLM starts twice, which takes about a minute each time on two cores.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests import ROOT
from tests.support.model_server import KEY, ModelServer
from tests.support.training_runs import command_line, run_environment
from verl_agent.envs.model_api.chat import ChatMessage, ChatRequest
from verl_agent.envs.model_api.client import ApiClient
from verl_agent.envs.model_api.reply_log import ReplyLog
from verl_agent.envs.model_api.settings import ApiSettings
from verl_agent.evaluation.vllm_engine import SEEDED
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.results.results import summarize
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
START_S = 600.0
TASKS = ["evaluation.samples=4", "evaluation.tasks=small_test", "evaluation.temperature=1.0"]


def evaluated(folder: Path, *overrides: str) -> list[EpisodeRecord]:
    """Run `verl-agent eval` of GuessNumber's CPU recipe, and return its records in order of task and sample."""
    command = command_line("evaluate", ROOT / "recipes/guess_number", "eval_cpu", *overrides, *TASKS)
    command.append(f"evaluation.output_dir={folder}")
    subprocess.run(command, cwd=ROOT, env=run_environment(folder), check=True, timeout=1200)
    return sorted(read_records(folder / "episodes.jsonl"), key=lambda record: (record["task"], record["sample"]))


@contextmanager
def vllm_server(log: Path) -> Iterator[str]:
    """Run vLLM's own server of SmolLM2 on the CPU, and yield its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(prepare_smollm2())]
    command += ["--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "32", "--generation-config", "vllm"]
    command += ["--worker-extension-cls", SEEDED]  # as in a local evaluation
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ, "VLLM_LOGGING_LEVEL": "WARNING"}
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        asyncio.run(wait_for(f"http://127.0.0.1:{port}/v1/models", server, log))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)


async def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    limit = time.monotonic() + START_S
    async with aiohttp.ClientSession() as session:
        while True:
            assert server.poll() is None and time.monotonic() < limit, log.read_text()[-3000:]
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)


def test_vllms_own_server_gives_the_same_success_as_the_local_engine(tmp_path):
    """Both sample with the same seeds. Replies may differ where the server encodes an earlier reply in other tokens."""
    local = evaluated(tmp_path / "local", "model.path=smollm2-135m", "engine.dtype=float32")
    with vllm_server(tmp_path / "server.log") as url:
        api = ["model.api.kind=openai", "model.api.name=smollm2", f"model.api.base_url={url}"]
        served = evaluated(tmp_path / "served", *api)
    assert [(one["task"], one["sample"]) for one in local] == [(one["task"], one["sample"]) for one in served]
    first, second = (summarize(records)[-1].success for records in (local, served))
    assert first is not None and second is not None
    openings = [one["turns"][0]["reply"] == two["turns"][0]["reply"] for one, two in zip(local, served, strict=True)]
    equal = [
        [turn["reply"] for turn in one["turns"]] == [turn["reply"] for turn in two["turns"]]
        for one, two in zip(local, served, strict=True)
    ]
    shown = f"local engine {first}, vLLM's server {second}, {len(local)} episodes"
    sys.stdout.write(f"\n{shown}; equal first replies {sum(openings)}, equal episodes {sum(equal)}\n")
    assert first.low <= second.mean <= first.high and second.low <= first.mean <= second.high
    assert sum(openings) > 0.9 * len(openings)
    usage = served[0]["turns"][0]["usage"]
    assert usage["input_tokens"] and usage["output_tokens"] and usage["cost_usd"] is None and not usage["dropped"]


COMMAND = """
import sys
from verl_agent.commands.evaluate import run
from verl_agent.commands.hydra_main import run_recipe
run_recipe(run, "agent_eval")
loaded = {"torch", "verl", "transformers", "vllm", "ray"} & sys.modules.keys()
assert not loaded, loaded
"""


def start(folder: Path, server: ModelServer) -> subprocess.Popen[bytes]:
    """Start `verl-agent eval` of the model, as a user does."""
    arguments = [
        "--config-dir",
        str(ROOT / "recipes/guess_number"),
        "--config-name",
        "eval",
        "model.api.kind=openai",
    ]
    arguments += ["model.api.name=fake", f"model.api.base_url={server.url}/v1", "model.api.key_env=MY_KEY"]
    arguments += ["evaluation.tasks=small_test", "evaluation.max_tasks=12", "evaluation.concurrency=2"]
    arguments += [f"evaluation.output_dir={folder}", "env.hosts.where=inline"]
    environment = {**os.environ, "MY_KEY": KEY, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], env=environment, stdout=subprocess.PIPE)


def test_a_killed_command_resumes_inside_its_episodes_and_leaks_no_key_and_needs_no_torch(tmp_path):
    with ModelServer(key=KEY, delay_s=0.05).running() as server:
        first = start(tmp_path / "out", server)
        limit = time.monotonic() + 120
        while len(server.bodies) < 12:
            assert time.monotonic() < limit and first.poll() is None
            time.sleep(0.005)
        first.send_signal(signal.SIGKILL)
        first.wait()
        asked = (tmp_path / "out" / "replies.jsonl").read_text().count("\n")
        server.delay_s = 0.0
        second = start(tmp_path / "out", server)
        shown, _ = second.communicate(timeout=150)
    assert second.returncode == 0, shown
    assert "success 1.000" in shown.decode() or "1.000" in shown.decode()
    distinct = {str((body["messages"], body["seed"])) for body in server.bodies}
    assert len(server.bodies) - len(distinct) <= 2, "only the two requests in flight are asked twice"
    assert asked >= 10
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"episodes.jsonl", "replies.jsonl", "settings.json", "evaluation.json"} <= {path.name for path in files}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY.encode() not in shown


REQUEST = ChatRequest(
    [ChatMessage("system", "Guess a number from 1 to 9."), ChatMessage("user", "Begin.")],
    max_tokens=16,
    sampling={"temperature": 0.5, "top_p": 0.9},
    tools=[{"type": "function", "function": {"name": "act", "description": "Act.", "parameters": {"type": "object"}}}],
)


async def ask(server: ModelServer, kind: str, folder: Path) -> str:
    url = server.url + ("/v1" if kind == "openai" else "")
    log = ReplyLog(folder / f"{kind}.jsonl")
    async with ApiClient(ApiSettings(kind, "fake", url, "MY_KEY"), log) as client:
        return (await client.ask(REQUEST, 1)).text


def test_requests_and_answers_are_those_of_the_vendors_own_clients(tmp_path, monkeypatch):
    import anthropic
    import openai

    monkeypatch.setenv("MY_KEY", KEY)
    with ModelServer(key=KEY).running() as server:
        texts = [asyncio.run(ask(server, kind, tmp_path)) for kind in ("openai", "anthropic")]
        first, second = server.bodies
        chat = openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1").chat.completions.create(**first)
        extra = {name: second[name] for name in ("temperature", "top_p")}
        rest = {name: value for name, value in second.items() if name not in extra}
        message = anthropic.Anthropic(api_key=KEY, base_url=server.url).messages.create(**rest, extra_body=extra)
    assert texts == [chat.choices[0].message.content, message.content[0].text] == ["Action: 5"] * 2
    assert server.bodies[2:] == [first, second]
    for own, theirs in zip(server.headers[:2], server.headers[2:], strict=True):
        names = {"authorization", "anthropic-version", "content-type"}
        ours, vendors = (
            {name.lower(): value for name, value in one.items() if name.lower() in names} for one in (own, theirs)
        )
        assert ours == vendors
