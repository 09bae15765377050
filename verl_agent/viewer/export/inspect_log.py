"""Episodes as a log file of Inspect (https://inspect.aisi.org.uk), format version 2 in a zip file (`.eval`).

`inspect view` lists such files of a folder, and `inspect_ai.log.read_eval_log` reads them. An episode is a sample, and
the episodes of one task at one step are its epochs. An episode that failed, or in which a person intervened, has no
score, so that it does not count. The metadata of a sample and of its replies are all further fields of the record, so
that `verl-agent records import` reads the same record again. The file is written without the package inspect_ai.
"""

import json
import re
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl_agent.results.statistics import clustered_wilson_interval, mean_return
from verl_agent.trace.record import EpisodeRecord, is_operated, task_key
from verl_agent.trace.turn_record import TurnRecord
from verl_agent.types import Message, StopReason

INSPECT_VERSION = 2
"""Version of Inspect's log format that is written."""


def write_inspect_log(records: Iterable[EpisodeRecord], path: Path, name: str) -> int:
    """Write a log and return the number of its samples.

    Args:
        path: path of the file, which ends with `.eval`.
        name: name of the task in Inspect, for example that of the run.
    """
    epochs: Counter[str] = Counter()
    summaries: list[dict[str, Any]] = []
    started, model = "", ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for record in records:
            identity = _identity(record)
            epochs[identity] += 1
            sample = _sample(record, identity, epochs[identity])
            file.writestr(f"samples/{identity}_epoch_{epochs[identity]}.json", json.dumps(sample))
            summaries.append(_summary(sample))
            started = min(filter(None, (started, record["started_at"])), default="")
            model = model or record["model"]
        file.writestr("summaries.json", json.dumps(summaries))
        file.writestr("header.json", json.dumps(_header(summaries, name, started, model)))
    return len(summaries)


def _identity(record: EpisodeRecord) -> str:
    """Return the id of a sample; it is part of a file name in the log.

    An id with characters that are replaced, or a long one, ends with a checksum.
    """
    whole = " ".join(filter(None, (record["purpose"], f"step {record['step']}", *task_key(record))))
    name = re.sub(r"[/\\\x00-\x1f\ud800-\udfff]", "_", whole)[:150]
    return name if name == whole else f"{name} {zlib.crc32(whole.encode('utf-8', 'backslashreplace')):08x}"


def _sample(record: EpisodeRecord, identity: str, epoch: int) -> dict[str, Any]:
    played: list[dict[str, Any]] = [dict(message) for message in record["messages"][: record["prompt_length"]]]
    turns = enumerate(record["turns"], start=1)
    made: list[dict[str, Any]] = []
    conversation = record["messages"]
    for place, message in enumerate(conversation[record["prompt_length"] :], start=record["prompt_length"] + 1):
        if message["role"] != "assistant":
            played += answer_messages(message, made)
        elif (numbered := next(turns, None)) is not None:
            number, turn = numbered
            made = calls_of(turn, number)
            stated = {"reply": message["content"]}
            if place < len(conversation) and conversation[place]["role"] != "assistant":
                stated["observation"] = conversation[place]["content"]
            facts = {name: value for name, value in turn.items() if name not in stated or value != stated[name]}
            played.append(dict(message) | {"metadata": facts})
            if made:
                played[-1]["tool_calls"] = made
        else:
            played.append(dict(message))
    replies = [turn["reply"] for turn in record["turns"]]
    return {
        "id": identity,
        "epoch": epoch,
        "input": played[: record["prompt_length"]],
        "target": "",
        "messages": played,
        "output": {
            "model": record["model"],
            "choices": [{"message": {"role": "assistant", "content": replies[-1] if replies else ""}}],
            "completion": replies[-1] if replies else "",
        },
        "scores": _scores(record),
        "metadata": {name: value for name, value in record.items() if name not in ("messages", "turns")},
        "store": {},
        "events": [],
        "attachments": {},
        "started_at": record["started_at"],
        "total_time": record["seconds"],
        **({"error": _error(record["error"])} if record["error"] else {}),
    }


