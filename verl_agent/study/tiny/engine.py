"""Engine that writes the replies of all running episodes together."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from verl_agent.study.tiny.model import Decoder
from verl_agent.study.tiny.words import Words

Result = TypeVar("Result")
KEPT = 0.75
"""Share of rows below which the cache drops those of episodes that have ended."""


@dataclass(slots=True)
class TinyReply:
    """Reply of the engine, with the attributes that `EnginePolicy` reads of verl's."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str = "stop"
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ReplyRequest:
    """Reply that an episode waits for: its tokens so far, and one uniform number for each token."""

    name: str
    ids: list[int]
    limit: int
    luck: Random
    answer: "asyncio.Future[TinyReply]"
    output: TinyReply = field(default_factory=TinyReply)

    @property
    def done(self) -> bool:
        """True if the reply has ended or is full."""
        written = self.output.token_ids
        return len(written) >= self.limit or written[-1:] == [Words.eos_token_id]


class LockstepEngine:
    """Engine in this process, with the interface of `TokenEngine`.

    It waits until every running episode has asked for a reply, and then writes all of them, token by token. Keys and
    values of earlier turns are kept.

    Args:
        model: policy.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._running = model, 0
        self._decoder: Decoder | None = None
        self._waiting: list[ReplyRequest] = []
        self._read: dict[str, list[int]] = {}
        self.entropies: list[tuple[float, int]] = []
        """Sum of the entropies of the next tokens of each forward pass, in nats, and their number."""

    async def run(self, episodes: Sequence[Callable[[], Coroutine[Any, Any, Result]]]) -> list[Result]:
        """Run episodes together, and return their results."""
        self._running = len(episodes)
        return await asyncio.gather(*(self._counted(episode) for episode in episodes))

    async def _counted(self, episode: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        try:
            return await episode()
        finally:
            self._running -= 1
            self._write_if_all_wait()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the other episodes go on while the block runs, in which one of them waits for the others."""
        self._running -= 1
        self._write_if_all_wait()
        try:
            yield
        finally:
            self._running += 1

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TinyReply:
        """Return the reply of one episode; see `TokenEngine`. The parameters are `seed` and `max_tokens`."""
        answer: asyncio.Future[TinyReply] = asyncio.get_running_loop().create_future()
        luck = Random(sampling_params["seed"])
        self._waiting.append(ReplyRequest(request_id, prompt_ids, sampling_params["max_tokens"], luck, answer))
        self._write_if_all_wait()
        return await answer

    def _write_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) == self._running:
            requests, self._waiting = self._waiting, []
            self._write(requests)
            for request in requests:
                request.answer.set_result(request.output)

    @torch.inference_mode()
    def _write(self, requests: list[ReplyRequest]) -> None:
        if self._decoder is None or any(one.name not in self._read for one in requests):  # first turn, retried episode
            self._decoder, self._read = Decoder(self._model, len(requests)), {one.name: [] for one in requests}
        rows = {name: row for row, name in enumerate(self._read)}
        if len(requests) < KEPT * len(rows):
            self._decoder.keep([rows[request.name] for request in requests])
            self._read = {request.name: self._read[request.name] for request in requests}
            rows = {name: row for row, name in enumerate(self._read)}
        starts = [shared(self._read[request.name], request.ids) for request in requests]
        chunks = [request.ids[start:] for start, request in zip(starts, requests, strict=True)]
        writing = requests
        while True:
            self._sample(self._decoder.read([rows[one.name] for one in writing], chunks, starts), writing)
            if not (writing := [request for request in writing if not request.done]):
                break
            chunks = [request.output.token_ids[-1:] for request in writing]
            starts = [len(request.ids) + len(request.output.token_ids) - 1 for request in writing]
        self._read |= {request.name: request.ids + request.output.token_ids[:-1] for request in requests}

    def _sample(self, logits_BV: Tensor, requests: Sequence[ReplyRequest]) -> None:
        """Add a token to each reply."""
        log_probs_BV = torch.log_softmax(logits_BV.double(), -1)
        probs_BV = log_probs_BV.exp()
        sums_BV = probs_BV.cumsum(-1)
        draws_B1 = torch.tensor([[request.luck.random()] for request in requests], dtype=torch.float64)
        tokens_B1 = torch.searchsorted(sums_BV, draws_B1 * sums_BV[:, -1:]).clamp_max(logits_BV.shape[-1] - 1)
        self.entropies.append((-float((probs_BV * log_probs_BV).sum()), len(requests)))
        chosen = log_probs_BV.gather(1, tokens_B1)[:, 0].tolist()
        for request, token, log_prob in zip(requests, tokens_B1[:, 0].tolist(), chosen, strict=True):
            request.output.token_ids.append(token)
            request.output.log_probs.append(log_prob)

    @property
    def entropy(self) -> float:
        """Mean entropy of a token, in nats."""
        return sum(total for total, _ in self.entropies) / max(1, sum(count for _, count in self.entropies))


def shared(read: Sequence[int], ids: Sequence[int]) -> int:
    """Return the number of tokens that the cache has of a row, at least one less than the row."""
    same = next((at for at, pair in enumerate(zip(read, ids, strict=False)) if pair[0] != pair[1]), len(read))
    return min(same, len(ids) - 1)
