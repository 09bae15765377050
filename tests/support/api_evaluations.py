"""Evaluations of GuessNumber with a model behind an API."""

import asyncio
import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from tests.support.model_server import ModelServer, Said, binary_search
from verl_agent.evaluation.job import Evaluation, prepare_evaluation
from verl_agent.evaluation.run import play_pending

KINDS = ("openai", "anthropic")


def prepared(folder: Path, api: dict[str, Any], agent: str | dict[str, Any] = "act", **evaluation) -> Evaluation:
    """Prepare an evaluation; `config` replaces whole sections of the recipe."""
    other = evaluation.pop("config", {})
    config = {
        "env": {"name": "guess_number", "hosts": {"where": "inline"}},
        "horizon": {"max_turns": [7]},
        "episode": {"max_tokens_per_turn": 64, **evaluation.pop("episode", {})},
        "agent": agent if isinstance(agent, dict) else {"name": agent},
        "data": {"max_prompt_length": 64, "max_response_length": 4000, **evaluation.pop("data", {})},
        "model": {"api": {"kind": "openai", "name": "fake", "retries": 0, **api}, **evaluation.pop("model", {})},
        "engine": {},
        "evaluation": {"output_dir": str(folder), "tasks": "small_test", "max_tasks": 4, **evaluation},
        **other,
    }
    return prepare_evaluation(OmegaConf.create(config))


def evaluated(folder: Path, server: ModelServer, kind: str = "openai", **settings) -> Evaluation:
    """Play the pending episodes of an evaluation of GuessNumber."""
    url = server.url + ("/v1" if kind == "openai" else "")
    evaluation = prepared(folder, {"kind": kind, "base_url": url, **settings.pop("api", {})}, **settings)
    if evaluation.pending:
        asyncio.run(play_pending(evaluation, Console(quiet=True)))
    return evaluation


def guess_by_call(messages: list[Said]) -> dict[str, Any]:
    """Call the function `act` with the next guess of a binary search."""
    relevant = [one for one in messages if one.role != "assistant" or re.search(r"\d", one.text)]
    return {"name": "act", "arguments": {"action": re.findall(r"\d+", binary_search(relevant))[0]}}
