"""verl's vLLM rollout with a weight transfer that is separate for every run, on every device."""

import argparse
import asyncio
import logging
import os
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout import ServerAdapter
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.weight_transfer import run_scoped_socket

ENGINE_POLL_S = 5.0
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

    async def run_server(self, args: argparse.Namespace) -> None:
        """See `vLLMHttpServer`."""
        await super().run_server(args)
        self._engine_watch = asyncio.create_task(self._exit_without_engine())

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
