"""Test imports of verifiers' traces and of Inspect's logs."""

import json
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import verl_agent as va
from tests.support.episodes import STARTED, played, talk
from tests.support.imports import TOLD, imported, refusals, write
from tests.support.tool_envs import ITEM, Echo
from verl_agent.errors import ConfigError
from verl_agent.evaluation.imports.texts import REPEATED
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.trace.record_files import EpisodeWriter, read_records
from verl_agent.types import StopReason
from verl_agent.viewer.export.write import export_episodes


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


def test_a_chosen_score_of_verifiers_is_the_score_itself_and_the_sum_is_weighted(tmp_path):
    rewards = {"right": {"score": 1.0, "weight": 0.7}, "turns": {"score": 0.5, "weight": 0.0}}
    file = write(tmp_path / "a.jsonl", [trace(rewards=rewards)])
    found = [imported(file, "verifiers", score=name)[0][0]["reward"] for name in ("right", "turns", "")]
    assert found == [1.0, 0.5, 0.7]


def several_calls() -> EpisodeRecord:
    """Return a record with two calls in one reply, one of which is broken, as the episode loop writes it."""
    call = '<tool_call>\n{"name": "note", "arguments": {"patient": "a", "text": "b"}}\n</tool_call>'
    broken = '<tool_call>\n{"name": "note", "arguments": {"patient": 1}}\n</tool_call>'
    replies = iter([call + broken, "I say nothing.", call])
    episode = va.play_sync(ITEM, Echo(), agent="tools", policy=lambda messages: next(replies), max_turns=3)
    return to_record(episode, EpisodeMeta("evaluation", "test", 3, "g", 1, STARTED, 2.0, shaped_return=0.5))


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


def trace(**changes: Any) -> dict[str, Any]:
    nodes = [node(None, "user", "Begin."), node(0, "assistant", "Bye.", sampled=True)]
    return {"task": {"data": {"id": 0, "name": "n"}}, "nodes": nodes, "rewards": {"r": {"score": 1}}, **changes}


ERRORS = [{"type": "ProviderError", "message": "429"}]


def test_a_trace_with_an_error_is_an_environment_error_unless_a_later_attempt_succeeded(tmp_path):
    rewards = {"r": {"score": 0.0}}
    lines = [
        trace(errors=ERRORS, ok=False, rewards=rewards),
        trace(errors=ERRORS, ok=True, rewards=rewards),
        {"traces": [trace()], "errors": ERRORS},
    ]
    (failed, retried, outer), found = imported(write(tmp_path / "a.jsonl", lines), "verifiers")
    assert (failed["stop"], failed["error"], retried["stop"]) == ("env_error", "ProviderError: 429", "terminated")
    assert (outer["stop"], outer["error"]) == ("env_error", "ProviderError: 429")
    assert (found.left_out["errors"], found.left_out["reward beside an error"]) == (1, 2)


def test_the_traces_of_a_first_line_after_a_byte_order_mark_are_read(tmp_path):
    (record,), _ = imported(write(tmp_path / "a.jsonl", ["\ufeff" + json.dumps({"traces": [trace()]})]), "verifiers")
    assert record["stop"] == "terminated"


def test_traces_that_cannot_be_trained_on_are_refused_by_name_and_the_rest_of_their_line_is_kept(tmp_path):
    judge = trace(agent={"name": "judge", "trainable": False})
    call = {"id": "1", "type": "function", "name": "say", "namespace": "mcp", "arguments": "{}"}
    nodes = [node(None, "user", "Begin."), node(0, "assistant", "", sampled=True, tool_calls=[call])]
    lines = [{"traces": [judge, trace(nodes=nodes)], "group": "g"}, {"traces": [], "errors": ERRORS}]
    (record,), found = imported(write(tmp_path / "a.jsonl", lines), "verifiers")
    assert (record["task"], record["sample"]) == ("0", 0)
    assert dict(found.left_out) == {"call.namespace": 1, "episode.group": 1}
    (refused,) = tmp_path.glob("*/refused.txt")
    assert refused.read_text() == (
        "a.jsonl:1, trace 1: an agent that is not trained: agent.trainable of 'judge' is false\n"
        "a.jsonl:2: a line without a trace: ProviderError: 429\n"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (trace(rewards={"r": {"score": "1"}}), 'reward that is no finite number: found "1"'),
        (trace(nodes=None), "no nodes"),
        (trace(nodes=[], errors=ERRORS), "no reply of a model: ProviderError: 429"),
        ({"traces": "a"}, "traces that is not a list"),
        (trace(nodes=["a"]), "a field has not the form of 'verifiers'"),
    ],
)
def test_a_trace_of_another_form_is_refused(tmp_path, line, reason):
    assert reason in refusals(write(tmp_path / "a.jsonl", [line]), "verifiers")


def log(path: Path, task: str | None, **sample: Any) -> Path:
    messages = [{"role": "user", "content": "Begin.", "source": "input"}, TOLD[4]]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"eval": {"task": task}, "samples": [{"id": 1, "messages": messages, **sample}]}))
    return path


