"""Small llama, and the engine that writes the replies of all running episodes together."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, PreTrainedModel

from verl_agent.study.settings import TinySettings
from verl_agent.study.tiny.words import Words

Result = TypeVar("Result")


def new_model(words: Words, settings: TinySettings, critic: bool = False) -> PreTrainedModel:
    """Return a llama with random weights; its logits are `(B, L, words)`, or `(B, L, 1)` of a critic."""
    config = LlamaConfig(
        vocab_size=len(words.pieces),
        hidden_size=settings.width,
        intermediate_size=3 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=8192,
        num_labels=1,
    )
    return (LlamaForTokenClassification if critic else LlamaForCausalLM)(config).eval()


@dataclass(slots=True)
class Output:
    """Reply of the engine, with the attributes that `EnginePolicy` reads of verl's."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str = "stop"
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Request:
    """Reply that an episode waits for: its tokens so far, and one uniform number for each token."""

    name: str
    ids: list[int]
    limit: int
    luck: Random
    answer: "asyncio.Future[Output]"
    output: Output = field(default_factory=Output)

    @property
    def done(self) -> bool:
        """True if the reply has ended or is full."""
        written = self.output.token_ids
        return len(written) >= self.limit or written[-1:] == [Words.eos_token_id]


class LockstepEngine:
    """Engine in this process, with the interface of `TokenEngine`.

    It waits until every running episode has asked for a reply, and then writes all of them, token by token. Keys and
    values of earlier turns are kept. Each forward pass adds a column for every row; a mask tells the columns that hold
    a token of the row.

    Args:
        model: policy.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._running, self._cache = model, 0, DynamicCache()
        self._waiting: list[Request] = []
        self._read: dict[str, list[int]] = {}
        self._held_BC = torch.zeros(0, 0, dtype=torch.bool)
        self.entropies: list[float] = []
        """Mean entropy of the next token in each forward pass, in nats."""

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

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Output:
        """Return the reply of one episode; see `TokenEngine`. The parameters are `seed` and `max_tokens`."""
        answer: asyncio.Future[Output] = asyncio.get_running_loop().create_future()
        luck = Random(sampling_params["seed"])
        self._waiting.append(Request(request_id, prompt_ids, sampling_params["max_tokens"], luck, answer))
        self._write_if_all_wait()
        return await answer

    def _write_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) == self._running:
            requests, self._waiting = self._waiting, []
            self._write(requests)
            for request in requests:
                request.answer.set_result(request.output)

    @torch.no_grad()
    def _write(self, requests: list[Request]) -> None:
        rows = {name: row for row, name in enumerate(self._read)}
        if any(request.name not in rows for request in requests):  # the first turn, or a retried episode
            self._cache, self._read, rows = DynamicCache(), {}, {}
            self._held_BC = torch.zeros(len(requests), 0, dtype=torch.bool)
        else:
            kept = torch.tensor([rows[request.name] for request in requests])
            self._cache.batch_select_indices(kept)
            self._held_BC = self._held_BC[kept]
        chunks = [self._unread(row, request) for row, request in enumerate(requests)]
        logits_BV = self._forward(chunks, [len(request.ids) for request in requests])
        while True:
            tokens = self._sample(logits_BV, requests)
            if all(request.done for request in requests):
                break
            lengths = [len(request.ids) + len(request.output.token_ids) for request in requests]
            logits_BV = self._forward(
                [[] if one.done else [token] for one, token in zip(requests, tokens, strict=True)], lengths
            )
        self._read = {request.name: request.ids + request.output.token_ids[:-1] for request in requests}

    def _unread(self, row: int, request: Request) -> list[int]:
        """Return the tokens that the cache lacks, and mask the columns of tokens that the episode reads no more."""
        read, ids = self._read.get(request.name, []), request.ids
        same = next((at for at, pair in enumerate(zip(read, ids, strict=False)) if pair[0] != pair[1]), len(read))
        same = min(same, len(ids) - 1)
        self._held_BC[row, self._held_BC[row].nonzero()[same:, 0]] = False
        return ids[same:]

    def _forward(self, chunks: Sequence[Sequence[int]], lengths: Sequence[int]) -> Tensor:
        """Read chunks of tokens that end rows of some lengths, and return the logits after them, `(B, V)`."""
        width = max(map(len, chunks))
        ids_BL = torch.tensor([[Words.pad_id] * (width - len(chunk)) + list(chunk) for chunk in chunks])
        new_BL = torch.arange(width) >= width - torch.tensor([len(chunk) for chunk in chunks])[:, None]
        self._held_BC = torch.cat([self._held_BC, new_BL], 1)
        positions_BL = (torch.tensor(lengths)[:, None] - width + torch.arange(width)).clamp_min(0)
        out = self._model(
            ids_BL,
            attention_mask=self._held_BC.long(),
            position_ids=positions_BL,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].double()

    def _sample(self, logits_BV: Tensor, requests: Sequence[Request]) -> list[int]:
        """Add a token to each reply that has not ended, and return the sampled tokens."""
        log_probs_BV = torch.log_softmax(logits_BV, -1)
        sums_BV = log_probs_BV.exp().cumsum(-1)
        draws = [0.5 if request.done else request.luck.random() for request in requests]
        drawn_B1 = torch.tensor(draws, dtype=torch.float64)[:, None] * sums_BV[:, -1:]
        tokens_B1 = torch.searchsorted(sums_BV, drawn_B1).clamp_max(logits_BV.shape[-1] - 1)
        open_B = torch.tensor([not request.done for request in requests])
        self.entropies.append(float(-(log_probs_BV.exp() * log_probs_BV).sum(-1)[open_B].mean()))
        tokens: list[int] = tokens_B1[:, 0].tolist()
        chosen = log_probs_BV.gather(1, tokens_B1)[:, 0].tolist()
        for request, token, log_prob in zip(requests, tokens, chosen, strict=True):
            if not request.done:
                request.output.token_ids.append(token)
                request.output.log_probs.append(log_prob)
        return tokens
