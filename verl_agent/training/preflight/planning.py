"""Suggested settings of a run: limits from the oracle's episodes, batch sizes from the memory of a GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.models.hf import check_context
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
BATCH, MINI = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
TOKENS, SHARE = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "actor_rollout_ref.rollout.gpu_memory_utilization"
TURNS, REPLY = "horizon.max_turns", "episode.max_tokens_per_turn"
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Value of a setting, and its reason."""

    key: str
    now: Any
    value: Any
    reason: str

    @property
    def of_tokens(self) -> bool:
        """True if the value counts tokens of the model."""
        return self.key in (PROMPT, RESPONSE, REPLY)

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


def suggest_limits(plan: RunPlan, prompt: int, oracle: OracleLengths | None, reply: int) -> list[Suggestion]:
    """Return the limits of an episode that suit the tasks of the only environment.

    Args:
        prompt: suggested `data.max_prompt_length`.
        oracle: lengths of the oracle's episodes; None to keep the turn limit and what follows from it.
        reply: suggested `episode.max_tokens_per_turn`, one of `reply_limits`.
    """
    (env,) = plan.envs
    of_prompt = Suggestion(PROMPT, plan.lengths.prompt, prompt, "the longest prompt")
    if oracle is None:
        return [of_prompt]
    turns, stages = most(oracle.turns), list(env.horizon.max_turns)
    limit, answer = ceil(SPARE_TURNS * turns), most(oracle.answers)
    longer = sum(one > limit for one in oracle.turns) / len(oracle.turns)
    return [
        Suggestion(
            TURNS,
            stages,
            [*(stage for stage in stages[:-1] if stage < limit), limit],
            f"{SPARE_TURNS:g} times the oracle's {turns} turns (95 %); {longer:.0%} of the tasks need more",
        ),
        of_prompt,
        Suggestion(
            REPLY,
            env.episode.max_tokens_per_turn,
            reply,
            f"the oracle's replies have {most(oracle.replies)} tokens (95 %), a model's are longer",
        ),
        Suggestion(
            RESPONSE,
            plan.lengths.response,
            _round(limit * (reply + answer), 256),
            f"{limit} turns of a full reply and an answer of {answer} tokens (95 %): an upper bound",
        ),
    ]


def _round(number: float, to: int) -> int:
    return ceil(number / to) * to


def apply(plan: RunPlan, limits: Sequence[Suggestion], shape: Shape | None) -> RunPlan:
    """Return a plan with the suggested limits.

    Raises:
        ConfigError: the episodes are longer than the context of the model, if its shape is known.
    """
    (env,), new = plan.envs, {one.key: one.value for one in limits}
    if TURNS in new:
        horizon = replace(env.horizon, max_turns=new[TURNS])
        env = replace(env, horizon=horizon, episode=replace(env.episode, max_tokens_per_turn=new[REPLY]))
    lengths = replace(plan.lengths, prompt=new[PROMPT], response=new.get(RESPONSE, plan.lengths.response))
    if shape is not None:
        name = f"actor_rollout_ref.model.path={plan.actor.path!r}, as planned,"
        check_context(shape.context, lengths.prompt, lengths.response, name)
    return replace(plan, envs=[env], lengths=lengths)


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


def fit_on_gpus(plan: RunPlan, shape: Shape, critic: Shape | None, card_gb: float) -> Fit:
    """Return batch sizes with which a run fits on its GPUs, with as few savings as possible.

    Args:
        plan: plan with the limits of an episode.
        card_gb: memory of one GPU in GB.

    Raises:
        ConfigError: the run does not fit.
    """
    samples, length, least = plan.batch.samples, plan.lengths.episode, float("inf")
    for overrides in SAVINGS:
        for tokens in [*(one for one in PASSES if one > length), length]:
            for share in SHARES:
                tried = _with(plan, overrides, tokens, share)
                needed = estimate_footprint(tried, shape, critic, card_gb)
                least = min(least, needed.peak_gb)
                if needed.peak_gb <= USABLE * card_gb and needed.episodes >= samples:
                    found = _with_batch(tried, needed.episodes)
                    suggested = list(_differences(plan, found, needed.episodes))
                    return Fit(overrides, suggested, estimate_footprint(found, shape, critic, card_gb))
    cause = f"the engine holds no group of {samples} episodes"
    if least > USABLE * card_gb:
        cause = f"the run needs {least:.0f} GB of each GPU"
    raise ConfigError(
        f"an episode of {length} tokens ({PROMPT} and {RESPONSE}, as planned) does not fit on a GPU of {card_gb:g} GB, "
        f"also with {' '.join(SAVINGS[-1])}: {cause}. Choose a smaller model (+overlay/size=1gpu_24gb is for one GPU "
        f"of 24 GB), give --gpus more GPUs, or shorten {RESPONSE}."
    )


def _with(plan: RunPlan, overrides: Sequence[str], tokens: int, share: float) -> RunPlan:
    """Return a plan with savings, tokens of a pass and a share of the GPU for the engine."""
    actor = replace(plan.actor, passes=replace(plan.actor.passes, tokens=tokens))
    if len(overrides) > 1:
        actor = replace(actor, model={**actor.model, "lora_rank": LORA_RANK})
    layout = replace(plan.layout, offload=True) if overrides else plan.layout
    return replace(plan, actor=actor, layout=layout, engine=replace(plan.engine, share=share))


def _with_batch(plan: RunPlan, episodes: int) -> RunPlan:
    """Return a plan whose batch is halved while a step fills the engine more than `WAVES` times."""
    batch = int(plan.batch.tasks)
    while batch % 2 == 0 and batch // 2 >= LEAST_TASKS and batch * plan.batch.samples > WAVES * episodes:
        batch //= 2
    actor = replace(plan.actor, mini_tasks=min(int(plan.actor.mini_tasks), batch))
    return replace(plan, batch=replace(plan.batch, tasks=batch), actor=actor)


def _differences(plan: RunPlan, found: RunPlan, episodes: int) -> Iterator[Suggestion]:
    now, new = plan.batch.tasks, found.batch.tasks
    reason = f"{episodes} episodes of full length play at once" if new < now else "as in the recipe"
    yield Suggestion(BATCH, now, new, reason)
    reason = "tasks of one optimizer step, at most the batch"
    yield Suggestion(MINI, plan.actor.mini_tasks, found.actor.mini_tasks, reason)
    reason = "tokens of one forward pass that fit, at least one episode"
    yield Suggestion(TOKENS, plan.actor.passes.tokens, found.actor.passes.tokens, reason)
    yield Suggestion(SHARE, plan.engine.share, found.engine.share, "share of the GPU for the engine that fits")