def test_the_observation_of_a_failed_tool_of_inspect_is_the_error_that_its_model_read(tmp_path):
    call = {"id": "1", "function": "read", "arguments": {}, "type": "function"}
    told = {"role": "tool", "tool_call_id": "1", "function": "read"}
    failures = [
        {"content": "", "error": {"type": "parsing", "message": "no such note"}},
        {"content": "half of it", "error": {"type": "timeout", "message": "attachment://a"}},
        {"content": "all of it", "error": None},
    ]
    messages = [
        {"role": "user", "content": "Begin.", "source": "input"},
        *(
            one
            for failed in failures
            for one in ({"role": "assistant", "content": "", "tool_calls": [call]}, told | failed)
        ),
        TOLD[4],
    ]
    file = log(tmp_path / "logs" / "a.json", "notes", messages=messages, attachments={"a": "too slow"})
    (record,), found = imported(file, "inspect")
    assert [turn["observation"] for turn in record["turns"][:3]] == [
        "Error: no such note",
        "Error: too slow",
        "all of it",
    ]
    assert found.left_out == {"content of a failed tool": 1}
    file = log(tmp_path / "logs" / "b.json", "notes", messages=[*messages[:3], TOLD[4]])
    assert not imported(file, "inspect")[1].left_out


def test_the_task_of_a_sample_is_that_of_its_log_and_its_index_counts_in_that_task(tmp_path):
    for name, task in (("a", "sums"), ("b", "words"), ("c", "sums")):
        log(tmp_path / "logs" / f"{name}.json", task, scores={"right": {"value": "P"}})
    records, _ = imported(tmp_path / "logs", "inspect")
    assert [(one["task"], one["sample"]) for one in records] == [("sums/1", 0), ("words/1", 0), ("sums/1", 1)]
    assert records[0]["reward"] == 0.5


def test_a_sample_that_a_retry_copied_into_its_own_log_counts_once(tmp_path):
    """`inspect eval-retry` copies the samples that ended, with their `uuid`; those of other epochs have others."""
    for name, uuids in (("a", "xy"), ("b", "xz")):
        told = json.loads(log(tmp_path / "logs" / f"{name}.json", "sums").read_text())
        (sample,) = told["samples"]
        told["samples"] = [{**sample, "uuid": one, "epoch": epoch} for epoch, one in enumerate(uuids, start=1)]
        (tmp_path / "logs" / f"{name}.json").write_text(json.dumps(told))
    with zipfile.ZipFile(tmp_path / "logs" / "c.eval", "w") as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps({**sample, "uuid": "y"}))
        archive.writestr("samples/1_epoch_2.json", "{")
    records, found = imported(tmp_path / "logs", "inspect")
    assert [(one["task"], one["sample"]) for one in records] == [("sums/1", 0), ("sums/1", 1), ("sums/1", 2)]
    assert (dict(found.left_out), dict(found.refused)) == ({REPEATED: 2}, {"no JSON": 1})


def test_a_name_with_bytes_that_are_no_utf_8_is_visible_among_the_refusals(tmp_path):
    log(tmp_path / "logs" / "a\udcff.json", "sums", messages=[])
    log(tmp_path / "logs" / "b.json", "sums")
    imported(tmp_path / "logs", "inspect")
    (refused,) = tmp_path.rglob("refused.txt")
    assert refused.read_text(encoding="utf-8").startswith("a\ufffd.json, sample 1: ")


def test_the_task_of_a_sample_of_a_zip_file_is_in_its_header(tmp_path):
    for name, head in (("a", "header.json"), ("b", "_journal/start.json")):
        with zipfile.ZipFile(tmp_path / f"{name}.eval", "w") as archive:
            archive.writestr(head, json.dumps({"eval": {"task": "sums"}}))
            sample = json.loads(log(tmp_path / "logs" / "a.json", None).read_text())["samples"][0]
            archive.writestr("samples/1_epoch_1.json", json.dumps(sample))
        (record,), _ = imported(tmp_path / f"{name}.eval", "inspect")
        assert record["task"] == "sums/1"


def test_the_parts_of_a_score_are_scores_and_a_return_for_others_rates_none_of_several(tmp_path):
    file = log(tmp_path / "logs" / "a.json", "sums", scores={"both": {"value": {"a": 1, "b": True}}})
    (record,), found = imported(file, "inspect", reward=1.0)
    assert (record["stop"], found.undecided, found.choices) == ("unrated", 1, {"both.a", "both.b"})
    (record,), _ = imported(file, "inspect", score="both.b")
    assert record["reward"] == 1.0


def test_a_sample_that_failed_before_a_reply_is_refused_with_its_error_and_a_log_without_samples_is_named(tmp_path):
    messages = [{"role": "user", "content": "Begin.", "source": "input"}]
    file = log(tmp_path / "logs" / "a.json", "sums", messages=messages, error={"message": "no GPU"})
    assert "a.json, sample 1: no reply of a model: no GPU" in refusals(file, "inspect")
    (tmp_path / "logs" / "a.json").write_text('{"eval": {"task": "sums"}, "samples": null}')
    log(tmp_path / "logs" / "b.json", "sums")
    _, found = imported(tmp_path / "logs", "inspect")
    assert dict(found.refused) == {"a log without samples": 1}


@pytest.mark.parametrize("content", ["[1]", '{"a": 1}', "{"])
def test_a_file_that_is_no_log_is_refused_without_an_exception_of_python(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    message = refusals(tmp_path / "a.json", "inspect")
    assert "cannot be read as a log of Inspect" in message and "Error" not in message


def test_the_advice_on_another_format_is_given_once(tmp_path):
    message = refusals(write(tmp_path / "a.jsonl", [{"prompt": "a"}]), "verifiers")
    assert message.count("set --as") == 1 and "set --as" in refusals(write(tmp_path / "b.jsonl", ["[1]"]), "verifiers")
