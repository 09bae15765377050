"""Test imports of other programs' trajectories: what a record says, and what is refused, counted and left out."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import verl_agent as va
from tests.support.imports import ARGUMENTS, CALL, TOLD, imported, refusals, write
from verl_agent.agents.functions import FunctionCalls
from verl_agent.commands.cli import app
from verl_agent.envs.action_format import ToolFormat
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.errors import ConfigError
from verl_agent.evaluation.imports.conversation import ImportSettings
from verl_agent.evaluation.imports.job import import_records
from verl_agent.results.failures_report import analyze_failures
from verl_agent.training.offline.selection import EpisodeSource, select_episodes, usable_records


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
        (
            {"messages": [TOLD[1], {"role": "assistant", "function_call": {}}]},
            "message 2 has {}. Allowed: null. Write",
        ),
        ({"messages": [TOLD[1], {**TOLD[4], "weight": 0}]}, "weight that is not allowed: message 2 has 0. Allowed: 1"),
        (
            {"messages": [TOLD[1], {"role": "assistant", "content": None, "refusal": "No."}]},
            "the type 'refusal'",
        ),
        (
            {"messages": [TOLD[1], {"role": "assistant", "content": [{"type": "refusal"}]}]},
            "the type 'refusal'",
        ),
        ({"messages": [TOLD[1], {"role": "assistant", "content": " "}]}, "an empty reply"),
        (
            {"messages": [TOLD[1], {"role": "ipython"}]},
            'role that is not allowed: message 2 has "ipython". Allowed:',
        ),
        ({"messages": [{"from": "human"}]}, "a message without role: message 1"),
        ({"messages": [TOLD[1], {**TOLD[2], "tool_calls": [{"type": "function"}]}]}, "a call without name: message 2"),
        (
            {"messages": [TOLD[1], {**TOLD[2], "tool_calls": [{**CALL, "type": "custom"}]}]},
            "tool_calls.type that",
        ),
        ({"messages": ["hi"]}, 'a message that is no object: message 1 has "hi"'),
        ({"messages": {}}, "messages that is not a list: found {}"),
        ({"messages": TOLD, "task": ""}, 'task that is no name: found "". Allowed: text, a whole number or null'),
        ({"messages": TOLD, "task": [1]}, "task that is no name: found [1]"),
        ({"messages": TOLD, "task": True}, "task that is no name: found true"),
        ({"messages": TOLD, "model": {"name": "m"}}, "model that is no name"),
        (json.dumps({"messages": TOLD, "reward": 10**400}), "reward that is no finite number"),
        ({"messages": [TOLD[1], {**TOLD[2], "tool_calls": [{"name": "a", "arguments": '{"b": '}]}]}, "no JSON"),
        (
            {"prompt": "a", "completion": "b"},
            'no messages: {"prompt": "a", "completion": "b"}. If the file',
        ),
        ("[1]", "a value that is no object: [1]. Write one object a line"),
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


def peak(lines: list[Any], folder: Path) -> int:
    """Return the bytes that an import of some lines holds at most."""
    file = write(folder / f"{len(lines)}.jsonl", lines)
    tracemalloc.start()
    import_records(file, "messages", folder / str(len(lines)), ImportSettings("trip"))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_a_long_file_needs_no_more_memory_than_a_short_one(tmp_path):
    line = {"messages": TOLD, "reward": 1}
    peak([line] * 10, tmp_path)  # imports
    assert peak([line] * 2000, tmp_path) < peak([line] * 100, tmp_path) + 100_000  # bytes; the file has 1.2 MB


def test_the_command_prints_what_was_written_refused_and_left_out(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"messages": TOLD, "tools": [1]}, "{}"])
    arguments = ["records", "import", str(file), "--as", "messages", "--into", str(tmp_path / "to"), "--env", "trip"]
    printed = CliRunner().invoke(app, arguments).output.replace("\n", " ")
    assert "Wrote 1 episode" in printed and "tools (1)" in printed and "no messages (1)" in printed
    assert "--reward gives them one" in printed
    refused = CliRunner().invoke(app, [*arguments, "--rewards", "high"])
    assert refused.exit_code == 2


def test_a_score_of_a_format_that_has_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--score style would have no effect"):
        imported(write(tmp_path / "a.jsonl", [{"messages": TOLD, "reward": 1}]), score="style")


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


def test_true_and_false_are_the_rewards_one_and_zero(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"messages": TOLD, "reward": reward} for reward in (True, False)])
    assert [record["reward"] for record in imported(file)[0]] == [1.0, 0.0]


def test_the_sample_of_an_episode_counts_in_its_task_from_0(tmp_path):
    names = ["a", "b", "a", 7, "a", "7"]
    lines: list[Any] = [{"messages": TOLD, "task": name} for name in names]
    records, _ = imported(write(tmp_path / "a.jsonl", [*lines[:3], "{}", *lines[3:]]))
    assert [(one["task"], one["sample"]) for one in records] == [
        *(("a", 0), ("b", 0), ("a", 1)),
        *(("7", 0), ("a", 2), ("7", 1)),
    ]


def test_a_task_takes_the_same_memory_whatever_the_length_of_its_name(tmp_path):
    lines = [{"messages": TOLD, "task": f"{number} {'long ' * 200}"} for number in range(320)]
    peak(lines[:10], tmp_path)  # imports
    assert peak(lines, tmp_path) < peak(lines[:20], tmp_path) + 300 * 250  # bytes; a name has 1000


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    text = json.dumps({"messages": TOLD}) + "\r\n"
    (tmp_path / "a.jsonl").write_bytes((text * 2).encode("utf-8-sig"))
    records, found = imported(tmp_path / "a.jsonl")
    assert (len(records), dict(found.refused)) == (2, {})


@pytest.mark.parametrize(
    ("encode", "reason"),
    [
        (gzip.compress, "gunzip -c FILE > NEW"),
        (lambda text: text.decode().encode("utf-16"), "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
        (lambda text: text.decode().encode("utf-16-le"), "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
        (lambda text: text.decode().encode("latin-1"), "iconv -f LATIN1 -t UTF-8 FILE > NEW"),
        (lambda text: text.replace(b"\n", b"\r"), "line ends of CR alone"),
    ],
)
def test_a_file_of_another_encoding_is_refused_with_the_command_that_converts_it(tmp_path, encode, reason):
    line = json.dumps({"messages": [{"role": "user", "content": "é"}, TOLD[4]]}, ensure_ascii=False) + "\n"
    (tmp_path / "a.jsonl").write_bytes(encode((line * 2).encode()))
    assert reason in refusals(tmp_path / "a.jsonl", "messages")


def test_a_mark_of_calls_in_the_text_beside_a_call_is_escaped_and_counted_but_a_thought_is_kept(tmp_path):
    said = "<think>A <tool_call> helps.</think>\n\nI write <tool_call>."
    messages = [*TOLD[:2], {**TOLD[2], "content": said}, *TOLD[3:]]
    (record,), found = imported(write(tmp_path / "a.jsonl", [{"messages": messages}]))
    reply = record["turns"][0]["reply"]
    assert reply.startswith("<think>A <tool_call> helps.</think>\nI write &lt;tool_call>.\n<tool_call>\n")
    assert [call.name for call in CALL_FORMATS["hermes"].read(reply)] == ["weather"]
    assert sum(found.left_out.values()) == 1 and "written as &lt;tool_call" in next(iter(found.left_out))


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_a_config_error(tmp_path, place):
    (tmp_path / "file").write_text("")
    file = write(tmp_path / "a.jsonl", [{"messages": TOLD}])
    with pytest.raises(ConfigError, match="Set --into to a folder"):
        import_records(file, "messages", tmp_path / place, ImportSettings("trip"))


def test_settings_and_paths_that_an_import_cannot_use_are_refused_with_what_to_do(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"messages": TOLD}])
    assert "--env is empty" in refusals(file, "messages", env=" ")
    assert "is a folder, and --as messages reads one file of JSON lines" in refusals(tmp_path, "messages")
    assert "does not exist" in refusals(tmp_path / "b.jsonl", "messages")
    assert "it is empty" in refusals(write(tmp_path / "c.jsonl", []), "messages")


def test_the_command_advises_to_choose_one_of_several_scores(tmp_path):
    messages = [{"role": "user", "content": "Begin.", "source": "input"}, TOLD[4]]
    sample = {"id": 1, "messages": messages, "scores": {"a": {"value": 1}, "b": {"value": 0}}}
    (tmp_path / "a.json").write_text(json.dumps({"eval": {"task": "t"}, "samples": [sample]}))
    arguments = [str(tmp_path / "a.json"), "--as", "inspect", "--into", str(tmp_path / "to"), "--env", "trip"]
    printed = CliRunner().invoke(app, ["records", "import", *arguments]).output.replace("\n", " ")
    assert "--score a | b" in printed and "--reward" not in printed
    with pytest.raises(ConfigError, match="--score NAME"):
        usable_records([str(tmp_path / "to")], "episodes.records")


def test_tasks_of_inspect_with_other_arguments_are_other_tasks(tmp_path):
    messages = [{"role": "user", "content": "Begin.", "source": "input"}, TOLD[4]]
    for name, arguments in (("a", {}), ("b", {"level": 2, "kind": "x"}), ("c", {"kind": "x", "level": 2})):
        samples = [{"id": 1, "messages": messages, "scores": {"s": {"value": 1}}}]
        header = {"task": "t", "task_args": arguments}
        (tmp_path / f"{name}.json").write_text(json.dumps({"eval": header, "samples": samples}))
    arguments = [str(tmp_path), "--as", "inspect", "--into", str(tmp_path / "to"), "--env", "trip"]
    assert CliRunner().invoke(app, ["records", "import", *arguments]).exit_code == 0
    found = [record["task"] for record in usable_records([str(tmp_path / "to")], "episodes.records")]
    assert found == ["t/1", *['t{"kind": "x", "level": 2}/1'] * 2]
