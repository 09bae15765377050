"""Test that recipes of `new-env` pass every check that runs before training."""

import os
import subprocess
import sys

import psutil
import pytest

from tests import ROOT
from verl_agent.commands.new_env import write_package
from verl_agent.system.resources import RL_MEMORY_GB

PREPARE = """
import sys
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict
from verl_agent.config.search_path import register_config
from verl_agent.training.preflight.rl import prepare_run

register_config()
with initialize_config_dir(sys.argv[1], version_base=None):
    config = compose("grpo_cpu", sys.argv[2:], return_hydra_config=True)
HydraConfig.instance().set_config(config)
with open_dict(config):
    del config["hydra"]
print("prepared", prepare_run(config).envs[0].env.name)
"""


@pytest.mark.skipif(psutil.virtual_memory().available < RL_MEMORY_GB * 1e9, reason="the machine has too little memory")
def test_a_written_package_is_ready_for_training(tmp_path):
    package = write_package("traffic_lights", tmp_path)
    metadata = package / "traffic_lights_env-0.1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: traffic-lights-env\nVersion: 0.1.0\n")
    entry = "[verl_agent.envs]\ntraffic_lights = traffic_lights.adapter:TrafficLights\n"
    metadata.joinpath("entry_points.txt").write_text(entry)
    command = [sys.executable, "-c", PREPARE, str(package / "recipes"), "actor_rollout_ref.model.path=smollm2-135m"]
    environment = {**os.environ, "PYTHONPATH": f"{package}:{ROOT}", "VERL_PLATFORM": "cpu"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "prepared traffic_lights"), done.stderr
