"""Test imports of other programs' trajectories: what a record says, and what is refused, counted and left out."""

import json
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import verl_agent as va
from tests.support.episodes import STARTED, played, talk
from tests.support.tool_envs import ITEM, Echo
from verl_agent.agents.functions import FunctionCalls
from verl_agent.commands.cli import app
from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.errors import ConfigError
from verl_agent.evaluation.imports.conversation import ImportSettings
from verl_agent.evaluation.imports.job import Imported, import_records
from verl_agent.results.failures_report import analyze_failures
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.trace.record_files import EpisodeWriter, read_records
from verl_agent.training.offline.selection import EpisodeSource, select_episodes, usable_records
from verl_agent.types import StopReason
from verl_agent.viewer.export.write import export_episodes

ARGUMENTS = {"city": "Zürich </tool_call>", "days": 3, "limit": 1.5, "deep": {"list": [1, None, True, ""]}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
TOLD: list[dict[str, Any]] = [
    {"role": "developer", "content": "Use tools."},
    {"role": "user", "content": [{"type": "text", "text": "Sun?"}]},
    {"role": "assistant", "content": "I ask.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "No."},
]


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def imported(path: Path, kind: str = "messages", **settings: Any) -> tuple[list[EpisodeRecord], Imported]:
    into = path.parent / f"imported-{len(list(path.parent.iterdir()))}"
    found = import_records(path, kind, into, ImportSettings(settings.pop("env", "trip"), **settings))
    return list(read_records(into)), found


@pytest.mark.parametrize("calls", sorted(CALL_FORMATS))
def test_a_call_becomes_the_text_of_the_format_with_the_same_arguments(tmp_path, calls):
    (record,), _ = imported(write(tmp_path / "a.jsonl", [{"messages": TOLD, "reward": 1}]), calls=calls)
    assert [message["role"] for message in record["messages"][:3]] == ["system", "user", "assistant"]
    (call,) = CALL_FORMATS[calls].read(record["turns"][0]["reply"])
    arguments = {key: str(one) if calls == "qwen3_coder" and not isinstance(one, dict) else one
                 for key, one in ARGUMENTS.items()}  # fmt: skip
    read = {
        key: json.loads(one) if key == "deep" and isinstance(one, str) else one for key, one in call.arguments.items()
    }
    assert (call.name, read) == ("weather", arguments)
    assert record["turns"][0]["action"] == {"name": "weather", "arguments": ARGUMENTS}
    assert record["turns"][0]["observation"] == "rain"
    assert "rain" in record["messages"][3]["content"]


def test_several_calls_get_their_own_answers_in_the_order_of_the_calls(tmp_path):
    calls = [{**CALL, "id": name} for name in ("a", "b")]
    answers = [{"role": "tool", "tool_call_id": name, "content": name.upper()} for name in ("b", "a")]
    messages = [*TOLD[:2], {"role": "assistant", "content": None, "tool_calls": calls}, *answers]
    (record,), _ = imported(write(tmp_path / "a.jsonl", [{"messages": messages, "reward": 0.5, "task": "t7"}]))
    assert [one["observation"] for one in record["turns"][0]["calls"]] == ["A", "B"]
    assert record["messages"][-1] == {"role": "tool", "content": "A\n\nB", "answers": ["A", "B"]}
    assert (record["task"], record["reward"], record["success"], record["stop"]) == ("t7", 0.5, False, "terminated")


def test_what_a_source_does_not_state_is_named_and_an_episode_without_a_reward_is_not_trained_on(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"messages": TOLD}, {"messages": TOLD, "reward": 1.0}])
    (first, second), found = imported(file)
    assert (first["stop"], found.unrated, second["stop"]) == ("unrated", 1, "terminated")
    assert set(first["unknown"]) - set(second["unknown"]) == {"reward"}
    assert first["task"] == second["task"]  # the same prompt is the same task
    folder = next(one for one in tmp_path.iterdir() if one.is_dir())
    with pytest.raises(ConfigError, match=r"episodes\.records holds 1 episodes without a reward.*--reward 1"):
        usable_records([str(folder)], "episodes.records")
    records, found = imported(file, reward=0.25)
    assert [record["reward"] for record in records] == [0.25, 1.0]
    chosen = select_episodes(records, EpisodeSource(records=["a"], min_reward=0.25))
    assert len(chosen) == 1  # one conversation counts once, the better one
    assert va.summarize([first])[-1].episodes == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, TOLD[4]]}, "content of the type 'image'"),
        ({"messages": TOLD, "reward": 1.1}, "reward outside of 0..1"),
        (json.dumps({"messages": TOLD, "reward": float("nan")}), "no JSON: NaN"),
        ({"messages": TOLD, "reward": "good"}, "reward that is no finite number"),
        ({"messages": TOLD[:2]}, "no reply of a model"),
        ({"messages": [*TOLD, TOLD[4]]}, "a reply without an observation after it"),
        ({"messages": [*TOLD, TOLD[1], TOLD[1]]}, "several messages after one reply"),
        ({"messages": [*TOLD[:3], TOLD[3], TOLD[3]]}, "calls without an answer of their own"),
        ({"messages": [*TOLD[:3], {**TOLD[3], "tool_call_id": "c9"}]}, "an answer to no call"),
        ({"messages": [TOLD[1], {"role": "assistant", "content": "", "function_call": {}}]}, "function_call"),
        ({"messages": [TOLD[1], {"role": "assistant", "content": "Hm.", "weight": 0}]}, "weight"),
        ({"messages": [TOLD[1], {**TOLD[2], "tool_calls": [{"name": "a", "arguments": '{"b": '}]}]}, "no JSON"),
        ({"prompt": "a", "completion": "b"}, "an episode of another format"),
        ("[1]", "an episode of another format"),
        ('{"messages": [], "messages": []}', "no JSON: the key 'messages' occurs twice"),
    ],
)
def test_what_cannot_be_a_record_is_refused_with_its_line_and_the_rest_is_kept(tmp_path, line, reason):
    records, found = imported(write(tmp_path / "a.jsonl", [{"messages": TOLD}, line, {"messages": TOLD}]))
    assert (len(records), sum(found.refused.values())) == (2, 1)
    (refused,) = tmp_path.glob("*/refused.txt")
    assert refused.read_text().startswith("a.jsonl:2: ") and reason in refused.read_text()


