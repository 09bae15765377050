"""Stand-ins of SGLang's compiled packages: on a CPU only, and never silent when they are called."""

import os
import subprocess
import sys

import pytest

CALL = """
import sys
from verl_agent.platform.sglang import stand_ins
stand_ins.install()
stand_ins.install()
assert sum(isinstance(finder, stand_ins.KernelFinder) for finder in sys.meta_path) == stand_ins.installed()
from sgl_kernel.kvcacheio import transfer_kv_direct
import sgl_kernel
assert not hasattr(sgl_kernel, "__file__") and "torch" not in sys.modules
transfer_kv_direct()
"""


@pytest.mark.parametrize(
    ("platform", "message"),
    [("cpu", "SGLang called sgl_kernel.kvcacheio.transfer_kv_direct"), ("nvidia", "No module named 'sgl_kernel'")],
)
def test_a_stand_in_exists_on_the_cpu_only_and_raises_when_it_is_called(platform, message):
    environment = {**os.environ, "VERL_PLATFORM": platform}
    ended = subprocess.run([sys.executable, "-c", CALL], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1 and message in ended.stderr