def calls_of(turn: TurnRecord, number: int) -> list[dict[str, Any]]:
    """Return the function calls of a turn in Inspect's form; one that was not understood has its error."""
    if "calls" not in turn:
        if not isinstance(turn["action"], dict):
            return []
        return [_tool_call(f"call_{number}_1", turn["action"]["name"], turn["action"]["arguments"])]
    made = []
    for place, one in enumerate(turn["calls"], start=1):
        if "no_call" in one["errors"]:
            continue
        arguments = one["action"]["arguments"] if isinstance(one["action"], dict) else {}
        call = _tool_call(f"call_{number}_{place}", one["name"] or "unknown", arguments)
        made.append(call | ({"parse_error": one["observation"]} if one["errors"] and one["action"] is None else {}))
    return made


def _tool_call(identity: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": identity, "function": name, "arguments": arguments, "type": "function"}


def answer_messages(message: Message, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an observation as the answers to the function calls before it, if there are any."""
    answers = message.get("answers") or [message["content"]]
    if not made or len(answers) != len(made):
        return [{"role": message["role"], "content": message["content"]}]
    return [
        {"role": "tool", "content": answer, "tool_call_id": call["id"], "function": call["function"]}
        | ({"error": {"type": "parsing", "message": call["parse_error"]}} if "parse_error" in call else {})
        for answer, call in zip(answers, made, strict=True)
    ]


def _scores(record: EpisodeRecord) -> dict[str, dict[str, Any]]:
    if not StopReason(record["stop"]).valid or is_operated(record):
        return {}
    return {
        "success": {"value": float(record["success"]), "explanation": record["stop"]},
        "return": {"value": record["reward"]},
    }


def _error(message: str) -> dict[str, str]:
    return {"message": message, "traceback": message, "traceback_ansi": message}


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    same = ("id", "epoch", "target", "scores", "started_at", "total_time")
    names = ("purpose", "env", "task", "category", "split", "step", "group", "sample", "attempt", "max_turns", "stop")
    last = sample["input"][-1]["content"] if sample["input"] else ""
    return {
        **{name: sample[name] for name in same},
        "metadata": {name: sample["metadata"][name] for name in names},
        "input": last[:500],
        "completed": bool(sample["scores"]),
        "message_count": len(sample["messages"]),
        **({"error": sample["error"]["message"]} if "error" in sample else {}),
    }


def _metrics(scorer: str, by_task: dict[str, list[float]]) -> dict[str, float]:
    """Return the mean over tasks and the ends of its 95 % interval."""
    if not by_task:
        return {"mean": 0.0}
    found = clustered_wilson_interval(by_task) if scorer == "success" else mean_return(by_task)
    return {"mean": found.mean, "low_95": found.low, "high_95": found.high, "tasks": found.tasks}


def _header(summaries: list[dict[str, Any]], name: str, started: str, model: str) -> dict[str, Any]:
    valid = [summary for summary in summaries if summary["scores"]]
    count = len(valid)
    scores = []
    for scorer in ("success", "return"):
        by_task: dict[str, list[float]] = defaultdict(list)
        for summary in valid:
            by_task[f"{summary['metadata']['env']} {summary['metadata']['task']}"].append(
                summary["scores"][scorer]["value"]
            )
        metrics = {name: {"name": name, "value": value} for name, value in _metrics(scorer, by_task).items()}
        scores.append({"name": scorer, "scorer": scorer, "scored_samples": count, "metrics": metrics})
    ids = list(dict.fromkeys(summary["id"] for summary in summaries))
    return {
        "version": INSPECT_VERSION,
        "status": "success",
        "eval": {
            "created": started or "1970-01-01T00:00:00+00:00",
            "task": name,
            "task_id": name,
            "eval_id": name,
            "run_id": name,
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids},
            "model": model or "none",
            "config": {"epochs": max((summary["epoch"] for summary in summaries), default=1)},
        },
        "plan": {"name": "plan", "steps": []},
        "results": {"total_samples": len(summaries), "completed_samples": count, "scores": scores},
        "stats": {"started_at": started, "completed_at": started},
    }