def test_a_file_that_is_cut_off_says_so(tmp_path):
    text = json.dumps({"messages": TOLD})
    (tmp_path / "a.jsonl").write_text(f"{text}\n{text[:-9]}")
    records, found = imported(tmp_path / "a.jsonl")
    assert (len(records), list(found.refused)) == (1, ["the end is missing: the file is cut off"])


def test_an_import_that_fails_leaves_nothing_and_one_that_succeeded_is_not_overwritten(tmp_path):
    bad, good = write(tmp_path / "bad.jsonl", ["{}"]), write(tmp_path / "good.jsonl", [{"messages": TOLD}])
    with pytest.raises(ConfigError, match=r"no episode of the format 'messages': bad\.jsonl:1"):
        import_records(bad, "messages", tmp_path / "into", ImportSettings("trip"))
    assert list((tmp_path / "into").iterdir()) == []
    import_records(good, "messages", tmp_path / "into", ImportSettings("trip"))
    with pytest.raises(ConfigError, match="exists"):
        import_records(good, "messages", tmp_path / "into", ImportSettings("trip"))


def test_a_long_file_needs_no_more_memory_than_a_short_one(tmp_path):
    def peak(lines: int) -> int:
        file = write(tmp_path / f"{lines}.jsonl", [{"messages": TOLD, "reward": 1}] * lines)
        tracemalloc.start()
        import_records(file, "messages", tmp_path / str(lines), ImportSettings("trip"))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)  # imports
    assert peak(2000) < peak(100) + 100_000  # bytes; the file has 1.2 MB


def test_the_command_prints_what_was_written_refused_and_left_out(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"messages": TOLD, "tools": [1]}, "{}"])
    arguments = ["records", "import", str(file), "--as", "messages", "--into", str(tmp_path / "to"), "--env", "trip"]
    printed = CliRunner().invoke(app, arguments).output.replace("\n", " ")
    assert "Wrote 1 episode" in printed and "tools (1)" in printed and "another format (1)" in printed
    assert "--reward gives them one" in printed
    refused = CliRunner().invoke(app, [*arguments, "--rewards", "high"])
    assert refused.exit_code == 2


