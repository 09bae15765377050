"""Episodes as a log file of Inspect (https://inspect.aisi.org.uk), format version 2 in a zip file (`.eval`).

`inspect view` lists such files of a folder, and `inspect_ai.log.read_eval_log` reads them. An episode is a sample, and
the episodes of one task at one step are its epochs. An episode that failed, or in which a person intervened, has no
score, so that it does not count. The file is written without the package inspect_ai.
"""

import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl_agent.trace.record import EpisodeRecord, is_operated
from verl_agent.types import StopReason

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
    whole = " ".join(filter(None, (record["purpose"], f"step {record['step']}", record["env"], record["task"])))
    name = re.sub(r"[/\\\x00-\x1f\ud800-\udfff]", "_", whole)[:150]
    return name if name == whole else f"{name} {zlib.crc32(whole.encode('utf-8', 'backslashreplace')):08x}"


def _sample(record: EpisodeRecord, identity: str, epoch: int) -> dict[str, Any]:
    played: list[dict[str, Any]] = [dict(message) for message in record["messages"]]
    turns = iter(record["turns"])
    for message in played[record["prompt_length"] :]:
        if message["role"] == "assistant" and (turn := next(turns, None)) is not None:
            facts = ("action", "reward", "tokens", "generate_s", "env_s", "truncated_by", "info")
            message["metadata"] = {fact: dict(turn)[fact] for fact in facts}
    replies = [turn["reply"] for turn in record["turns"]]
    names = ("purpose", "env", "task", "category", "split", "step", "group", "sample", "attempt", "max_turns", "stop")
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
        "metadata": {key: dict(record)[key] for key in names},
        "store": {},
        "events": [],
        "attachments": {},
        "started_at": record["started_at"],
        "total_time": record["seconds"],
        **({"error": _error(record["error"])} if record["error"] else {}),
    }


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
    same = ("id", "epoch", "target", "metadata", "scores", "started_at", "total_time")
    last = sample["input"][-1]["content"] if sample["input"] else ""
    return {
        **{name: sample[name] for name in same},
        "input": last[:500],
        "completed": bool(sample["scores"]),
        "message_count": len(sample["messages"]),
        **({"error": sample["error"]["message"]} if "error" in sample else {}),
    }


def _header(summaries: list[dict[str, Any]], name: str, started: str, model: str) -> dict[str, Any]:
    valid = [summary for summary in summaries if summary["scores"]]
    count = len(valid)
    scores = []
    for scorer in ("success", "return"):
        values = [summary["scores"][scorer]["value"] for summary in valid]
        mean = {"name": "mean", "value": sum(values) / count if count else 0.0}
        scores.append({"name": scorer, "scorer": scorer, "scored_samples": count, "metrics": {"mean": mean}})
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
