"""Test that recipes of `new-env` pass every check that runs before training."""

from contextlib import chdir

import psutil
import pytest

from tests.support.composing import ROOT, recipe
from verl_agent.commands.new_env import write_package
from verl_agent.config.plan import RunPlan
from verl_agent.system.resources import RL_MEMORY_GB
from verl_agent.training.preflight.rl import check_plan


@pytest.mark.skipif(psutil.virtual_memory().available < RL_MEMORY_GB * 1e9, reason="the machine has too little memory")
def test_a_written_package_is_ready_for_training(tmp_path, monkeypatch):
    package = write_package("traffic_lights", tmp_path)
    metadata = package / "traffic_lights_env-0.1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: traffic-lights-env\nVersion: 0.1.0\n")
    entry = "[verl_agent.envs]\ntraffic_lights = traffic_lights.adapter:TrafficLights\n"
    metadata.joinpath("entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("PYTHONPATH", f"{package}:{ROOT}")  # of the environment's host
    config = recipe(package / "recipes/grpo_cpu.yaml", "actor_rollout_ref.model.path=smollm2-135m")
    with chdir(tmp_path):
        assert [run_env.env.name for run_env in check_plan(RunPlan.read(config)).envs] == ["traffic_lights"]
