"""Check, before a run, that the way in which a kind of model is computed gives the log-probs of a plain computation.

A small random model of the same kind (`verl_agent.models.miniature`) reads some rows one by one with transformers' own
attention, and then as the run would: with the attention of the config, and with its rows packed into one sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config
from verl_agent.models.lora import check_adapters
from verl_agent.models.miniature import VOCABULARY, miniature

LENGTHS = (13, 1, 17, 9)
"""Tokens of the rows; some are longer than a miniature's window."""
TOLERANCE = 1e-3
"""Largest relative difference of log-probs and gradients; rounding makes 1e-5, and each of the known faults 1e-2."""
SDPA, PLAIN, KERNELS = "sdpa", "eager", "as_kernels"
BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary positions in transformers that depend on the longest row of a pass."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Differences between the computation of a kind of model in a run and the plain one.

    Attributes:
        packing: what is wrong with packed rows; empty if they are right or not packed.
        attention: True if PyTorch's attention leaves out a part of the model, such as a soft cap of its scores.
        random: True if two passes in the mode of training differ.
    """

    packing: str = ""
    attention: bool = False
    random: bool = False


def check_computation(key: str, model: Mapping[str, Any], longest: int, *, may_be_random: bool) -> None:
    """Check a model of a run that trains with FSDP.

    Args:
        key: dotted key of its section, for messages.
        model: section of the config, whose path is resolved.
        longest: tokens of the longest row.
        may_be_random: allow dropout.

    Raises:
        ConfigError: the run would compute something else than the model.
    """
    check_adapters(key, model, may_be_random=may_be_random)
    override = dict(model.get("override_config") or {})
    attention = override.pop("attn_implementation", None) or "flash_attention_2"
    config = load_config(model.get("hf_config_path") or model["path"], f"{key}.path")
    for name, value in override.items():
        setattr(config.get_text_config() if hasattr(config.get_text_config(), name) else config, name, value)
    kind = config.model_type
    check_positions(config.get_text_config(), key, longest)
    found = examine(config, attention, bool(model["use_remove_padding"]))
    if found.packing:
        raise ConfigError(
            f"{key}.use_remove_padding=true is not allowed with this model ({kind}). Allowed: false. {found.packing}"
        )
    if found.attention:
        raise ConfigError(
            f"{key}.override_config.attn_implementation={attention!r} is not allowed with this model ({kind}). "
            f"Allowed: {PLAIN!r}, or 'flash_attention_2' on a GPU. PyTorch's attention leaves out a part of the model, "
            "such as a soft cap."
        )
    if found.random and not may_be_random:
        rates = random_rates(config)
        zeros = " and ".join(f"{key}.override_config.{name}=0.0" for name in rates)
        raise ConfigError(
            f"{key}.path={model['path']!r} ({kind}) computes at random in training "
            f"({', '.join(f'{name}={rate}' for name, rate in rates.items())}): the ratio of probabilities would "
            f"compare two networks. Set {zeros or 'its dropout to 0'}."
        )


def check_positions(text: Any, key: str, longest: int) -> None:
    """Check that the positions of a row do not depend on the other rows of its micro batch."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for scaling in [rope] if "rope_type" in rope else [one for one in rope.values() if isinstance(one, Mapping)]:
        own = scaling.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
        limit = own or getattr(text, "max_position_embeddings", None)
        if scaling.get("rope_type") in BY_LENGTH and limit is not None and longest > limit:
            raise ConfigError(
                f"data allows rows of {longest} tokens, and {key} has positions of the kind {scaling['rope_type']!r}: "
                f"above {limit} tokens, the longest row of a micro batch would change the others. Allowed: at most "
                f"{limit} tokens. Lower data.max_response_length (SFT and DPO: data.max_length), or choose a model "
                "with other positions, such as yarn."
            )


def random_rates(config: Any) -> dict[str, float]:
    """Return the settings of a model by which a pass in training is random, with their values."""
    known = config.get_text_config().to_dict()
    names = (name for name in known if "drop" in name or "jitter" in name or name.endswith("pdrop"))
    return {name: known[name] for name in names if isinstance(known[name], float) and known[name] > 0}


