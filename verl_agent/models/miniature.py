"""Small random copy of a model's architecture, with which its computation is checked in a second.

A copy has the class and the options of the model: kinds of layers, windows, soft caps, dropout, experts, ties. Its
sizes are small, and its windows shorter than the rows of a check.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

LAYERS, HEADS, KV_HEADS, EXPERTS, WINDOW, VOCABULARY, WIDTH, HEAD = 4, 4, 2, 4, 6, 64, 64, 16
KEPT = 8
"""Numbers up to this one are kept unless they count parts: they are sizes of convolutions, for example."""
COUNTS = (
    (("group",), 1),
    (("per_tok", "top_k", "topk"), 2),
    (("kv_head", "key_value_head"), KV_HEADS),
    (("heads", "n_head"), HEADS),
    (("experts",), EXPERTS),
    (("layers", "n_layer"), LAYERS),
)
"""Parts of the names of counts in a config, and the largest number in the copy; the first that fits counts."""
SIZES = (
    (("_token_id",), 0),
    (("window", "chunk"), WINDOW),
    (("vocab",), VOCABULARY),
    (("position", "n_ctx", "seq_len"), 512),
    (("head_dim", "head_size", "rope_dim", "rotary_dim", "rank"), HEAD),
    (("size", "dim", "embd", "inner", "d_model", "d_ff", "d_kv", "width"), WIDTH),
)
"""The same for sizes; 0 stands for a number that stays."""
SPREAD = 0.3
"""Standard deviation of random weights: large enough that each option changes the result visibly."""


def miniature_config(config: Any) -> Any:
    """Return a config of the same class with small sizes.

    Args:
        config: config of a language model of transformers; a text model's part of a larger one is used alone.
    """
    small = deepcopy(config.get_text_config())
    heads, kv_heads = (getattr(small, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    for name, value in numbers(small):
        _set(small, name, small_number(name, value))
    if kv_heads is not None and kv_heads == heads:
        _set(small, "num_key_value_heads", small.num_attention_heads)
    if hasattr(small, "qk_rope_head_dim"):  # multi-head latent attention
        _set(small, "qk_head_dim", small.qk_nope_head_dim + small.qk_rope_head_dim)
        _set(small, "head_dim", small.qk_rope_head_dim)
    if kinds := getattr(small, "layer_types", None):
        several = list(dict.fromkeys(kinds))
        _set(small, "layer_types", (several * LAYERS)[: max(LAYERS, len(several))])
        small.num_hidden_layers = len(small.layer_types)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(small, name, None)
    small.initializer_range = SPREAD
    return small


def _set(config: Any, name: str, value: Any) -> None:
    with suppress(AttributeError):  # a property that follows from others
        setattr(config, name, value)


def small_number(name: str, value: int) -> int:
    """Return the number of a copy for one of a config, from `COUNTS` and `SIZES`."""
    count = next((size for parts, size in COUNTS if any(part in name for part in parts)), None)
    if count is not None and "dim" not in name and "size" not in name:
        return min(value, count)
    size = next((size for parts, size in SIZES if any(part in name for part in parts)), 0)
    return size if 0 < size < value and value > KEPT else value


def numbers(config: Any) -> Iterator[tuple[str, int]]:
    """Yield the names and values of a config's whole numbers."""
    known: Mapping[str, Any] = config.to_dict()
    for name, value in known.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def miniature(config: Any, attention: str) -> Any:
    """Return a small random language model of the config's class in float32, in the mode of evaluation.

    Args:
        config: see `miniature_config`.
        attention: `attn_implementation` of transformers.
    """
    import torch
    from transformers import AutoModelForCausalLM

    state = torch.get_rng_state()
    try:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(miniature_config(config), attn_implementation=attention)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=SPREAD)
    finally:
        torch.set_rng_state(state)
    return model.float().eval()