STEPS: list[dict[str, Any]] = [
    {"step_id": 1, "source": "user", "message": "Fix it.", "timestamp": "2026-05-01T10:00:00Z"},
    {
        "step_id": 2,
        "source": "agent",
        "message": "I look.",
        "reasoning_content": "Where?",
        "tool_calls": [{"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}],
        "observation": {"results": [{"source_call_id": "1", "content": "a.py"}]},
        "metrics": {"completion_tokens": 12, "prompt_tokens": 90},
    },
    {"step_id": 3, "source": "agent", "message": "Done."},
]
TRAJECTORY = {"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1", "model_name": "m"}, "steps": STEPS}


def test_a_trial_of_harbor_has_the_reward_of_its_verifier(tmp_path):
    for name, result in (
        ("one", {"task_name": "org/fix", "verifier_result": {"rewards": {"reward": 1.0, "style": 0.5}}}),
        ("two", {"task_name": "org/fix", "exception_info": {"exception_type": "Timeout", "exception_message": "60 s"}}),
    ):
        (tmp_path / "job" / name / "agent").mkdir(parents=True)
        (tmp_path / "job" / name / "result.json").write_text(json.dumps(result))
        (tmp_path / "job" / name / "agent" / "trajectory.json").write_text(json.dumps(TRAJECTORY))
    (first, second), found = imported(tmp_path / "job", "atif", thoughts=True)
    assert (first["task"], first["reward"], first["model"], first["started_at"][:16]) == (
        *("org/fix", 1.0, "m"),
        "2026-05-01T10:00",
    )
    assert first["turns"][0]["reply"].startswith("<think>\nWhere?\n</think>\n\nI look.\n<tool_call>")
    assert (first["turns"][0]["tokens"], first["turns"][0]["observation"]) == (12, "a.py")
    assert (second["stop"], second["error"]) == ("env_error", "Timeout: 60 s")
    assert found.left_out == {"metrics.prompt_tokens": 2, "score.style": 1}
    (style, _), _ = imported(tmp_path / "job", "atif", score="style")
    assert style["reward"] == 0.5
    assert list(imported(tmp_path / "job", "atif", score="stile")[1].refused) == ["no score 'stile'"]


def test_a_trial_with_a_damaged_result_is_refused_by_its_name_and_the_others_are_kept(tmp_path):
    for name, result in (("bad", '{"task_name": "org/f'), ("good", '{"task_name": "org/fix"}')):
        (tmp_path / "job" / name / "agent").mkdir(parents=True)
        (tmp_path / "job" / name / "result.json").write_text(result)
        (tmp_path / "job" / name / "agent" / "trajectory.json").write_text(json.dumps(TRAJECTORY))
    (record,), found = imported(tmp_path / "job", "atif")
    assert (record["task"], list(found.refused)) == ("org/fix", ["a damaged result.json"])
    (refused,) = tmp_path.glob("*/refused.txt")
    assert refused.read_text().startswith("bad/agent/trajectory.json: ")


def test_copied_steps_are_the_prompt_and_steps_without_a_model_have_another_author(tmp_path):
    steps = [{**STEPS[0]}, {**STEPS[1], "is_copied_context": True}, {**STEPS[1]}, {**STEPS[2], "llm_call_count": 0}]
    file = write(tmp_path / "a.jsonl", [{**TRAJECTORY, "steps": steps}])
    (record,), _ = imported(file, "atif")
    assert (record["prompt_length"], len(record["turns"])) == (3, 2)
    assert record["turns"][1]["author"] == "overseer"


def node(parent: int | None, role: str, content: str, sampled: bool = False, **more: Any) -> dict[str, Any]:
    return {"parent": parent, "sampled": sampled, "message": {"role": role, "content": content, **more}}


def test_a_trace_of_verifiers_has_its_weighted_rewards_and_its_branches_are_refused(tmp_path):
    call = {"id": "1", "type": "function", "name": "say", "arguments": '{"word": "a"}'}
    nodes = [
        node(None, "user", "Begin."),
        node(0, "assistant", "", sampled=True, tool_calls=[call]),
        node(1, "tool", "heard", tool_call_id="1"),
        node(2, "assistant", "Bye.", sampled=True),
    ]
    trace = {
        "task": {"type": "Task", "data": {"id": "7"}},
        "agent": {"name": "solver"},
        "nodes": nodes,
        "calls": [{"node": 1, "model": "m", "usage": {"completion_tokens": 5}}],
        "rewards": {"right": {"score": 1.0, "weight": 0.5}, "short": {"score": 1.0, "weight": 0.25}, "other": None},
        "stop_condition": "max_turns",
        "timing": {"start": 100.0, "scoring": {"end": 104.5}},
    }
    branched = {**trace, "nodes": [*nodes, node(0, "assistant", "Other.", sampled=True)]}
    file = write(tmp_path / "traces.jsonl", [{"id": "e", "traces": [trace, trace]}, {"id": "f", "traces": [branched]}])
    (record, other), found = imported(file, "verifiers")
    assert (record["reward"], record["task"], record["stop"], record["model"]) == (0.75, "7", "turn_limit", "m")
    assert (record["seconds"], record["turns"][0]["tokens"], record["sample"], other["sample"]) == (4.5, 5, 0, 1)
    assert record["turns"][0]["action"] == {"name": "say", "arguments": {"word": "a"}}
    assert list(found.refused) == ["a conversation with branches"]


def several_calls() -> EpisodeRecord:
    """Return a record with two calls in one reply, one of which is broken, as the episode loop writes it."""
    call = '<tool_call>\n{"name": "note", "arguments": {"patient": "a", "text": "b"}}\n</tool_call>'
    broken = '<tool_call>\n{"name": "note", "arguments": {"patient": 1}}\n</tool_call>'
    replies = iter([call + broken, "I say nothing.", call])
    episode = va.play_sync(ITEM, Echo(), agent="tools", policy=lambda messages: next(replies), max_turns=3)
    return to_record(episode, EpisodeMeta("evaluation", "test", 3, "g", 1, STARTED, 2.0, shaped_return=0.5))


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("verifiers", {"task": {"data": {}}, "nodes": [], "rewards": {"bar": {"score": 0.7}, "baz": None}}),
        ("inspect", {"id": "a", "messages": [], "scores": {"bar": {"value": 0.7}, "baz": {"value": None}}}),
    ],
)
def test_a_score_that_the_source_lacks_is_refused_with_the_names_that_it_has(tmp_path, kind, line):
    if kind == "verifiers":
        line["nodes"] = [node(None, "user", "Begin."), node(0, "assistant", "Bye.", sampled=True)]
        file = write(tmp_path / "a.jsonl", [line])
    else:
        line["messages"] = [{"role": "user", "content": "Begin.", "source": "input"}, TOLD[4]]
        file = tmp_path / "a.json"
        file.write_text(json.dumps({"samples": [line]}))
    (named,), found = imported(file, kind, score="bar")
    assert (named["reward"], named["unknown"].count("reward")) == (0.7, 0)
    (null,), found = imported(file, kind, score="baz")
    assert (found.unrated, null["stop"], found.left_out["score.bar"]) == (1, "unrated", 1)
    with pytest.raises(ConfigError, match=r"no score 'foo': Set --score to one of: bar, baz"):
        imported(file, kind, score="foo")


