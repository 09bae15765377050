"""Errors of models that cannot be loaded or have too short a context; each names the setting."""

import json
import os
import socket
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
    """Fake of the hub: models below `gated/` need a login, no other model exists."""

    def do_HEAD(self) -> None:
        gated = self.path.startswith("/gated/")
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def asked(folder: Path, *models: str, **variables: str) -> list[str]:
    """Return the error of each model, from a new process: the hub's library reads its address on import.

    An earlier test may have found no hub, which the library tells all later child processes by HF_HUB_OFFLINE.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment = {**inherited, "HF_HOME": str(folder), **variables}
    command = [sys.executable, "-c", ASK, *models]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_errors_of_the_hub_have_their_own_messages(hub, tmp_path):
    unknown, gated = asked(tmp_path, "qwen/qwen9", "gated/model", HF_ENDPOINT=hub)
    assert unknown.startswith("model.path='qwen/qwen9' is not on the hub, or is private. Check the spelling")
    assert gated.startswith("model.path='gated/model' is open to some users only. Accept its licence")


def test_a_model_that_is_not_cached_raises_config_error_offline(tmp_path):
    (line,) = asked(tmp_path, "owner/model", HF_HUB_OFFLINE="1")
    assert line.startswith(
        "model.path='owner/model' cannot be downloaded: the hub does not answer, and this machine has"
    )


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        lines = asked(tmp_path, "owner/model", "owner/other", HF_ENDPOINT=endpoint)
    assert [line.partition(" cannot be downloaded")[0] for line in lines] == [
        "model.path='owner/model'",
        "model.path='owner/other'",
    ]


def test_an_unknown_architecture_raises_config_error(tmp_path):
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
def test_context_length_scales_positions_like_vllm(scaling, length):
    config = LlamaConfig(max_position_embeddings=1000)
    config.rope_parameters = {"rope_theta": 10000.0, **scaling}
    assert (context_length(config), positions(config)) == (length, 1000)


def test_an_episode_longer_than_the_context_raises_config_error():
    check_context(100, 40, 60, "model.path='m'")
    check_context(None, 40, 60, "model.path='m'")
    with pytest.raises(ConfigError, match=r"episodes of up to 101 tokens, but model\.path='m' supports at most 100"):
        check_context(100, 40, 61, "model.path='m'")
