"""A model that cannot be fetched or reads too little is refused with one sentence that names the setting."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import LlamaConfig

from verl_agent.errors import ConfigError
from verl_agent.models.hf import check_context, context_length, load_config, load_tokenizer, positions

ASK = """
import sys
from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config
for model in sys.argv[1:]:
    try:
        load_config(model, "model.path")
    except ConfigError as error:
        print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does: what is called `gated` needs a login, nothing else exists."""

    def do_HEAD(self) -> None:
        gated = self.path.startswith("/gated/")
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test's output clean."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def asked(folder: Path, *models: str, **variables: str) -> list[str]:
    """What is said of each model, in a process of its own: the hub's address is read when its library is imported."""
    environment = {**os.environ, "HF_HOME": str(folder), **variables}
    command = [sys.executable, "-c", ASK, *models]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_hubs_answers_are_told_apart(hub, tmp_path):
    unknown, gated = asked(tmp_path, "qwen/qwen9", "gated/model", HF_ENDPOINT=hub)
    assert unknown.startswith("model.path='qwen/qwen9' is not on the hub, or is private. Check the spelling")
    assert gated.startswith("model.path='gated/model' is open to some users only. Accept its licence")


def test_no_network_and_no_copy(tmp_path):
    (line,) = asked(tmp_path, "owner/model", HF_HUB_OFFLINE="1")
    assert line.startswith("model.path='owner/model' cannot be fetched: the hub does not answer, and this machine has")


def test_a_folder_that_transformers_does_not_know(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(ConfigError, match=r"^model\.path='.*' does not load: .*no_such_model"):
        load_config(str(tmp_path), "model.path")
    with pytest.raises(ConfigError, match=r"^model\.path='.*' does not load: "):
        load_tokenizer(str(tmp_path), "model.path")


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "default"}, 1000),
        ({"rope_type": "linear", "factor": 2.0}, 2000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 500}, 2000),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 500}, 1000),
    ],
)
def test_scaled_positions_count_as_vllm_counts_them(scaling, length):
    config = LlamaConfig(max_position_embeddings=1000)
    config.rope_parameters = {"rope_theta": 10000.0, **scaling}
    assert (context_length(config), positions(config)) == (length, 1000)


def test_an_episode_may_fill_the_context_and_no_more():
    check_context(100, 40, 60, "model.path='m'")
    check_context(None, 40, 60, "model.path='m'")
    with pytest.raises(ConfigError, match=r"episodes of up to 101 tokens, and model\.path='m' reads at most 100"):
        check_context(100, 40, 61, "model.path='m'")
