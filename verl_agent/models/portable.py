"""Files of a model folder that transformers 4.57, transformers 5 and the tools built on either of them read alike.

transformers 5 writes positions as `rope_parameters` only, which version 4 ignores in favour of a base of 10,000. It
also names a tokenizer class and a form of special tokens that version 4 does not know. Every model folder that this
project writes passes through `make_portable`. tests/exports compares both versions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from verl_agent.errors import ConfigError
from verl_agent.trace.provenance import read_json, write_json_atomically

VERSIONS: Final = ("transformers 4.57.6", "transformers 5.10.4")
"""Versions that tests/exports compares."""
PARAMETERS: Final = "rope_parameters"
BASE: Final = {"gpt_neox": "rotary_emb_base", "gpt_neox_japanese": "rotary_emb_base"}
"""Old name of `rope_theta` by model type."""
SHARE: Final = {"gpt_neox": "rotary_pct", "gpt_neox_japanese": "rotary_pct"}
"""Old name of `partial_rotary_factor` by model type."""
TWO_BASES: Final = {
    "gemma3_text": ("rope_theta", "rope_local_base_freq"),
    "gemma3n_text": ("rope_theta", "rope_local_base_freq"),
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "modernbert-decoder": ("global_rope_theta", "local_rope_theta"),
}
"""Old names of the bases of full and of sliding attention, of the types in 4.57 whose layers differ in them."""
SCALES_FULL: Final = ("gemma3_text", "gemma3n_text")
"""Types of `TWO_BASES` whose full attention may also be scaled."""
UNSCALED: Final = ("chameleon", "dbrx", "nemotron", "olmo3", "recurrent_gemma")
"""Types whose layers, or some of them, have no scaled positions in 4.57: it ignores `rope_scaling` without an error."""
FIELDS: Final = {
    ("olmo", "linear"): ("type", "factor"),
    ("olmo", "dynamic"): ("type", "factor"),
    ("olmo2", "linear"): ("type", "factor"),
    ("olmo2", "dynamic"): ("type", "factor"),
    ("phi3", "longrope"): ("type", "short_factor", "long_factor"),
    ("phi4_multimodal", "longrope"): ("type", "short_factor", "long_factor"),
}
"""Fields of `rope_scaling` by model type and `rope_type`, if 4.57 accepts these only."""
EXPERTS: Final = ("qwen3_moe", "qwen3_vl_moe_text")
"""Types whose `num_experts` transformers 5 writes as `num_local_experts`."""
COMPARED: Final = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"),
    *("gemma2", "gemma3_text", "phi3", "gpt_neox", "olmo2", "smollm3"),
)
"""Model types whose log-probs tests/exports compares between both versions."""


def make_portable(folder: Path) -> None:
    """Rewrite the config and the tokenizer's config of a model folder; files that are right already stay.

    Raises:
        ConfigError: the config has positions that transformers 4.57 cannot express.
    """
    for name, convert in (("config.json", portable_config), ("tokenizer_config.json", portable_tokenizer)):
        file = folder / name
        if file.is_file():
            before = read_json(file, "Write the model folder again.")
            after = convert(before, folder)
            if after != before:
                write_json_atomically(file, after)


def check_portable(config: Any, model: str) -> None:
    """Check before a run that the config of its checkpoints can be written for both versions.

    Args:
        config: `PretrainedConfig` of the model.
        model: setting and value of the model's path, for the message.

    Raises:
        ConfigError: it cannot.
    """
    try:
        portable_config(config.to_dict())
    except ConfigError as error:
        raise ConfigError(f"{model}: {error}") from error


def portable_config(values: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return a config with the keys of both versions, also in the configs inside it (for example, `text_config`)."""
    config = {
        name: portable_config(value) if _is_config(name, value) else _plain_floats(value)
        for name, value in values.items()
    }
    kind, parameters = str(config.get("model_type")), config.get(PARAMETERS)
    if "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    if kind in EXPERTS and "num_local_experts" in config:
        config["num_experts"] = config["num_local_experts"]
    if not parameters:
        return config
    if not any(isinstance(value, Mapping) for value in parameters.values()):
        return config | _old_positions(kind, parameters)
    return config | _old_positions_by_layer(kind, parameters) if kind in TWO_BASES else config


def _is_config(name: str, value: Any) -> bool:
    return isinstance(value, Mapping) and (name.endswith("_config") or "model_type" in value)


def _plain_floats(value: Any) -> Any:
    """Return a value with infinities as numbers instead of `{"__float__": "Infinity"}`, which version 4 cannot read."""
    if isinstance(value, Mapping):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {name: _plain_floats(inner) for name, inner in value.items()}
    return [_plain_floats(inner) for inner in value] if isinstance(value, list) else value


def _old_positions(kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of version 4 for positions that all layers share.

    Raises:
        ConfigError: version 4 would ignore the scaling.
    """
    values, scaling = dict[str, Any](), _scaling(parameters)
    if scaling is not None and kind in UNSCALED:
        raise ConfigError(_misread(PARAMETERS, parameters, kind))
    if scaling is not None and (fields := FIELDS.get((kind, scaling["rope_type"]))):
        if scaling["rope_type"] == "longrope":
            values["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
        scaling = {name: (scaling | {"type": scaling["rope_type"]})[name] for name in fields}
    if parameters.get("rope_theta") is not None:
        values[BASE.get(kind, "rope_theta")] = parameters["rope_theta"]
    if parameters.get("partial_rotary_factor") is not None:
        values[SHARE.get(kind, "partial_rotary_factor")] = parameters["partial_rotary_factor"]
    return values | {"rope_scaling": scaling}


def _misread(key: str, value: Mapping[str, Any], kind: str) -> str:
    return (
        f"{key}={dict(value)!r} of a {kind} model: transformers 4.57 would read other positions without an error. "
        "Allowed: rope_type=default. Use a model without scaled positions, or of another type."
    )


def _scaling(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `rope_scaling`; None for plain positions. transformers 5 prefers it to `rope_parameters`."""
    apart = ("rope_theta", "partial_rotary_factor")
    scaling = {"rope_type": "default"} | {name: value for name, value in parameters.items() if name not in apart}
    is_plain = scaling["rope_type"] == "default" and not scaling.keys() - {"rope_type", "type"}
    return None if is_plain else scaling


def _old_positions_by_layer(kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of version 4 for positions that differ between full and sliding attention.

    Raises:
        ConfigError: version 4 cannot express the positions of this type.
    """
    full, sliding = parameters["full_attention"], parameters["sliding_attention"]
    scaling = _scaling(full)
    if _scaling(sliding) is not None or (scaling is not None and kind not in SCALES_FULL):
        layer, value = ("sliding", sliding) if _scaling(sliding) is not None else ("full", full)
        raise ConfigError(_misread(f"{PARAMETERS}.{layer}_attention", value, kind))
    names = TWO_BASES[kind]
    values = {names[0]: full["rope_theta"], names[1]: sliding["rope_theta"]}
    return values | ({"rope_scaling": scaling} if kind in SCALES_FULL else {})


def portable_tokenizer(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a tokenizer's config with a class and special tokens that both versions know."""
    config = dict(values)
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    template = folder / "chat_template.jinja"
    if template.is_file():  # tools built on earlier versions look here only
        config["chat_template"] = template.read_text(encoding="utf-8")
    extra = config.get("extra_special_tokens")
    if isinstance(extra, list):  # version 4 has a mapping of names here
        del config["extra_special_tokens"]
        config["additional_special_tokens"] = extra
    return config
