"""verl's SGLang rollout, whose server allows the whole context, and which runs on a CPU too."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import torch.multiprocessing
from torch.multiprocessing import reductions
from typing_extensions import override
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica
from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter

from verl_agent.platform.sglang import LONGER_CONTEXT, SPARE_TOKENS
from verl_agent.platform.sglang.seeded_sampling import seed_sglang


class FullContextServer(SGLangHttpServer):
    """SGLang's server, in which prompt and reply may fill the context, as with vLLM, and requests have seeds.

    verl 0.9.1, async_sglang_server.py:588 allows `max_model_len - len(prompt_ids) - 1` tokens, one less than its vLLM
    server.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        seed_sglang()
        os.environ[LONGER_CONTEXT] = "1"
        given = self.config.engine_kwargs.get("sglang") or {}
        self.config.engine_kwargs["sglang"] = {"context_length": self.config.max_model_len + SPARE_TOKENS, **given}
        self.config.max_model_len += 1


class FullContextReplica(SGLangReplica):
    """Replica that starts `FullContextServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(FullContextServer)


class CpuServerAdapter(ServerAdapter):
    """Trainer's side of the weight transfer on a CPU, through files in shared memory."""

    @override
    async def update_weights(self, *args: Any, **kwargs: Any) -> None:
        with shared_files():
            await super().update_weights(*args, **kwargs)


@contextmanager
def shared_files() -> Iterator[None]:
    """Share tensors with other processes by the name of a file instead of an open file.

    Only a process that this one started by multiprocessing can receive an open file, and another one starts the engine.
    SGLang 0.5.12, utils/patch_torch.py:72 also replaces the device of each tensor by its UUID, which a CPU tensor
    lacks. It does so once, so a mark that it has done so keeps torch's functions.
    """
    if not hasattr(reductions, "_reduce_tensor_original"):
        reductions._reduce_tensor_original = reductions.reduce_tensor
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        yield
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
