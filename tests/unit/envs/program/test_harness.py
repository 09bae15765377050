"""Test harnesses as data: what they render, what they need, and that nothing of them is missing."""

import asyncio
import re
import sys

import pytest

from tests import ROOT
from tests.support.fakes import ScriptedPolicy
from tests.support.programs import ASK
from tests.support.sandboxes import need
from verl_agent.agents.program import ProgramAgent
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.program.adapter import Program
from verl_agent.envs.program.harness import FOLDER, harness_names, read_harness
from verl_agent.envs.program.place import visible_paths
from verl_agent.errors import ConfigError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import StopReason

VALUES = {"url": "http://127.0.0.1:1", "key": "k", "home": "/tmp/home", "instruction": "Do “it”.", "data": {}}


@pytest.fixture
def own(tmp_path):
    """Function that writes a harness of its own and returns its path."""

    def write(text: str, **files: str) -> str:
        for name, content in files.items():
            (tmp_path / name).write_text(content)
        file = tmp_path / "own.yaml"
        file.write_text(text)
        return str(file)

    return write


@pytest.mark.parametrize("name", harness_names())
def test_each_harness_renders_and_runs_a_command_in_its_own_words(name):
    harness = read_harness({"name": name, "program": sys.executable})
    command, variables, files = harness.render(**VALUES)
    assert "Do “it”." in " ".join(command) and "{{" not in str((command, variables, files))
    hostile = "echo \"a\\tb\" 'c' {{x}} äö </tool_call> && printf '%s\\n' \\\\"
    if "python" in (FOLDER / f"{name}.yaml").read_text().partition("acts:")[2]:
        assert repr(hostile) in harness.act(hostile)
    else:
        (call,) = CALL_FORMATS["hermes"].read(harness.act(hostile))
        assert hostile in call.arguments.values() and call.error is None


@pytest.mark.parametrize("name", harness_names())
def test_each_harness_pins_its_packages_and_has_a_line_on_its_page(name):
    install = read_harness({"name": name, "program": sys.executable}).install
    assert re.search(r"[=@]=?\d+\.\d+", install)
    assert f"| `{name}` |" in (ROOT / "docs/guides/harnesses.md").read_text()
    if install.startswith("pip"):
        pins = (ROOT / f"requirements/harnesses/{name}.txt").read_text().lower().replace("_", "-")
        wanted = re.findall(r"([a-z-]+)(?:\[[a-z]+\])?(==[\d.]+)", install)
        assert wanted and all(f"{name}{version}\n" in pins for name, version in wanted)


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ("claude-code", "Did you mean 'claude_code'"),
        ({"name": "codex", "program": "/absent/codex"}, "npm install .*@openai/codex"),
        ({"name": "codex", "prompts": "x"}, "env.options.harness.prompts is not a key"),
        ({"name": "codex", "program": sys.executable, "prompt": "/absent"}, "prompt='/absent' is not a file"),
    ],
)
def test_a_harness_that_cannot_start_is_refused_with_the_next_step(chosen, error):
    with pytest.raises(ConfigError, match=error):
        read_harness(chosen)


