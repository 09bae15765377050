"""Policies of seats that are not trained: frozen checkpoints, in this process, and models behind an API."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from verl_agent.config.settings import RunEnv
from verl_agent.envs.arena import SEATS, Arena, SeatPlayer
from verl_agent.envs.model_api.client import ApiClient
from verl_agent.envs.model_api.reply_log import FILE, ReplyLog
from verl_agent.envs.model_api.settings import ApiSettings
from verl_agent.errors import ConfigError, EnvError
from verl_agent.evaluation.api_policy import ApiPolicy
from verl_agent.models.hf import load_tokenizer
from verl_agent.models.resolve import resolve_model
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.engine_policy import EnginePolicy
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.matches import HeldSeat, Match
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens
from verl_agent.training.seats import PlaySeat
from verl_agent.types import TaskItem


@dataclass(slots=True)
class FrozenReply:
    """Reply of a frozen model, with the attributes that `EnginePolicy` reads of verl's."""

    token_ids: list[int]
    stop_reason: str
    log_probs: None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class FrozenModel:
    """Checkpoint that plays a seat: a `TokenEngine` in this process, for small models, at temperature 1.

    A large model is better served by `verl-agent serve` or vLLM, and named as `api:MODEL@URL`.

    Args:
        path: see `resolve_model`.
        template_options: keyword arguments of the chat template, those of the model that is trained.
    """

    def __init__(self, path: str, template_options: Mapping[str, Any]) -> None:
        folder = resolve_model(path, key=SEATS)
        self.tokenizer = load_tokenizer(folder, SEATS)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        self.builder = choose_builder(self.tokenizer, self._model.config.model_type, template_options)
        self._lock = asyncio.Lock()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Mapping[str, Any]
    ) -> FrozenReply:
        """Return a reply; see `TokenEngine`. The parameters are `seed` and `max_tokens`."""
        async with self._lock:
            return await asyncio.to_thread(
                self._write, prompt_ids, sampling_params["max_tokens"], Random(sampling_params.get("seed"))
            )

    @torch.no_grad()
    def _write(self, prompt_ids: list[int], most: int, luck: Random) -> FrozenReply:
        ids, unread, past = list[int](), prompt_ids, None
        while len(ids) < most and ids[-1:] != [self.tokenizer.eos_token_id]:
            out = self._model(torch.tensor([unread]), past_key_values=past, use_cache=True, logits_to_keep=1)
            sums_V = out.logits[0, -1].double().softmax(-1).cumsum(-1)
            drawn = torch.searchsorted(sums_V, luck.random() * sums_V[-1])
            unread, past = [min(int(drawn), len(sums_V) - 1)], out.past_key_values
            ids += unread
        return FrozenReply(ids, "stop" if ids[-1] == self.tokenizer.eos_token_id else "length")


def frozen_model(path: str, template_options: Mapping[str, Any]) -> FrozenModel:
    """Return the model of a checkpoint, which is loaded once a process, although all matches ask at once."""
    with _loading:
        if path not in _loaded:
            _loaded[path] = FrozenModel(path, template_options)
        return _loaded[path]


_loaded, _loading = dict[str, FrozenModel](), Lock()


class SeatPolicies:
    """Policies of the seats of one arena that are not trained; they are prompted like the one that is."""

    def __init__(self, arena: Arena, run_env: RunEnv, budget: TokenBudget, template_options: Mapping[str, Any]) -> None:
        self._arena, self._run_env, self._budget = arena, run_env, budget
        self._template_options = template_options
        self._clients: dict[str, ApiClient] = {}
        self._logs = TemporaryDirectory()

    def player(self, limits: EpisodeLimits, seed: EpisodeSeed) -> PlaySeat:
        """Return the function that plays a seat with these limits; `seed` is that of the match."""

        async def play_seat(item: TaskItem, match: Match, seat: int) -> None:
            own_seed = replace(seed, env=f"{seed.env}, {self._arena.seat_names[seat]}")
            policy = await self._policy(self._arena.players[seat], own_seed)
            episode = await play_episode(item, HeldSeat(match, seat), self._run_env.new_agent(), policy, limits)
            if not episode.valid:
                raise EnvError(episode.error)

        return play_seat

    async def _policy(self, player: SeatPlayer, seed: EpisodeSeed) -> Policy:
        agent = self._run_env.new_agent()
        if player.kind == "frozen":
            engine = await asyncio.to_thread(frozen_model, player.name, self._template_options)
            end = engine.tokenizer.eos_token_id
            tokens = EpisodeTokens(engine.builder, end, agent.tools, agent.marks)
            return EnginePolicy(engine, engine.tokenizer, tokens, self._budget, {}, frozenset({end}), seed)
        if player.name not in self._clients:
            self._clients[player.name] = client = new_client(
                player.name, Path(self._logs.name) / str(len(self._clients))
            )
            await client.__aenter__()  # open as long as the worker process
        return ApiPolicy(
            self._clients[player.name],
            self._budget,
            {"temperature": 1.0},
            seed,
            tools=agent.tools,
            parallel=agent.parallel,
        )


def new_client(name: str, folder: Path) -> ApiClient:
    """Return the client of `MODEL@URL`, or of OpenAI's own server for `MODEL`; it keeps its replies in a folder."""
    folder.mkdir()
    model, _, url = name.partition("@")
    try:
        settings = ApiSettings(kind="openai", name=model, base_url=url or None)
    except ConfigError as error:
        raise ConfigError(f"{SEATS}: api:{name} is not allowed: {error}") from error
    return ApiClient(settings, ReplyLog(folder / FILE))