def test_a_score_of_a_format_that_has_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--score style would have no effect"):
        imported(write(tmp_path / "a.jsonl", [{"messages": TOLD, "reward": 1}]), score="style")


def test_an_exported_log_of_inspect_gives_the_same_records_again(tmp_path):
    records = [
        several_calls(),
        talk("a b", task="shop/1", env="tool_echo"),
        talk("a", 0.0, task="2", stop=StopReason.ENV_ERROR, env="tool_echo") | {"error": "the host died"},
        talk("a b", 0.0, task="3", stop=StopReason.TURN_TOKENS, env="tool_echo"),
        played(("east", "hall\n\nx"), (None, "What?"), info={"invalid_action": 1.0}) | {"env": "tool_echo"},
    ]
    for record in records:
        record["turns"][0]["review"] = {"decision": "approved", "by": "person", "reason": "", "seconds": 1.0}
        record["unknown"] = ["seconds"]
    with EpisodeWriter(tmp_path / "run" / "episodes.jsonl") as writer:
        for record in records:
            writer.write(record)
    export_episodes([tmp_path / "run"], tmp_path / "run.eval")
    again, found = imported(tmp_path / "run.eval", "inspect", env="tool_echo")
    key = partial(json.dumps, sort_keys=True)
    assert sorted(map(key, again)) == sorted(map(key, read_records(tmp_path / "run")))
    assert not found.refused
    with pytest.raises(ConfigError, match="pass --env tool_echo"):
        imported(tmp_path / "run.eval", "inspect")


def test_a_log_of_inspect_that_is_cut_off_is_refused_with_the_way_to_write_it_anew(tmp_path):
    with EpisodeWriter(tmp_path / "run" / "episodes.jsonl") as writer:
        writer.write(talk())
    export_episodes([tmp_path / "run"], tmp_path / "run.eval")
    (tmp_path / "cut.eval").write_bytes((tmp_path / "run.eval").read_bytes()[:-40])
    with pytest.raises(ConfigError, match="inspect log convert"):
        imported(tmp_path / "cut.eval", "inspect")


def test_observations_are_those_of_the_agent_that_calls_functions(tmp_path):
    """The model must read in training what it reads when the agent plays."""
    for calls in sorted(CALL_FORMATS):
        (record,), _ = imported(write(tmp_path / f"{calls}.jsonl", [{"messages": TOLD}]), calls=calls)
        agent = FunctionCalls(ToolFormat(), calls=calls)
        assert record["messages"][3] == agent.observe(va.StepResult("rain"), None, 0)


def test_failures_of_imported_episodes_are_counted_without_an_oracle(tmp_path):
    lines = [{"messages": TOLD, "reward": reward, "task": "a"} for reward in (0.0, 1.0)] + [{"messages": TOLD}]
    import_records(write(tmp_path / "a.jsonl", lines), "messages", tmp_path / "into", ImportSettings("trip"))
    (summary,), (failed,) = analyze_failures(tmp_path / "into")
    assert (summary.failed, summary.episodes, failed.task, failed.divergence) == (1, 2, "a", None)
