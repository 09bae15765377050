"""Programs for tests: texts with a function that asks the endpoint, and their episodes with a scripted policy."""

import asyncio
import json
import sys
import textwrap
from pathlib import Path

from tests.support.fakes import ScriptedPolicy
from verl_agent.agents.program import ProgramAgent
from verl_agent.envs.program.adapter import Program
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Episode

ASK = """
import json, os, sys, time, urllib.error, urllib.request
def post(body, key=None, path="/chat/completions", **headers):
    headers = {"Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"]), **headers}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return json.dumps({"status": error.code, **json.loads(error.read())})
def ask(messages, **more):
    answer = json.loads(post({"model": "m", "messages": messages, **more}))
    return answer["choices"][0]["message"] if "choices" in answer else answer
def user(text):
    return {"role": "user", "content": text}
"""
TASKS = [{"id": "one", "split": "train", "data": {"word": "tree"}}, {"id": "two", "split": "test"}]


def make_program(folder: Path, text: str, **options: object) -> Program:
    """Return the environment of a program, from its text, whose files lie in a folder."""
    file, tasks = folder / "agent.py", folder / "tasks.jsonl"
    file.write_text(ASK + textwrap.dedent(text))
    tasks.write_text("\n".join(map(json.dumps, TASKS)))
    return Program([sys.executable, str(file)], str(tasks), **options)


def run(env: Program, replies: list, max_turns: int = 8, timeout_s: float = 30.0) -> tuple[Episode, ScriptedPolicy]:
    policy, agent = ScriptedPolicy(replies), ProgramAgent(env.action_format)
    item = env.tasks("train")[0]
    return asyncio.run(
        play_episode(item, env.new_session(), agent, policy, EpisodeLimits(max_turns, timeout_s))
    ), policy
