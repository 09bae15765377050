"""verl's vLLM rollout with a weight transfer that is separate for every run, on every device."""

import argparse
import asyncio
import logging
import os
import time
from typing import Any

import ray
from typing_extensions import override
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout import ServerAdapter
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.exits import report_kills
from verl_agent.platform.memory import trim_heap
from verl_agent.platform.weight_transfer import run_scoped_socket

ENGINE_POLL_S = 5.0
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Executor of vLLM without a process for each worker. On a CPU, vLLM replaces its short name `uni` by `mp`."""
UNSEEN: dict[str, Any] = {"detokenize": False}
"""Sampling parameters that leave out what verl does not read: the text of a reply."""
logger = logging.getLogger(__name__)


class RunScopedServerAdapter(ServerAdapter):
    """Trainer's side of the transfer: sends the weights to the run's own socket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.zmq_handle: str = run_scoped_socket(self.zmq_handle)


class RunScopedHttpServer(vLLMHttpServer):
    """vLLM's server, whose workers receive the weights through this package's worker extension.

    It ends when its engine has died, as verl's headless server does (verl 0.9.1, vllm_async_server.py:535). Otherwise
    an update of the weights would wait for the engine forever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._paused_s: dict[str, float] = {}

    @override
    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> TokenOutput:
        """`extra_fields["paused_s"]` is the time that the request waited for an update."""
        try:
            output = await super().generate(prompt_ids, UNSEEN | sampling_params, request_id, *args, **kwargs)
        finally:
            paused_s = self._paused_s.pop(request_id, 0.0)
        output.extra_fields["paused_s"] = paused_s
        return output

    async def _park_until_admitted(self, request_id: str) -> TokenOutput | None:
        began = time.monotonic()
        rejected = await super()._park_until_admitted(request_id)
        self._paused_s[request_id] = time.monotonic() - began
        return rejected

    @override
    async def run_server(self, args: argparse.Namespace) -> None:
        await super().run_server(args)
        manager = self.engine.engine_core.resources.engine_manager
        report_kills(getattr(manager, "processes", ()))  # another manager's are actors of Ray
        self._engine_watch = asyncio.create_task(self._exit_without_engine())

    @override
    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        """On a CPU the model is in the process of its engine instead of a further one."""
        super()._preprocess_engine_kwargs(engine_kwargs)
        if use_cpu_device() and self.config.tensor_model_parallel_size == 1:
            engine_kwargs.setdefault("distributed_executor_backend", ONE_PROCESS)

    @override
    async def sleep(self) -> None:
        """On a CPU an idle engine leaves the memory of its KV cache to the update."""
        await super().sleep()
        if use_cpu_device() and self.node_rank == 0 and await self.engine.reset_prefix_cache():
            await self.engine.collective_rpc("release_cache")
            trim_heap()

    async def _exit_without_engine(self) -> None:
        while not self.engine.errored:
            await asyncio.sleep(ENGINE_POLL_S)
        logger.error("the process of the vLLM engine has ended, so its server ends too")
        os._exit(1)

    def _get_worker_extension_cls(self) -> str:
        name = "CpuWorkerExtension" if use_cpu_device() else "RunScopedWorkerExtension"
        return f"verl_agent.platform.worker_extension.{name}"


class RunScopedReplica(vLLMReplica):
    """Replica that starts `RunScopedHttpServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(RunScopedHttpServer)
