"""verl's SGLang server in a Ray actor on the CPU, with a client and the trainer's side of its weight transfer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import yaml
from torch import Tensor
from typing_extensions import override
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode

import verl_agent.config
from tests.support.engines import one_rank
from verl_agent.platform.sglang.rollout import CpuServerAdapter, FullContextServer
from verl_agent.rollout.engine_policy import TokenEngine

NAME = "sglang_server_0_0"
"""Name of the actor by which the trainer finds its server."""


@dataclass
class Server(TokenEngine):
    """Running server; a `TokenEngine`.

    Attributes:
        actor: handle of the actor.
        config: section `rollout` of the server.
        model: model of the server.
        prompts: ids that each request read.
        written: ids that the engine wrote for each request.
        log_probs: log-probs of these ids.
    """

    actor: Any
    config: RolloutConfig
    model: HFModelConfig

    def __post_init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.written: list[list[int]] = []
        self.log_probs: list[list[float]] = []

    @override
    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        sampling = {**sampling_params, "logprobs": True}
        output = await self.actor.generate.remote(
            prompt_ids=prompt_ids, sampling_params=sampling, request_id=uuid4().hex
        )
        self.prompts.append(prompt_ids)
        self.written.append(list(output.token_ids))
        self.log_probs.append(list(output.log_probs))
        return output

    async def update_weights(self, weights: dict[str, Tensor]) -> None:
        """Send weights as a trainer with one rank does."""
        one_rank()
        os.environ.update(RANK="0", RAY_LOCAL_WORLD_SIZE="1")
        adapter = CpuServerAdapter(self.config, self.model, device_mesh=None)
        await adapter.update_weights(iter(weights.items()), global_steps=5)


@contextmanager
def sglang_server(model: Path, context: int) -> Iterator[Server]:
    """Run a server in float32."""
    settings = yaml.safe_load(Path(verl_agent.config.__file__).with_name("cpu.yaml").read_text())
    given = settings["actor_rollout_ref"]["rollout"]["engine_kwargs"]
    config = RolloutConfig(
        name="sglang",
        dtype="float32",
        tensor_model_parallel_size=1,
        free_cache_engine=False,
        load_format="auto",
        max_num_seqs=16,
        max_model_len=context,
        prompt_length=context // 2,
        response_length=context // 2,
        engine_kwargs={"sglang": {**given["sglang"], "max_total_tokens": 16 * context}},
    )
    hf_model = HFModelConfig(path=str(model), override_config={"attn_implementation": "sdpa"})
    variables = {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "2"}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    try:
        actor = (
            ray.remote(FullContextServer)
            .options(name=NAME, max_concurrency=16)
            .remote(
                config=config,
                model_config=hf_model,
                rollout_mode=RolloutMode.HYBRID,
                workers=[],
                replica_rank=0,
                node_rank=0,
                nnodes=1,
                cuda_visible_devices="",
                base_gpu_id=0,
            )
        )
        ray.get(actor.launch_server.remote(), timeout=600)
        yield Server(actor, config, hf_model)
    finally:
        ray.shutdown()
