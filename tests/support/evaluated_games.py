"""Evaluations of GuessNumber by policies of plain Python that differ in cost and success."""

import asyncio
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.evaluation.run import play_pending, report_results
from verl_agent.types import Message, Reply, Usage


def cheap(messages: Sequence[Message]) -> Reply:
    """Always guess 3, for a tenth of a cent."""
    return Reply("Action: 3", tokens=4, usage=Usage(cost_usd=0.001))


def expensive(messages: Sequence[Message]) -> Reply:
    """Guess upward from 1, for a cent."""
    return Reply(f"Action: {len(messages) // 2}", tokens=4, usage=Usage(cost_usd=0.01))


def dominated(messages: Sequence[Message]) -> Reply:
    """Always guess 0, for two cents."""
    return Reply("Action: 0", tokens=4, usage=Usage(cost_usd=0.02))


POLICIES = ("cheap", "expensive", "dominated", "uncounted")


def uncounted(messages: Sequence[Message]) -> Reply:
    """Always guess 3; the server counts the tokens of the first reply only."""
    return Reply("Action: 3", tokens=4 if len(messages) == 1 else 0, usage=Usage())


def recipe(folder: Path, model: str = "oracle", turns: int = 3, **evaluation: Any) -> DictConfig:
    """Return an evaluation of GuessNumber into a folder, as Hydra composes it."""
    return OmegaConf.create(
        {
            "env": {"name": "guess_number", "hosts": {"where": "inline"}, "options": {}},
            "horizon": {"max_turns": [turns]},
            "episode": {"max_tokens_per_turn": 8},
            "agent": {"name": "act"},
            "data": {"max_prompt_length": 64, "max_response_length": 64},
            "model": {"path": model},
            "engine": {},
            "evaluation": {"output_dir": str(folder), "tasks": "small_test", **evaluation},
        }
    )


def evaluated(folder: Path, model: str, turns: int = 4, agent: Mapping[str, Any] | None = None, **evaluation) -> Path:
    """Evaluate a policy on the 20 small test tasks of GuessNumber, in two categories."""
    path = f"python:{__name__}:{model}" if model in POLICIES else model
    config = recipe(folder, path, turns, **evaluation)
    config.agent = agent or config.agent
    prepared = prepare_evaluation(config)
    asyncio.run(play_pending(prepared, Console(quiet=True)))
    report_results(prepared, Console(file=StringIO()))
    return folder