def examine(config: Any, attention: str, packed: bool) -> Findings:
    """Compare a small model of a kind with a plain computation, in one thread, which is the fastest for it.

    Args:
        config: config of the model.
        attention: `attn_implementation` of the run.
        packed: rows are packed into one sequence.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _examine(config, attention, packed)
    finally:
        torch.set_num_threads(threads)


def _examine(config: Any, attention: str, packed: bool) -> Findings:
    from verl_agent.platform.tree_attention import is_random

    rows = rows_of_tokens()
    try:
        plain = miniature(config, PLAIN)
        single = computed(plain, [[row] for row in rows])
    except Exception as error:  # the boundary to the code of unknown models
        unknown = f"No small model of this kind could be made to check it ({type(error).__name__}: {error})."
        return Findings(unknown if packed else "")
    random = is_random(plain, rows[0])
    if attention == SDPA:
        try:
            capped = differs(computed(miniature(config, SDPA), [[row] for row in rows]), single)
        except ValueError:  # transformers refuses SDPA for this kind, and verl will show its message
            return Findings(random=random)
        if capped:
            return Findings(attention=True, random=random)
    return Findings(packing_fault(config, attention, rows, single) if packed else "", random=random)


def packing_fault(config: Any, attention: str, rows: Sequence[Any], single: Sequence[Any]) -> str:
    """Return what is wrong with packed rows; empty if their results are those of single rows."""
    from verl_agent.platform.packed_attention import use_packed_attention

    model = miniature(config, SDPA if attention == SDPA else PLAIN)
    use_packed_attention(model)
    if attention not in (SDPA, PLAIN):
        attend_as_kernels(model)
    try:
        found = computed(model, [list(rows)])
    except NotImplementedError:
        return ""
    except Exception as error:  # the boundary to the code of unknown models
        return f"It does not read packed rows ({type(error).__name__}: {error})."
    return "Its packed rows change each other." if differs(found, single) else ""


def attend_as_kernels(model: Any) -> None:
    """Let a model attend as with FlashAttention: a row begins with each position 0, and windows come as an option."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(module: Any, *parts: Any, position_ids: Any = None, sliding_window: Any = None, **options: Any) -> Any:
        if options.get("s_aux") is not None or options.get("softcap") is not None:
            raise NotImplementedError("sinks and soft caps, which the kernels compute")
        places, rows = position_ids[0], (position_ids[0] == 0).cumsum(0)
        seen = (rows[:, None] == rows) & (places[:, None] >= places)
        if sliding_window is not None:
            seen &= places[:, None] - places < sliding_window
        return sdpa_attention_forward(module, *parts[:3], seen[None, None], **options)

    AttentionInterface.register(KERNELS, attend)
    model.set_attn_implementation(KERNELS)


def rows_of_tokens() -> list[Any]:
    """Return rows of random tokens, int64 `(T,)`."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def computed(model: Any, passes: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the log-probs of all tokens of all rows, and the gradient of each parameter of a sum over them.

    Args:
        passes: rows that are computed together, packed into one sequence.
    """
    import torch

    model.zero_grad()
    outputs = []
    for rows in passes:
        positions = torch.cat([torch.arange(len(row)) for row in rows])[None]
        inputs = {"input_ids": torch.cat(list(rows))[None], "attention_mask": None, "use_cache": False}
        inputs |= {"position_ids": positions} if len(rows) > 1 else {}
        outputs.append(model(**inputs).logits[0].log_softmax(-1))
    log_probs = torch.cat(outputs)
    labels = torch.cat([row.roll(1) for rows in passes for row in rows])
    log_probs.gather(-1, labels[:, None]).sum().backward()
    gradients = [
        one.grad.flatten() if one.grad is not None else one.new_zeros(one.numel()) for one in model.parameters()
    ]
    return [log_probs.detach(), torch.cat(gradients)]


def differs(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Return True if log-probs or gradients differ by more than rounding."""
    return any(bool((one - other).norm() > TOLERANCE * other.norm()) for one, other in zip(left, right, strict=True))
