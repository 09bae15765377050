"""Model folders as transformers 4.57 reads them: log-probs, tokens, chat template; `make test-exports`.

Each model is written as transformers 5 writes it, and made portable. Version 5 reads both folders, and version 4, in an
environment of its own, the portable one. All must find the same.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.support import read_model
from tests.support.models import write_byte_tokenizer
from verl_agent.models.checkpoints import finish_checkpoint
from verl_agent.models.portable import COMPARED, VERSIONS
from verl_agent.models.resolve import prepare_smollm2

pytestmark = pytest.mark.exports
POSITIONS, CONTEXT, VOCABULARY = 2304, 4096, 300
BASE = {"rope_theta": 250_000.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "plain": {"rope_type": "default", **BASE},
    "linear": {"rope_type": "linear", "factor": 3.0, **BASE},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0, **BASE},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, **BASE},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
        **BASE,
    },
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [1.5 + index for index in range(8)],
    **BASE,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4},
    "gemma3_text": {"num_hidden_layers": 6, "sliding_window": 64},
    "phi3": {"original_max_position_embeddings": 1024},
}
CASES = [
    *((kind, scaling) for kind in ("llama", "qwen2", "qwen3") for scaling in SCALINGS),
    *((kind, "plain") for kind in COMPARED if kind not in ("llama", "qwen2", "qwen3")),
    *((kind, "linear") for kind in ("gemma3_text", "gpt_neox", "olmo2", "qwen3_moe")),
    ("phi3", "longrope"),
]
MESSAGES = [
    {"role": "system", "content": "You play."},
    {"role": "user", "content": "Gr\u00fc\u00df dich, \u4e16\u754c!  <|im_end|>"},
    {"role": "assistant", "content": "go north"},
]
TEXTS = [
    "some text",
    " leading and trailing ",
    "<|im_start|>user\n\u00fc \u4e16\u754c <call>1</call><|im_end|>",
    "\t1234567\n",
]


def write_case(kind: str, scaling: str, folder: Path) -> None:
    """Write a random model of two layers as transformers 5 does, and the probe for both versions."""
    tokenizer = write_byte_tokenizer(folder, TEXTS * 20, VOCABULARY)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<call>", "</call>"]})
    tokenizer.save_pretrained(folder)
    rope = LONGROPE if scaling == "longrope" else SCALINGS[scaling]
    if kind == "gemma3_text":
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0}}
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024 if scaling == "dynamic" else CONTEXT,  # it begins beyond the context
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**sizes, **OTHER_SIZES.get(kind, {})}, rope_parameters=dict(rope))
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.15)
    model.save_pretrained(folder)
    # As the trainer does: transformers 5 reads some types with rules of its own, and saves those.
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    write_probe(folder, len(tokenizer))


def write_probe(folder: Path, vocabulary: int) -> None:
    ids = torch.randint(5, vocabulary, (POSITIONS,), generator=torch.Generator().manual_seed(1)).tolist()
    (folder / "probe.json").write_text(json.dumps({"ids": ids, "texts": TEXTS, "messages": MESSAGES}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all models, and read each with both versions: the originals with 5, what we write with 5 and 4."""
    root, other = tmp_path_factory.mktemp("exports"), os.environ.get("TRANSFORMERS4")
    if not other:
        pytest.fail("TRANSFORMERS4 is not set to a Python with transformers 4. Run `make test-exports`.")
    for kind, scaling in CASES:
        write_case(kind, scaling, root / f"original/{kind}-{scaling}")
    smollm2 = shutil.copytree(prepare_smollm2(), root / "original/smollm2")
    write_probe(smollm2, 49_152)
    shutil.copytree(root / "original", root / "portable")
    portable = sorted((root / "portable").iterdir())
    for folder in portable:
        finish_checkpoint(folder)
    originals = sorted((root / "original").iterdir())
    subprocess.run([sys.executable, read_model.__file__, "5", *map(str, [*originals, *portable])], check=True)
    subprocess.run([other, read_model.__file__, "4", *map(str, portable)], check=True)
    return root


def read(folder: Path, version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"read_by_{version}.json").read_text())
    assert "error" not in found, f"{folder.name}, version {version}: {found['error']}"
    return found


@pytest.mark.parametrize("name", ["smollm2", *(f"{kind}-{scaling}" for kind, scaling in CASES)])
def test_both_versions_find_the_same(folders: Path, name: str) -> None:
    original = read(folders / "original" / name, 5)
    for version in (5, 4):
        found = read(folders / "portable" / name, version)
        assert f"transformers {found['version']}" == VERSIONS[version - 4]
        expected, log_probs = (torch.tensor(one["log_probs"]) for one in (original, found))
        assert len(expected) == POSITIONS - 1
        difference = (expected - log_probs).abs()
        assert difference.max() < 1e-3, f"version {version} is off by {difference.mean():.1e} nats on average"
        for value in ("texts", "decoded", "special", "rendered", "generation"):
            assert found[value] == original[value], value


def test_the_positions_of_smollm2_are_those_that_its_authors_published(folders: Path) -> None:
    """Its base is 100,000 (huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, config.json)."""
    values = json.loads((folders / "portable/smollm2/config.json").read_text())
    assert (values["rope_theta"], values["rope_scaling"], values["torch_dtype"]) == (100_000, None, "bfloat16")
