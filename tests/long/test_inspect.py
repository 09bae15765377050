"""Test that Inspect's own package reads an exported log; it is installed into an environment of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.episodes import talk
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import StopReason
from verl_agent.viewer.export.write import export_episodes

INSPECT = "inspect_ai==0.3.285"
READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries
(info,) = list_eval_logs(sys.argv[1])
log = read_eval_log(info)
print(json.dumps({
    "metrics": {score.name: score.metrics["mean"].value for score in log.results.scores},
    "samples": [
        [one.id, one.epoch, len(one.messages), one.scores["return"].value if one.scores else None]
        for one in log.samples
    ],
    "errors": [sample.error.message for sample in log.samples if sample.error],
    "summaries": [[one.id, one.epoch] for one in read_eval_log_sample_summaries(info)],
}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_inspect_reads_an_exported_log(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", INSPECT], check=True)
    with EpisodeWriter(tmp_path / "run" / "episodes.jsonl") as writer:
        for reward in (0.0, 1.0):
            writer.write(talk("a b", reward, task="shop/1"))
        writer.write(talk("a", 0.0, task="2", stop=StopReason.ENV_ERROR) | {"error": "the host died"})
    (tmp_path / "logs").mkdir()
    assert export_episodes([tmp_path / "run"], tmp_path / "logs" / "run.eval") == 3
    printed = subprocess.run([python, "-c", READ, tmp_path / "logs"], check=True, capture_output=True, text=True).stdout
    first, second = "evaluation step 0 talk shop_1 64c46658", "evaluation step 0 talk 2"  # with a checksum for `/`
    assert json.loads(printed) == {
        "metrics": {"success": 0.5, "return": 0.5},
        "samples": [[second, 1, 4, None], [first, 1, 6, 0.0], [first, 2, 6, 1.0]],
        "errors": ["the host died"],
        "summaries": [[second, 1], [first, 1], [first, 2]],
    }