def test_a_harness_needs_tasks_with_hidden_tests(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a", "split": "train"}')
    with pytest.raises(ConfigError, match="needs tasks with hidden tests"):
        Program(harness={"name": "codex", "program": sys.executable}, tasks=str(tasks))
    with pytest.raises(ConfigError, match="this environment has no sandbox for programs"):
        Program(harness={"name": "codex", "program": sys.executable}, tasks="guess_number")


def test_an_own_harness_has_its_own_prompt_and_arguments(own, tmp_path):
    (tmp_path / "prompt.txt").write_text("Please: {{ instruction }}\n")
    path = own("command: [python, '{{ home }}/a.py', '{{ prompt }}']\nfiles: {a.py: 'url = \"{{ url }}\"'}")
    chosen = {"name": path, "program": sys.executable, "arguments": ["-v"], "prompt": str(tmp_path / "prompt.txt")}
    command, _, files = read_harness(chosen).render(**VALUES)
    assert command[1:] == ["/tmp/home/a.py", "Please: Do “it”.", "-v"]
    assert files == {"a.py": 'url = "http://127.0.0.1:1"'}


def test_a_template_with_an_unknown_name_is_refused(own):
    with pytest.raises(ConfigError, match="'tasks' is undefined"):
        read_harness(own("command: [python, '{{ tasks }}']")).render(**VALUES)


def test_a_program_of_npm_needs_its_modules_and_one_of_an_environment_its_interpreter(tmp_path):
    tool = tmp_path / "node_modules" / ".bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("")
    assert visible_paths([str(tool)]) == [tmp_path / "node_modules"]
    assert visible_paths(["/usr/bin/env", "no/file"]) == []


AGENT = """
messages = [user(sys.argv[1])]
while True:
    reply = ask(messages, tools=[{"type": "function", "function": {"name": "sh", "parameters": {}}}])
    if "tool_calls" not in reply:
        break
    call, = reply["tool_calls"]
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(json.loads(call["function"]["arguments"])["c"], shell=True, env=variables)
    messages += [reply, {"role": "tool", "tool_call_id": call["id"], "content": str(done.returncode)}]
"""
OWN = """
command: [python3, '{{ home }}/agent.py', '{{ prompt }}']
files: {agent.py: {from: agent}}
acts: '<tool_call>{"name": "sh", "arguments": {"c": {{ command | json }}}}</tool_call>'
"""


def test_the_oracle_plays_in_the_sandbox_and_the_hidden_tests_judge(own):
    need()
    path = own(OWN, agent="import subprocess\n" + ASK + AGENT)
    env = Program(harness={"name": path, "program": "/usr/bin/python3"}, tasks="terminal")
    item, agent = env.tasks("small_train")[0], ProgramAgent(env.action_format)
    replies = [str(demo.action) for demo in env.demonstration(item)]
    for played, reward in ((replies, 1.0), (replies[-1:], 0.0)):
        limits = EpisodeLimits(len(replies) + 1, 60.0)
        episode = asyncio.run(play_episode(item, env.new_session(), agent, ScriptedPolicy(played), limits))
        assert (episode.reward, len(episode.turns)) == (reward, len(played)), episode.error
    assert env.oracle_turns(item) == len(replies)


RUNNER = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"
"""Process that has started the agent, for a command of the agent's shell."""
ENDS = {
    "kills the agent": ("kill -9 $PPID", {}, "no errors"),
    "interrupts the agent": ("kill -INT $PPID", {}, "KeyboardInterrupt"),
    "kills the runner": (f"kill -9 {RUNNER}", {}, "its first process was ended"),
    "writes in the runner's name": (f"echo '[1]' > /proc/{RUNNER}/fd/1; kill -9 {RUNNER}", {}, "was ended"),
    "takes all CPU time": ("while :; do (while :; do :; done); done", {"cpu_s": 2}, "'cpu'"),
    "makes too many files": ("mkdir d; cd d; seq 2000 | xargs touch; sleep 9", {"files": 500}, "'files'"),
}
"""Commands with which a policy ends its own sandbox, limits, and a part of the reason."""


@pytest.mark.parametrize("end", ENDS)
def test_a_policy_that_ends_its_own_sandbox_has_the_reward_0(own, end):
    need()
    command, limits, reason = ENDS[end]
    path = own(OWN, agent="import subprocess\n" + ASK + AGENT)
    chosen = {"name": path, "program": "/usr/bin/python3"}
    env = Program(harness=chosen, tasks={"name": "terminal", "limits": limits})
    replies = [read_harness(chosen).act(command), "Done."]
    item, agent = env.tasks("small_train")[0], ProgramAgent(env.action_format)
    limit = EpisodeLimits(3, 60.0)
    episode = asyncio.run(play_episode(item, env.new_session(), agent, ScriptedPolicy(replies), limit))
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TERMINATED, 0.0, 1), episode.error
    assert episode.turns[0].step.info == {"sandbox_ended": 1.0}
    assert reason in episode.turns[0].step.observation


def test_an_agent_that_does_not_start_in_its_sandbox_is_an_environment_error(own):
    need()
    path = own("command: [python3, /absent.py, '{{ prompt }}']")
    env = Program(harness={"name": path, "program": "/usr/bin/python3"}, tasks="terminal")
    item, agent = env.tasks("small_train")[0], ProgramAgent(env.action_format)
    episode = asyncio.run(play_episode(item, env.new_session(), agent, ScriptedPolicy([]), EpisodeLimits(3, 60.0)))
    assert episode.stop is StopReason.ENV_ERROR and "can't open file '/absent.py'" in str(episode.error)


def test_a_session_closes_without_an_error_while_its_agent_waits(own):
    need()
    path = own(OWN, agent="import subprocess\n" + ASK + AGENT)
    env = Program(harness={"name": path, "program": "/usr/bin/python3"}, tasks="terminal")

    async def talk() -> None:
        session = env.new_session()
        await session.reset(env.tasks("small_train")[0])
        await session.close()

    asyncio.run(talk())
