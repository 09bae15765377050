"""Tests of asynchronous rollout without Ray: bound of staleness, versions of tokens, and replies in parts."""

import asyncio
import itertools
import random
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from tests.support.partial import sampler
from verl_agent.training.partial import ResumingClient
from verl_agent.training.turn_metrics import staleness_metrics


@pytest.mark.parametrize("warmup", [1, 2, 4])
@pytest.mark.parametrize("threshold", [2, 3])
def test_every_group_is_trained_on_once_and_within_the_bound(warmup, threshold):
    """Batches of 4 groups, `warmup` of them ahead, of which some take eight steps unless a step waits for them."""
    batch, steps, draw = 4, 60, random.Random(warmup)
    numbers, trained, left = itertools.count(), [], {}
    waiting = sampler(threshold)

    def dispatch(step: int, count: int) -> None:
        for _ in range(count):
            left[f"{step:07d}-{next(numbers):09d}"] = draw.choice([0, 0, 1, 2, 8])

    dispatch(1, warmup)
    for step in range(1, steps + 1):
        dispatch(step, batch)
        while True:
            steps_of = {group: int(group[:7]) for group in left}
            waiting.prompt_global_steps["train"] = steps_of
            waiting.finished_keys["train"] = {group for group, ticks in left.items() if not ticks}
            waiting.running_keys["train"] = {group for group, ticks in left.items() if ticks}
            finished = waiting.finished_keys["train"]
            if waiting._has_enough_samples(step, "train", batch, finished):
                break
            left.update({group: max(0, ticks - 1) for group, ticks in left.items()})
        chosen, _, _ = waiting._select_prompt_uids("train", finished, batch)
        trained += [(group, step) for group in chosen]
        for group in chosen:
            del left[group]
    assert len({group for group, _ in trained}) == len(trained) == steps * batch
    staleness = [step - int(group[:7]) for group, step in trained]
    assert max(staleness) == threshold - 1 and min(staleness) == 0


class Engine:
    """Server of an engine whose requests an update interrupts after two tokens; `generate.remote` as in Ray."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.generate = SimpleNamespace(remote=self.answer)

    async def answer(self, **request: Any) -> TokenOutput:
        self.requests.append(deepcopy(request))  # verl changes the sampling parameters afterwards
        first = len(self.requests) == 1
        return TokenOutput(
            token_ids=[5, 6] if first else [7, 8, 9],
            log_probs=[-0.5, -0.6] if first else [-0.7, -0.8, -0.9],
            stop_reason="aborted" if first else "completed",
            extra_fields={"global_steps": 4 if first else 5, "paused_s": 0.0 if first else 2.5},
        )


class Client(ResumingClient):
    """Client of one engine, without Ray's load balancer."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(config=OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}}))
        self.engine = engine

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return "server", self.engine

    def _release_server(self, server_id: str, **extra: Any) -> None:
        return None


def test_a_reply_cut_by_an_update_keeps_log_prob_and_version_of_each_token():
    engine = Engine()
    output = asyncio.run(Client(engine).generate("r", prompt_ids=[1, 2], sampling_params={"max_tokens": 9, "seed": 11}))
    assert (output.token_ids, output.log_probs) == ([5, 6, 7, 8, 9], [-0.5, -0.6, -0.7, -0.8, -0.9])
    assert output.extra_fields["versions"] == [(4, 2), (5, 3)]
    assert 3.4 < output.extra_fields["paused_s"] < 10  # verl waits a second before it asks again
    first, second = engine.requests
    assert second["prompt_ids"] == [1, 2, 5, 6] and second["sampling_params"]["max_tokens"] == 7
    assert first["sampling_params"]["seed"] == second["sampling_params"]["seed"] == 11


def test_engine_and_trainer_are_compared_by_the_age_of_the_weights():
    """Both agree on the present weights; two updates have doubled the probability of the older tokens."""
    versions = [torch.tensor([3, -1, 5, 5]), torch.tensor([5, 5])]
    engine = [torch.tensor([-2.0, 0.0, -1.0, -1.0]), torch.tensor([-0.5, -0.5])]
    trainer_ = [engine[0] + torch.tensor([0.6931, 9.0, 0.0, 0.0]), engine[1]]
    metrics = staleness_metrics(["a_0_0", "a_1_0"], versions, 5, (trainer_, engine))
    assert metrics["staleness/mean"] == pytest.approx(2 / 5)
    assert (metrics["staleness/max"], metrics["staleness/mixed_episodes"]) == (2.0, 0.5)
    assert metrics["staleness/0/tokens"] == pytest.approx(0.8) and metrics["staleness/0/rollout_kl"] == 0
    assert metrics["staleness/2/rollout_kl"] == pytest.approx(1 - 0.6931, abs=1e-3)
    assert metrics["staleness/2/probs_diff"] == pytest.approx(0.1353, abs=1e-3)
    assert "staleness/1/tokens" not in metrics
    assert "staleness/0/rollout_kl" not in staleness_metrics(["a_0_0"], versions[:1], 5, None)
