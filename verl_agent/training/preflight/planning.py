"""Suggested settings of a run: limits from the oracle's episodes, batch sizes from the memory of a GPU."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.training.preflight.estimates import Footprint, Shape, estimate_footprint
from verl_agent.training.preflight.oracle_lengths import OracleLengths, most

SPARE_TURNS = 1.5
"""Turns that a model gets for each turn of the oracle."""
USABLE = 0.95
"""Share of a GPU that a plan fills; the rest is for fragmentation."""
PASSES = (32_000, 24_000, 16_000, 12_000, 8_000, 6_000, 4_000, 3_000, 2_000)
"""Tokens of one forward pass that are tried, the most first; the tokens of one episode are tried last."""
SHARES = tuple(percent / 100 for percent in range(85, 15, -5))
"""Shares of a GPU for the engine that are tried."""
WAVES = 4
"""Most times that a step fills the engine, before a smaller batch is suggested."""
LEAST_REPLY = 64
"""Tokens of a reply below which none is suggested."""
SPARE_REPLY = 2
"""Tokens that a model gets for each token of the oracle's replies, at least."""
LEAST_TASKS = 16
"""Tasks of a step below which a batch is not suggested."""
SAVINGS: tuple[tuple[str, ...], ...] = ((), ("offload=true",), ("offload=true", "+overlay/lora=rank_32"))
"""Overrides that save memory, in the order in which they are tried."""
LORA_RANK = 32
BATCH, SAMPLES = "data.train_batch_size", "actor_rollout_ref.rollout.n"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
TOKENS, SHARE = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "actor_rollout_ref.rollout.gpu_memory_utilization"
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Value of a setting, and its reason."""

    key: str
    now: Any
    value: Any
    reason: str

    @property
    def override(self) -> str:
        """Override that sets the value."""
        return f"{self.key}={str(self.value).replace(' ', '')}"


def reply_limits(per_turn: int, oracle: OracleLengths | None) -> list[int]:
    """Return limits of a reply to try, the longest first, which hold the oracle's replies `SPARE_REPLY` times."""
    if oracle is None:
        return [per_turn]
    least = _round(SPARE_REPLY * most(oracle.replies), 16)
    return [max(per_turn, least), *(half for half in (per_turn // 2, per_turn // 4) if half >= max(least, LEAST_REPLY))]


def suggest_limits(
    config: Mapping[str, Any], prompt: int, oracle: OracleLengths | None, reply: int
) -> list[Suggestion]:
    """Return the limits of an episode that suit the tasks.

    Args:
        prompt: suggested `data.max_prompt_length`.
        oracle: lengths of the oracle's episodes; None to keep the turn limit and what follows from it.
        reply: suggested `episode.max_tokens_per_turn`, one of `reply_limits`.
    """
    of_prompt = Suggestion(PROMPT, _get(config, PROMPT), prompt, "the longest prompt")
    if oracle is None:
        return [of_prompt]
    turns, stages = most(oracle.turns), list(config["horizon"]["max_turns"])
    limit, answer = ceil(SPARE_TURNS * turns), most(oracle.answers)
    longer = sum(one > limit for one in oracle.turns) / len(oracle.turns)
    response = _round(limit * (reply + answer), 256)
    return [
        Suggestion(
            "horizon.max_turns",
            stages,
            [*(stage for stage in stages[:-1] if stage < limit), limit],
            f"{SPARE_TURNS:g} times the oracle's {turns} turns (95 %); {longer:.0%} of the tasks need more",
        ),
        of_prompt,
        Suggestion(
            "episode.max_tokens_per_turn",
            config["episode"]["max_tokens_per_turn"],
            reply,
            f"the oracle's replies have {most(oracle.replies)} tokens (95 %), a model's are longer",
        ),
        Suggestion(
            RESPONSE,
            _get(config, RESPONSE),
            response,
            f"{limit} turns of a full reply and an answer of {answer} tokens (95 %): an upper bound",
        ),
    ]


def _round(number: float, to: int) -> int:
    return ceil(number / to) * to


def apply(config: Mapping[str, Any], suggestions: Sequence[Suggestion]) -> dict[str, Any]:
    """Return a config with the suggested values."""
    changed = deepcopy(dict(config))
    for one in suggestions:
        _set(changed, one.key, one.value)
    rollout = changed["actor_rollout_ref"]["rollout"]
    rollout["max_model_len"] = int(_get(changed, PROMPT)) + int(_get(changed, RESPONSE))
    return changed


@dataclass(frozen=True, slots=True)
class Fit:
    """Settings with which a run fits on its GPUs.

    Attributes:
        overrides: overrides that save memory.
        suggestions: batch sizes.
        needed: estimated memory and time.
    """

    overrides: Sequence[str]
    suggestions: Sequence[Suggestion]
    needed: Footprint


def fit_on_gpus(config: Mapping[str, Any], shape: Shape, critic: Shape | None, card_gb: float) -> Fit:
    """Return batch sizes with which a run fits on its GPUs, with as few savings as possible.

    Args:
        config: config with the limits of an episode.
        card_gb: memory of one GPU in GB.

    Raises:
        ConfigError: the run does not fit.
    """
    samples, least = int(_get(config, SAMPLES)), float("inf")
    length = int(_get(config, PROMPT)) + int(_get(config, RESPONSE))
    for overrides in SAVINGS:
        tried = _with_savings(config, overrides)
        for tokens in [*(one for one in PASSES if one > length), length]:
            _set(tried, TOKENS, tokens)
            for share in SHARES:
                _set(tried, SHARE, share)
                needed = estimate_footprint(tried, shape, critic, card_gb)
                least = min(least, needed.peak_gb)
                if needed.peak_gb <= USABLE * card_gb and needed.episodes >= samples:
                    changed = _batch(tried, needed.episodes)
                    found = list(_differences(config, tried, changed, needed.episodes))
                    return Fit(overrides, found, estimate_footprint(tried, shape, critic, card_gb))
    cause = f"the engine holds no group of {samples} episodes"
    if least > USABLE * card_gb:
        cause = f"the run needs {least:.0f} GB of each GPU"
    raise ConfigError(
        f"an episode of {length} tokens ({PROMPT} and {RESPONSE}, as planned) does not fit on a GPU of {card_gb:g} GB, "
        f"also with {' '.join(SAVINGS[-1])}: {cause}. Choose a smaller model (+overlay/size=1gpu_24gb is for one GPU "
        f"of 24 GB), give --gpus more GPUs, or shorten {RESPONSE}."
    )


def _with_savings(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    tried = deepcopy(dict(config))
    if overrides:
        tried["offload"] = True
    if len(overrides) > 1:
        tried["actor_rollout_ref"]["model"]["lora_rank"] = LORA_RANK
    return tried


def _batch(tried: dict[str, Any], episodes: int) -> bool:
    """Halve the batch while a step fills the engine more than `WAVES` times; return True if it was halved."""
    before = int(_get(tried, BATCH))
    batch = before
    while batch % 2 == 0 and batch // 2 >= LEAST_TASKS and batch * int(_get(tried, SAMPLES)) > WAVES * episodes:
        batch //= 2
    _set(tried, BATCH, batch)
    _set(tried, MINI, min(int(_get(tried, MINI)), batch))
    return batch < before


def _differences(
    config: Mapping[str, Any], tried: Mapping[str, Any], halved: bool, episodes: int
) -> Iterator[Suggestion]:
    reasons = {
        BATCH: f"{episodes} episodes of full length play at once" if halved else "as in the recipe",
        MINI: "tasks of one optimizer step, at most the batch",
        TOKENS: "tokens of one forward pass that fit, at least one episode",
        SHARE: "share of the GPU for the engine that fits",
    }
    for key, reason in reasons.items():
        yield Suggestion(key, _get(config, key), _get(tried, key), reason)


def _get(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node[part]
    return node


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = config
    for part in parents:
        node = node[part]
    node[last] = value
