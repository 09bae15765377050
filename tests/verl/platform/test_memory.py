"""Tests that memory goes back to the operating system, and that packed weights can be written again."""

import asyncio
from types import SimpleNamespace

import psutil
import pytest
import torch

from verl_agent.platform.memory import release_pages, trim_heap

MIB = 1 << 20
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
MP = {"distributed_executor_backend": "mp"}


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_released_pages_leave_the_tensor_usable():
    tensor = torch.ones(64 * MIB, dtype=torch.uint8)
    before = resident()
    release_pages(tensor[:MIB])
    assert before - resident() > 60 * MIB
    assert int(tensor.max()) <= 1 and int(tensor[MIB : 2 * MIB].max()) == 0
    tensor.fill_(3)
    assert int(tensor.min()) == 3


def test_a_tensor_below_a_page_keeps_its_values():
    tensor = torch.arange(8)
    release_pages(tensor)
    release_pages(torch.empty(0))
    assert tensor.tolist() == list(range(8))


def test_trimming_frees_what_the_allocator_keeps():
    kept = [torch.ones(MIB // 64, dtype=torch.uint8) for _ in range(64 * 100)]
    top = torch.ones(MIB // 64, dtype=torch.uint8)  # keeps the heap from shrinking by itself
    before = resident()
    del kept
    trim_heap()
    assert before - resident() > 50 * MIB
    assert int(top.sum()) == MIB // 64


def test_packed_weights_free_their_memory_and_are_packed_again_after_an_update():
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    import verl_agent.platform.worker_extension  # noqa: F401 - applies the patch

    current_platform.import_kernels()
    layer = torch.nn.Linear(512, 512, bias=False, dtype=torch.bfloat16)
    try:
        _custom_ops.create_onednn_mm(layer.weight.t(), 32)
    except RuntimeError as error:  # without AVX-512; vLLM then multiplies by torch and packs nothing
        pytest.skip(f"oneDNN multiplies no bfloat16 on this processor: {error}")
    weight, original = layer.weight, layer.weight.detach().clone()
    inputs = torch.randn(4, 512, dtype=torch.bfloat16)
    for factor in (1.0, -2.0):
        weight.data.copy_(original * factor)
        utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
        assert layer.weight is weight
        assert float((weight == 0).float().mean()) > 0.9
        expected = inputs.float() @ (original.float().T * factor)
        assert torch.allclose(layer.cpu_linear(inputs, layer.weight, None).float(), expected, atol=0.05, rtol=0.05)


class Engine:
    """Engine of a server; `idle` is False while a request holds blocks of the cache."""

    def __init__(self, idle: bool) -> None:
        self.idle = idle
        self.called: list[str] = []

    async def reset_prefix_cache(self) -> bool:
        return self.idle

    async def collective_rpc(self, method: str) -> None:
        self.called.append(method)


@pytest.mark.parametrize(("ranks", "given", "expected"), [(1, {}, ONE_PROCESS), (2, {}, None), (1, MP, "mp")])
def test_an_engine_of_one_rank_has_no_further_process_for_its_model(ranks, given, expected):
    from verl_agent.platform.vllm_rollout import RunScopedHttpServer

    class Server(RunScopedHttpServer):
        def __init__(self) -> None:
            self.config = SimpleNamespace(tensor_model_parallel_size=ranks)

    options = dict(given)
    Server()._preprocess_engine_kwargs(options)
    assert options.get("distributed_executor_backend") == expected


@pytest.mark.parametrize(("idle", "called"), [(True, ["release_cache"]), (False, [])])
def test_only_an_idle_engine_releases_its_cache_during_the_update(idle, called):
    from verl_agent.platform.vllm_rollout import RunScopedHttpServer

    class Server(RunScopedHttpServer):
        def __init__(self, engine: Engine) -> None:
            self.engine, self.node_rank, self.config = engine, 0, SimpleNamespace(free_cache_engine=False)

    engine = Engine(idle)
    asyncio.run(Server(engine).sleep())
    assert engine.called == called


def test_a_released_cache_is_empty_and_usable():
    from verl_agent.platform.worker_extension import CpuWorkerExtension

    class Worker(CpuWorkerExtension):
        model_runner = SimpleNamespace(kv_caches=[torch.ones(2, 4 * MIB), [torch.ones(4 * MIB), torch.ones(4 * MIB)]])

    worker, before = Worker(), resident()
    worker.release_cache()
    assert before - resident() > 60 * MIB
    worker.model_runner.kv_caches[0][:] = 1


def test_the_gradient_of_an_update_is_freed(tmp_path):
    from tests.support.engines import batch_of, new_engine, policy_loss
    from tests.support.models import write_byte_model
    from verl_agent.platform.cpu_engine import CpuLanguageEngine
    from verl_agent.rollout.tokens import Segment

    model = write_byte_model(tmp_path / "model", ["Goal: craft"], 300, hidden_size=32, num_hidden_layers=1)
    engine = new_engine(CpuLanguageEngine, model)
    before = {name: value.clone() for name, value in engine.module.state_dict().items()}
    with engine.train_mode():
        output = engine.train_batch(
            batch_of([Segment([5, 6, 7], [8, 9, 10, 2], [1] * 4, [0.0] * 4)] * 4), policy_loss()
        )
    assert output["metrics"]["grad_norm"] > 0
    assert all(parameter.grad is None for parameter in engine.module.parameters())
    assert any(not torch.equal(before[name], value) for name, value in engine.module.state_dict().items())
