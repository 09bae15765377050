"""Read what belongs to a model besides its weights, and what it says; where that fails, say why."""

from typing import Any

from verl_agent.errors import ConfigError

GROWING_ROPE = ("linear", "dynamic", "yarn")
"""Kinds of position scaling whose `factor` vLLM multiplies the context with; others count it in already."""


def load_config(model: str, key: str) -> Any:
    """The `PretrainedConfig` of a model.

    Args:
        model: a model folder or a hub id, as `resolve_model` gives it.
        key: setting that holds it, for messages.

    Raises:
        ConfigError: it cannot be fetched, or transformers does not know it.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}={model!r} {_reason(error)}") from error


def load_tokenizer(model: str, key: str) -> Any:
    """The tokenizer of a model; arguments and errors are those of `load_config`."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}={model!r} {_reason(error)}") from error


def positions(config: Any) -> int | None:
    """Tokens that a model reads at once, as verl counts them (verl/workers/rollout/utils.py); None if it does not say.

    Args:
        config: see `load_config`.
    """
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if length is None else int(length)


def context_length(config: Any) -> int | None:
    """The same as vLLM counts it, with scaled positions (vllm/config/model.py, `_get_and_verify_max_len`)."""
    text, length = config.get_text_config(), positions(config)
    if length is None:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    for scaling in [rope] if "rope_type" in rope else rope.values():  # one for all layers, or one a kind of layer
        if scaling.get("rope_type") in GROWING_ROPE and scaling.get("factor"):
            base = scaling.get("original_max_position_embeddings") if scaling["rope_type"] == "yarn" else None
            return int((base or length) * scaling["factor"])
    return length


def check_context(longest: int | None, prompt: int, response: int, model: str) -> None:
    """An episode that uses its whole budget can be read by the model.

    Args:
        longest: tokens that the model reads at once, None if unknown.
        prompt: `data.max_prompt_length`.
        response: `data.max_response_length`.
        model: the setting and its value, for the message.

    Raises:
        ConfigError: it is too long.
    """
    if longest is not None and prompt + response > longest:
        raise ConfigError(
            f"data.max_prompt_length={prompt} and data.max_response_length={response} make episodes of up to "
            f"{prompt + response} tokens, and {model} reads at most {longest}. Lower them, or choose a model with a "
            "longer context."
        )


def _reason(error: Exception) -> str:
    """The rest of a sentence that begins with a setting and its value."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return (
            "is open to some users only. Accept its licence on its page at https://huggingface.co, then log in here: "
            "`hf auth login`."
        )
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return (
            "is not on the hub, or is private. Check the spelling (owner/name); for a private model log in with "
            "`hf auth login`; or give a folder of a model."
        )
    if any(type(cause).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled") for cause in causes):
        return (
            "cannot be fetched: the hub does not answer, and this machine has no copy. Check the spelling "
            "(owner/name) and the network (HF_ENDPOINT names a mirror, HF_HUB_OFFLINE=1 keeps from asking), or give "
            "a folder of a model, or 'smollm2-135m'."
        )
    return f"does not load: {str(error).strip().splitlines()[0]}"
