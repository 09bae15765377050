"""Free memory and disk, and the need of a run."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import largest_weight, parameters
from verl_agent.system.operators import check_together, first_operators_error
from verl_agent.system.resources import (
    PASS_TOKENS,
    Memory,
    activations_gb,
    checkpoint_gb,
    machine_memory,
    memory_needed,
    most_checkpoints,
    parse_memory,
    require_disk,
    require_memory,
    require_temporary_space,
)
from verl_agent.training.preflight.machine import files_gb

GIB = 1024**3
MEASURED = 135_000_000


def meminfo(total_gib: int, free_gib: int) -> str:
    return f"MemTotal:  {total_gib * 1024**2} kB\nMemFree:  1 kB\nMemAvailable:  {free_gib * 1024**2} kB\n"


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        ("", "", Memory(64 * GIB, 60 * GIB)),
        ("max\n", "5\n", Memory(64 * GIB, 60 * GIB)),
        (str(2**63 - 4096), "5", Memory(64 * GIB, 60 * GIB)),
        (f"{16 * GIB}\n", "", Memory(16 * GIB, 16 * GIB, limited=True)),
        (f"{16 * GIB}\n", f"{12 * GIB}\n", Memory(16 * GIB, 4 * GIB, limited=True)),
        (f"{16 * GIB}\n", f"{17 * GIB}\n", Memory(16 * GIB, 0, limited=True)),
    ],
)
def test_the_limit_and_use_of_a_container_reduce_free_memory(limit, used, expected):
    assert parse_memory(meminfo(64, 60), limit, used) == expected


def test_unreadable_memory_is_none():
    assert parse_memory("") is None
    require_memory(None, 1e9)


def test_this_machine_has_more_memory_than_it_has_free():
    found = machine_memory()
    assert found is not None
    assert 0 < found.free <= found.total


def test_too_little_memory_raises_config_error():
    found = Memory(24 * 10**9, 9 * 10**9)
    with pytest.raises(ConfigError, match=r"this machine has 9\.0 of 24\.0 GB of memory free, .* 14 GB\."):
        require_memory(found, 14)
    with pytest.raises(ConfigError, match="this container has"):
        require_memory(Memory(8 * 10**9, 7 * 10**9, limited=True), 14)
    require_memory(found, 9)


def test_a_pass_of_more_tokens_than_the_quickstarts_takes_more_memory():
    assert activations_gb(MEASURED, PASS_TOKENS) == activations_gb(None, 1) == 0
    assert activations_gb(None, PASS_TOKENS + 2000) == activations_gb(10 * MEASURED, PASS_TOKENS + 2000) == 2.0
    assert activations_gb(MEASURED // 2, PASS_TOKENS + 2000) == pytest.approx(1.0)


def test_parameters_are_counted_from_the_weights(tmp_path):
    save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.float16)}, tmp_path / "one.safetensors")
    save_file({"c": np.zeros((2, 2), np.float32)}, tmp_path / "two.safetensors")
    assert parameters(tmp_path) == 3 * 5 + 7 + 4
    assert largest_weight(tmp_path) == 15


def test_parameters_of_a_folder_without_weights_are_unknown(tmp_path):
    assert parameters(tmp_path) is None and largest_weight(tmp_path) is None


def test_a_larger_model_needs_more_memory_and_disk():
    assert memory_needed(None, 14, 24) == memory_needed(7_000_000, 14, 24) == 14
    assert memory_needed(1_135_000_000, 14, 24) == memory_needed(1_135_000_000, 14, 24, 8) == 38
    assert [memory_needed(count, 14, 24, 8) for count in (0, 67_500_000, 135_000_000, None)] == [8, 11, 14, 14]
    assert checkpoint_gb(1_000_000_000, ["model", "optimizer", "extra", "hf_model"]) == 16
    assert checkpoint_gb(1_000_000_000, []) == 0
    assert [most_checkpoints(kept) for kept in (2, 1, None)] == [3, 2, 2]


def test_too_little_disk_raises_config_error():
    with pytest.raises(
        ConfigError, match=r"runs/a has 5\.0 GB of free disk space, but 6\.5 GB will be written there\. Free disk"
    ):
        require_disk(5 * 10**9, 6.48, Path("runs/a"))
    require_disk(7 * 10**9, 6.48, Path("runs/a"))


def test_a_full_temporary_folder_raises_although_python_would_take_another_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    require_temporary_space(0)
    with pytest.raises(ConfigError, match=rf"TMPDIR={tmp_path} has .* GB of free disk space, but temporary files take"):
        require_temporary_space(1e9)


def test_a_temporary_folder_that_does_not_exist_is_named_with_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"TMPDIR=.*none does not exist\. Create it"):
        require_temporary_space(0)


def test_all_problems_of_a_machine_are_reported_together():
    def fail(text: str) -> None:
        raise ConfigError(text)

    check_together(lambda: None)
    with pytest.raises(ConfigError, match=r"^too small$"):
        check_together(lambda: fail("too small"), lambda: None)
    with pytest.raises(ConfigError, match=r"has 2 problems:\n  1\. too small\n  2\. too old"):
        check_together(lambda: fail("too small"), lambda: None, lambda: fail("too old"))


@pytest.mark.parametrize(("free", "expected"), [(2 * GIB, 0.0), (64 * 1024**2, 1.0 + 2 * 0.128 * 1.048576)])
def test_objects_and_weights_take_disk_space_if_shared_memory_is_small(free, expected):
    settings = {
        "env": {"name": "guess_number"},
        "horizon": {"max_turns": [1]},
        "episode": {"max_tokens_per_turn": 8},
        "agent": {"name": "raw"},
        "ray_kwargs": {"ray_init": {"object_store_memory": 10**9}},
        "actor_rollout_ref": {"rollout": {"checkpoint_engine": {"update_weights_bucket_megabytes": 128}}},
        "trainer": {"n_gpus_per_node": 2},
    }
    assert files_gb(RunPlan.of(settings), free) == pytest.approx(expected)


LOADING = """
class Platform:
    def import_kernels(self):
        print("{printed}")


current_platform = Platform()
"""
FAILED = "WARNING 11-24 [cpu.py:471] Failed to import from vllm._C: ImportError('libnuma.so.1: cannot open')"


def install_vllm(folder: Path, printed: str) -> None:
    """Write a package `vllm` that prints a line when its operators are loaded; test_doctor.py tries the real one."""
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").touch()
    (folder / "vllm" / "platforms.py").write_text(LOADING.format(printed=printed))


def test_operators_that_do_not_load_are_an_error_with_the_linkers_reason_and_leave_no_stamp(tmp_path, monkeypatch):
    install_vllm(tmp_path, FAILED)
    stamps = tmp_path / "stamps"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert first_operators_error(stamps) == "libnuma.so.1: cannot open"
    assert not stamps.exists()


def test_operators_that_load_are_tried_once_an_installation(tmp_path, monkeypatch):
    install_vllm(tmp_path, "")
    (tmp_path / "torch.py").write_text("class ops:\n    class _C:\n        rms_norm = None\n")
    stamps = tmp_path / "stamps"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert first_operators_error(stamps) is None and len(list(stamps.iterdir())) == 1
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # another trial would fail
    assert first_operators_error(stamps) is None
