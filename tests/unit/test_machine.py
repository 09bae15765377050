"""Free memory and disk, and the need of a run."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from verl_agent.errors import ConfigError
from verl_agent.models.resolve import largest_weight, parameters
from verl_agent.system.resources import (
    PASS_TOKENS,
    Memory,
    activations_gb,
    checkpoint_gb,
    memory_needed,
    most_checkpoints,
    parse_memory,
    read_memory,
    require_disk,
    require_memory,
)

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
    found = read_memory()
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


def test_parameters_of_a_remote_model_are_unknown(tmp_path):
    assert parameters("Qwen/Qwen2.5-3B-Instruct") is None
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
