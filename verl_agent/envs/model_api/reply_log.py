"""File with every reply of an API, so that an interrupted evaluation resumes inside its episodes."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from verl_agent.envs.model_api.chat import ApiReply, ChatRequest
from verl_agent.errors import ConfigError
from verl_agent.json_lines import REPLIES, json_lines, remove_unfinished_line

FILE = REPLIES
"""Name of the file in the folder of the evaluation."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all replies of an evaluation.

    Attributes:
        lost: number of requests that may have been charged without a reply: timeouts, broken answers, and requests in
            flight when the evaluation was killed.
        input_tokens: tokens read, over replies with a usage; None if that is no reply.
        output_tokens: tokens written, over replies with a usage; None if that is no reply.
        cost_usd: cost of the replies whose cost is known; None if that is no reply.
        unknown_costs: number of replies and lost requests whose cost is unknown.
        dropped: settings that the model refused, in alphabetical order.
        models: names of the models that answered, as the server gives them, in alphabetical order.
        finishes: number of replies by finish reason, as the server gives it.
    """

    replies: int
    lost: int
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    unknown_costs: int
    dropped: Sequence[str]
    models: Sequence[str]
    finishes: Mapping[str, int]


def request_key(source: str, request: ChatRequest, position: int) -> str:
    """Return the key of a reply: a hash of the request and of its position in the evaluation.

    Args:
        source: server and model that are asked, see `ApiSettings.source`.
        position: number of the turn's position, which differs between samples and attempts of equal content.
    """
    content = json.dumps([source, asdict(request), position], sort_keys=True, default=str)
    return sha256(content.encode()).hexdigest()[:32]


class ReplyLog:
    """Replies by key, and the money that requests have cost. Each line is on disk before the method returns.

    Args:
        path: file to append to; only one process may write it.
        others: files of other processes, which are read once.
    """

    def __init__(self, path: Path, others: Iterable[Path] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished_line(path)
        self._answers: dict[str, ApiReply] = {}
        self._begun: set[str] = set()
        self.spent_usd = 0.0
        """US dollars charged by earlier starts. A request that they sent and did not settle costs what it reserved."""
        for one in (*others, path):
            self._read(one)
        self._file = path.open("a", encoding="utf-8")

    def _read(self, path: Path) -> None:
        open_usd: dict[str, float] = {}
        for line in _lines(path):
            key = line["key"]
            if "reserved_usd" in line:
                self.spent_usd += open_usd.pop(key, 0.0)  # a start before the last one was killed in this request
                open_usd[key] = line["reserved_usd"]
                continue
            open_usd.pop(key, None)
            self.spent_usd += line["charged_usd"]
            if line["answer"] is not None:
                self._answers[key] = ApiReply.from_json(line["answer"])
        self.spent_usd += sum(open_usd.values())

    @property
    def dropped(self) -> set[str]:
        """Settings that earlier requests left out, because the model refused them."""
        return {name for answer in self._answers.values() for name in answer.usage.dropped}

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> ApiReply | None:
        """Return the reply to an equal request; None without one."""
        return self._answers.get(key)

    def begin(self, key: str, reserved_usd: float) -> None:
        """Record that a request is being sent, if it may cost something."""
        if reserved_usd:
            self._begun.add(key)
            self._write({"key": key, "reserved_usd": reserved_usd})

    def end(self, key: str, charged_usd: float, answer: ApiReply | None = None, lost: bool = False) -> None:
        """Record the outcome of a request, if it changes anything.

        Args:
            charged_usd: cost of the request, or what was reserved if its cost is not known.
            lost: True if the server may have charged the request without a reply.
        """
        if answer is not None:
            self._answers[key] = answer
        if answer is not None or lost or key in self._begun:
            value = None if answer is None else answer.to_json()
            self._write({"key": key, "charged_usd": charged_usd, "lost": lost, "answer": value})
        self._begun.discard(key)

    def close(self) -> None:
        """Close the file. May be called more than once."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def totals(path: Path) -> Totals:
    """Return the sums over the replies in a log; it need not exist."""
    lines, lost = list[dict[str, Any]](), 0
    in_flight: set[str] = set()
    for line in _lines(path):
        if "answer" in line:
            lines.append(line)
            lost += line["lost"]
            in_flight.discard(line["key"])
        else:
            lost += line["key"] in in_flight  # its start was killed, and the next one sent it again
            in_flight.add(line["key"])
    lost += len(in_flight)
    usages = [line["answer"]["usage"] for line in lines if line["answer"] is not None]
    costs = [usage["cost_usd"] for usage in usages if usage["cost_usd"] is not None]
    finishes = Counter(finish for usage in usages if (finish := usage.get("finish")))
    return Totals(
        replies=len(usages),
        lost=lost,
        input_tokens=_sum(usages, "input_tokens"),
        output_tokens=_sum(usages, "output_tokens"),
        cost_usd=sum(costs) if costs else None,
        unknown_costs=len(usages) - len(costs) + lost,
        dropped=sorted({name for usage in usages for name in usage["dropped"]}),
        models=sorted({usage["model"] for usage in usages}),
        finishes=dict(finishes.most_common()),
    )


def _sum(usages: Sequence[Mapping[str, Any]], name: str) -> int | None:
    known = [usage[name] for usage in usages if usage[name] is not None]
    return sum(known) if known else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the decoded lines; an unfinished last line is skipped.

    Raises:
        ConfigError: a line is not JSON, or no reply.
    """
    if not path.is_file():
        return
    for number, line in json_lines(path):
        if not isinstance(line, dict) or "key" not in line:
            raise ConfigError(f"{path}:{number}: no reply of an API. Remove the line to read the rest.")
        yield line
