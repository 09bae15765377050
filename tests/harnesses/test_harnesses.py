"""Agents of others, unmodified and without a network: each plays a task of the terminal in the sandbox.

`make setup-harnesses` installs them. An agent that is not installed is skipped.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import psutil
import pytest

from tests import ROOT
from tests.support.escapes import left
from tests.support.fakes import ScriptedEngine, ScriptedPolicy
from tests.support.harnesses import CASES, make_program, replies_to
from tests.support.sandboxes import need
from tests.support.tokens import PlayedTokens, check_tokens, load_model
from verl_agent.agents.program import ProgramAgent
from verl_agent.envs.program.harness import INSTALLED
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.settings import TokenBudget

pytestmark = [pytest.mark.harnesses, pytest.mark.timeout(300)]

BUDGET = TokenBudget(prompt=100_000, episode=1_000_000, turn=100_000)


@pytest.fixture(scope="module")
def smollm2():
    return load_model()


@pytest.fixture(params=CASES)
def harness(request) -> str:
    need()
    name = request.param.split()[0]
    if not any((folder / name).exists() for folder in INSTALLED):
        pytest.skip(f"{name} is not installed: make setup-harnesses HARNESSES={name}")
    return request.param


def test_an_episode_is_trained_token_for_token_in_one_segment_and_graded(harness, smollm2):
    env = make_program(harness)
    item = env.tasks("medium_train")[0]
    replies = replies_to(item, harness)
    engine = ScriptedEngine(smollm2.tokenizer, replies)
    policy = smollm2.policy(engine, BUDGET)
    limits = EpisodeLimits(len(replies) + 1, 120.0)
    episode = asyncio.run(play_episode(item, env.new_session(), ProgramAgent(env.action_format), policy, limits))
    assert not episode.error
    assert (episode.reward, len(episode.turns)) == (1.0, len(replies)) and len(replies) >= 8
    if harness == "smolagents":  # a stop text of its requests ends a reply before the end token
        engine.written = [ids[:-1] for ids in engine.written]
        engine.log_probs = [one[:-1] for one in engine.log_probs]
    check_tokens(PlayedTokens(episode, engine, policy, policy.tokens.segments()))
    assert [turn.reply.text for turn in episode.turns] == replies


FORGES = """python3 -c "
import os, urllib.request as client
address, key = (os.environ.get(name, 'none') for name in ('ANTHROPIC_BASE_URL', 'ANTHROPIC_API_KEY'))
body = b'{\\"model\\": \\"m\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"forged\\"}]}'
try:
    client.urlopen(client.Request(address + '/v1/messages', body, {'x-api-key': key}), timeout=5)
except Exception as error:
    print('refused:', error)
" """
"""Command of a tool that asks the endpoint with the key that it finds."""


def test_a_tool_cannot_speak_as_the_agent_and_the_hidden_tests_judge_what_was_left_undone(harness):
    env = make_program(harness, one_process=True)
    first, *_, end = replies_to(env.tasks("medium_train")[0], harness, [FORGES])
    policy = ScriptedPolicy([first, end])
    episode = asyncio.run(
        play_episode(
            env.tasks("medium_train")[0],
            env.new_session(),
            ProgramAgent(env.action_format),
            policy,
            EpisodeLimits(5, 120.0),
        )
    )
    assert not episode.error
    assert (episode.reward, len(episode.turns)) == (0.0, 2)
    assert "refused:" in str(policy.heard[1][-1]["content"])


HOST = """
import asyncio, sys
from tests.support.harnesses import make_program, replies_to
from tests.support.fakes import ScriptedPolicy
from verl_agent.agents.program import ProgramAgent
from verl_agent.rollout.episode import EpisodeLimits, play_episode

env = make_program(sys.argv[1])
item = env.tasks("medium_train")[0]

class Stops(ScriptedPolicy):
    async def reply(self, messages):
        if len(self.heard) == 3:
            print("in the middle", flush=True)
            await asyncio.sleep(1000)
        return await super().reply(messages)

policy = Stops(replies_to(item, sys.argv[1]))
asyncio.run(play_episode(item, env.new_session(), ProgramAgent(env.action_format), policy, EpisodeLimits(20, 120.0)))
"""


def test_a_killed_host_leaves_no_process(harness):
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)  # a sandbox of root runs as another user
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, harness], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder},
    )  # fmt: skip
    assert host.stdout is not None and host.stdout.readline() == b"in the middle\n"
    pids = [child.pid for child in psutil.Process(host.pid).children(recursive=True)]
    assert len(pids) >= 3  # bubblewrap, the first process of the sandbox, the harness
    host.send_signal(signal.SIGKILL)
    host.wait()
    shutil.rmtree(folder)
    assert left(pids) == []
