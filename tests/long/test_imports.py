"""Test that logs of Inspect and traces of verifiers, which their own packages wrote, are imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verl_agent.evaluation.imports.conversation import ImportSettings
from verl_agent.evaluation.imports.job import Imported, import_records
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

INSPECT = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant, ChatMessageUser, ContentImage, ContentReasoning, ContentText, ModelOutput, ModelUsage,
    get_model)
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

@tool
def add():
    async def execute(x: int, y: int):
        '''Add two numbers.

        Args:
            x: first
            y: second
        '''
        return str(x + y)
    return execute

def answer(input, tools, tool_choice, config):
    if input[-1].role == "user" and "1 + 2" in input[-1].text:
        out = ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 2})
    else:
        out = ModelOutput.from_content("mockllm/model", [
            ContentReasoning(reasoning="hm"), ContentText(text="It is 3.")])
    out.usage = ModelUsage(input_tokens=5, output_tokens=3, total_tokens=8)
    return out

image = ContentImage(image="data:image/png;base64,iVBORw0KGgo=")
samples = [
    Sample(id="sum", input="What is 1 + 2? " + "Think well. " * 40, target="3"),
    Sample(id="chat", target="2", input=[
        ChatMessageUser(content="Hi."), ChatMessageAssistant(content="Hello."), ChatMessageUser(content="1 + 1?")]),
    Sample(id="picture", input=[ChatMessageUser(content=[ContentText(text="What is it?"), image])], target="x"),
]
task = Task(dataset=samples, solver=[system_message("Be brief."), use_tools(add()), generate()], scorer=includes())
model = get_model("mockllm/model", custom_outputs=answer)
for kind in ("eval", "json"):
    eval(task, model=model, log_dir=f"{sys.argv[1]}/{kind}", log_format=kind, display="none")
"""
VERIFIERS = """
import json, sys
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import Episode
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
from verifiers.v1.types import (
    AssistantMessage, SystemMessage, TextContentPart, ToolCall, ToolMessage, Usage, UserMessage)

task = TraceTask(type="T", data=WireTaskData(id="7"))
call = ToolCall(id="1", name="say", arguments='{"word": "a", "n": 1.5}')
nodes = [
    MessageNode(message=SystemMessage(content="Be brief.")),
    MessageNode(parent=0, message=UserMessage(content=[TextContentPart(text="Begin.")])),
    MessageNode(parent=1, sampled=True, message=AssistantMessage(tool_calls=[call]), token_ids=[1], mask=[True]),
    MessageNode(parent=2, message=ToolMessage(tool_call_id="1", content="heard")),
    MessageNode(parent=3, sampled=True, message=AssistantMessage(content="Bye.")),
]
usage = Usage(prompt_tokens=4, completion_tokens=5)
trace = Trace(task=task, agent=AgentInfo(config=WireAgentConfig()), nodes=nodes, calls=[
    ModelCall(node=2, model="m", usage=usage)])
trace.record_reward("right", 1.0, 0.5)
trace.stop("max_turns")
failed = Trace(task=task, agent=AgentInfo(config=WireAgentConfig()), nodes=nodes[:3])
failed.record_error(ValueError("no room"))
branched = Trace(task=task, agent=AgentInfo(config=WireAgentConfig()), nodes=[
    *nodes, MessageNode(parent=1, sampled=True, message=AssistantMessage(content="Other."))])
with open(f"{sys.argv[1]}/traces.jsonl", "w") as file:
    for one in (trace, failed, branched):
        file.write(json.dumps(Episode(task=task, traces=[one]).to_record()) + "\\n")
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def written(folder: Path, package: str, program: str) -> None:
    """Run a program in a virtual environment that has a package."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", package], check=True)
    subprocess.run([python, "-c", program, folder], check=True)


def imported(path: Path, kind: str) -> tuple[list[EpisodeRecord], Imported]:
    into = path.parent / f"{path.name}.imported"
    found = import_records(path, kind, into, ImportSettings("talk"))
    return list(read_records(into)), found


def test_logs_of_inspect_are_imported(tmp_path: Path) -> None:
    written(tmp_path, "inspect_ai==0.3.285", INSPECT)
    for kind in ("eval", "json"):
        records, found = imported(tmp_path / kind, "inspect")
        assert dict(found.refused) == {"content of the type 'image'": 1}
        by_task = {record["task"].removeprefix("task/"): record for record in records}
        assert (by_task["sum"]["reward"], by_task["chat"]["reward"]) == (1.0, 0.0)
        assert by_task["sum"]["turns"][0]["action"] == {"name": "add", "arguments": {"x": 1, "y": 2}}
        assert by_task["sum"]["turns"][0]["observation"] == "3"
        assert by_task["chat"]["prompt_length"] == 4  # an example of the input is no reply
        assert found.left_out["reasoning"] == 2


def test_traces_of_verifiers_are_imported(tmp_path: Path) -> None:
    written(tmp_path, "verifiers==0.4.0", VERIFIERS)
    (record, failed), found = imported(tmp_path / "traces.jsonl", "verifiers")
    assert (record["task"], record["reward"], record["stop"], record["model"]) == ("7", 0.5, "turn_limit", "m")
    assert record["turns"][0]["action"] == {"name": "say", "arguments": {"word": "a", "n": 1.5}}
    assert [json.dumps(turn["observation"]) for turn in record["turns"]] == ['"heard"', '""']
    assert (failed["stop"], failed["error"]) == ("env_error", "ValueError: no room")
    assert list(found.refused) == ["a conversation with branches"]
