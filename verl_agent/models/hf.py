"""Config and tokenizer of a model, its context length, and clear errors where they cannot be loaded."""

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from verl_agent.envs.machine.proxies import proxy_of
from verl_agent.errors import ConfigError, did_you_mean

GROWING_ROPE = ("linear", "dynamic", "yarn")
"""Kinds of position scaling whose `factor` vLLM multiplies the context with; others include it already."""
HUB_TIMEOUT_S = 5.0
"""Seconds that the hub has to answer before its models are read from the local cache only."""


def load_config(model: str, key: str) -> Any:
    """Return the `PretrainedConfig` of a model.

    Raises:
        ConfigError: it cannot be downloaded, or transformers cannot read it.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model, local_files_only=_cache_only(model))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}={model!r} {_reason(error)}") from error


def load_tokenizer(model: str, key: str, template: str | None = None) -> Any:
    """Return the tokenizer of a model; arguments and errors are those of `load_config`.

    Args:
        template: chat template in the place of its own; None to keep that.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=_cache_only(model))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}={model!r} {_reason(error)}") from error
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def missing_template(error: ValueError) -> ConfigError:
    """Return the error of a tokenizer that has no chat template which it can choose."""
    return ConfigError(
        f"this model cannot be prompted: {str(error).partition('!')[0]}. Set "
        "actor_rollout_ref.model.custom_chat_template (SFT and DPO: model.custom_chat_template), or use a copy of the "
        "folder with a chat_template.jinja."
    )


def check_template_options(tokenizer: Any, options: Iterable[str]) -> None:
    """Check that a chat template of a tokenizer, or its method `apply_chat_template`, reads each keyword argument.

    Raises:
        ConfigError: none reads one.
    """
    found = getattr(tokenizer, "chat_template", None) or {}
    templates = list(found.values()) if isinstance(found, Mapping) else [found]
    names = [_names_in(template) for template in templates]
    own = inspect.signature(tokenizer.apply_chat_template).parameters
    for option in options:
        if option in own or not names or any(read is None or option in read[1] for read in names):
            continue
        read = sorted({name for one in names if one is not None for name in one[0]})
        raise ConfigError(
            f"data.apply_chat_template_kwargs.{option} has no effect: the chat template of the model reads "
            f"{', '.join(read)}. {did_you_mean(option, read)} Correct it, or leave it out."
        )


def _names_in(template: str) -> tuple[set[str], set[str]] | None:
    """Return the variables that a template reads from outside, and all that it reads; None if they are not known."""
    import jinja2
    from jinja2 import meta, nodes

    plain = re.sub(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}", "", template)  # a tag of transformers
    try:
        tree = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    except jinja2.TemplateSyntaxError:
        return None
    return meta.find_undeclared_variables(tree), {one.name for one in tree.find_all(nodes.Name) if one.ctx == "load"}


def _cache_only(model: str) -> bool:
    """Return True if a model is a hub id and the hub does not answer."""
    return not os.path.isdir(model) and not hub_answers()


@cache
def hub_answers() -> bool:
    """Return True if the hub answers one short request.

    Its own client would retry for half a minute. If the hub does not answer, child processes get `HF_HUB_OFFLINE=1`.
    """
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        proxy, certificates = proxy_of(constants.ENDPOINT), httpx.create_ssl_context()
        httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S, proxy=proxy, verify=certificates, trust_env=False)
    except httpx.HTTPError:
        os.environ["HF_HUB_OFFLINE"] = "1"
        return False
    return True


def positions(config: Any) -> int | None:
    """Return the context length in tokens as verl counts it (verl/workers/rollout/utils.py); None if unknown."""
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if length is None else int(length)


def context_length(config: Any) -> int | None:
    """Return the context length as vLLM counts it, with scaled positions.

    Source: vllm/config/model.py, `_get_and_verify_max_len`.
    """
    text, length = config.get_text_config(), positions(config)
    if length is None:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    for scaling in [rope] if "rope_type" in rope else rope.values():  # for all layers, or each kind of layer
        if scaling.get("rope_type") in GROWING_ROPE and scaling.get("factor"):
            base = scaling.get("original_max_position_embeddings") if scaling["rope_type"] == "yarn" else None
            return int((base or length) * scaling["factor"])
    return length


def check_context(longest: int | None, prompt: int, response: int, model: str) -> None:
    """Check that the model can read an episode that uses its whole token budget.

    Raises:
        ConfigError: the episode is longer than the context.
    """
    if longest is not None and prompt + response > longest:
        raise ConfigError(
            f"data.max_prompt_length={prompt} and data.max_response_length={response} allow episodes of up to "
            f"{prompt + response} tokens, but {model} supports at most {longest}. Lower them, or choose a model with "
            "a longer context."
        )


def _reason(error: Exception) -> str:
    """Return the end of a sentence that begins with the setting and its value."""
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
            "is not on the hub, or is private. Check the spelling (owner/name), log in with `hf auth login` for a "
            "private model, or use the folder of a model."
        )
    if any(type(cause).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled") for cause in causes) or (
        "local_files_only" in str(error) or "cached files" in str(error)
    ):
        return (
            "cannot be downloaded: the hub does not answer, and this machine has no copy. Check the spelling "
            "(owner/name) and the network (HF_ENDPOINT sets a mirror), or use the folder of a model or "
            "'smollm2-135m'."
        )
    return f"does not load: {str(error).strip().splitlines()[0]}"
