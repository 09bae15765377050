"""Table of the conditions on the settings of reinforcement learning, in the order in which they are checked.

`verl_agent.training.preflight.conditions` explains the columns: key, allowed, remedy, when.
"""

import os
from math import ceil
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_agent.config.algorithms import (
    CRITICS,
    ESTIMATOR,
    GROUPED,
    KNOWN_ESTIMATORS,
    SEVERAL_ROWS,
    SWITCHED_CRITICS,
    TURN_CRITICS,
    TURN_ESTIMATORS,
    UNIFORM_IS_ZERO,
    USES_UNIFORM,
    WITHOUT_BOOTSTRAP,
    WITHOUT_CRITIC,
    find_estimator,
)
from verl_agent.config.catalogue import SET
from verl_agent.config.plan_parts import PARTIAL, SEPARATE, SYNC
from verl_agent.platform.shard_files import KINDS
from verl_agent.rollout.settings import OverlongPrompt
from verl_agent.training.preflight.conditions import Condition, Get, Where, at_most, equal_to
from verl_agent.training.preflight.teacher import TEACHER_CONDITIONS
from verl_agent.training.preflight.update_conditions import (
    ACTOR,
    CORRECTION,
    CRITIC,
    ROLLOUT,
    UPDATE_CONDITIONS,
    Off,
    On,
    Positive,
    Weights,
)

VERL_CRITIC = "~/models/deepseek-llm-7b-chat"
"""verl's default of critic.model.path (trainer/config/critic/critic.yaml)."""

V1, GROUPS, FILTER = "trainer.v1", "trainer.v1.sampler.sampler_kwargs", "algorithm.filter_groups"
MODE, KEEP = f"{V1}.trainer_mode", "agent.context.keep"
BATCH, MINI, RESPONSE = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", "data.max_response_length"
EDITS, ASYNCHRONOUS = ("last", "summary"), (PARTIAL, SEPARATE)

Natural, Several = (Annotated[int, Field(ge=least)] for least in (0, 2))
Discount, Warmup = Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(gt=0, le=1)]
OffOrNull: Any = Off | NoneType


def _group_size(value: Any, get: Get) -> bool:
    """Allow 2, the default, also for groups of one episode."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= max(get(f"{ROLLOUT}.n"), 2)


def _divided_by(mini: str) -> Where:
    """Allow multiples of a mini-batch; where an episode makes several rows, also one update for all rows of a step."""
    return Where(
        f"a multiple of {mini}={{{mini}}}",
        lambda batch, get: batch % get(mini) == 0 or (get(KEEP) in EDITS and get(mini) % batch == 0),
    )


# fmt: off
CONDITIONS: tuple[Condition, ...] = (
    # The run
    Condition("trainer.use_v1", On, "The episode sampler needs it."),
    Condition(f"{V1}.sampler.sync_refill_failed_groups", Off, "It does not suit the episode sampler."),
    *(Condition(key, Positive) for key in ("trainer.total_training_steps", "trainer.nnodes", BATCH, f"{ROLLOUT}.n")),
    Condition("trainer.total_epochs", [1_000_000],
              "It could end the run before trainer.total_training_steps: leave it out, and set that key."),
    *(Condition(key, Natural)
      for key in ("data.seed", f"{ROLLOUT}.seed", "trainer.max_restarts", "trainer.hang_timeout_s")),
    # Advantage estimators and critics
    Condition(ESTIMATOR, KNOWN_ESTIMATORS, "Others of verl do not support several turns; a package may register its "
              "own (entry points verl_agent.estimators), and is then installed with `pip install -e .` in its folder."),
    Condition("credit.options",
              Where(lambda value, get: f"options of {get(ESTIMATOR)}: {find_estimator(get(ESTIMATOR)).options}",
                    lambda value, get: set(value or ()) <= set(find_estimator(get(ESTIMATOR)).options))),
    Condition("critic.enable", OffOrNull, f"The estimator has no critic. Or choose {' or '.join(CRITICS)}.",
              {ESTIMATOR: WITHOUT_CRITIC}),
    *(Condition("critic.enable", allowed, "The estimator needs a critic. Or choose one without, such as grpo.",
                {ESTIMATOR: names})
      # null is verl's choice, which knows `gae` only
      for names, allowed in ((["gae"], On | NoneType), (SWITCHED_CRITICS, On))),
    *(Condition("critic.model.path",
                Where("the initial model of the critic, such as {actor_rollout_ref.model.path}",
                      lambda path, get: path != VERL_CRITIC),
                f"This one is verl's example. Or add +overlay/algorithm={overlay}.", {ESTIMATOR: names})
      for names, overlay in ((["gae"], "ppo"), (SWITCHED_CRITICS, "turn_ppo"))),
    Condition("credit.truncated", Literal["as_is", "drop"],
              "bootstrap adds the critic's value of the last state, and the estimator has no critic, or does not use "
              f"that value (bootstraps=True declares it). Or choose {' or '.join(CRITICS)}.",
              {ESTIMATOR: WITHOUT_BOOTSTRAP}),
    *(Condition(key, Discount,
                "Otherwise an episode that is never solved has the value of a solved one, because the limit no longer "
                "ends it. Set it to 0.99, for example, or credit.step_cost above 0.",
                {ESTIMATOR: names, "credit.truncated": ["bootstrap"], "credit.step_cost": [0]})
      for key, names in (("algorithm.gamma", ["gae"]), ("credit.turn_gamma", TURN_CRITICS))),
    Condition("agent.options.turns_left", OffOrNull,
              "A model that is told the turns left takes the limit for a part of the task, and no value of a state "
              "with 0 turns left is learned. Or set credit.truncated=as_is.", {"credit.truncated": ["bootstrap"]}),
    Condition("algorithm.use_kl_in_reward", Off,
              f"The estimator uses the rewards of turns, which have no KL penalty. Set {ACTOR}.use_kl_loss instead.",
              {ESTIMATOR: TURN_ESTIMATORS}),
    # Groups of episodes
    *(Condition(f"{GROUPS}.{key}", equal_to(source), f"So many episodes are played. Leave it out, and set {source}.")
      for key, source in (("group_size", f"{ROLLOUT}.n"), ("val_group_size", f"{ROLLOUT}.val_kwargs.n"))),
    *(Condition(key, Several,
                "The estimator compares the episodes of a task. Or choose gae, reinforce_plus_plus or turn_returns.",
                {ESTIMATOR: GROUPED})
      for key in (f"{ROLLOUT}.n", f"{GROUPS}.min_group_size")),
    Condition(f"{GROUPS}.min_group_size", Where(f"a whole number from 1 to {ROLLOUT}.n={{{ROLLOUT}.n}}", _group_size)),
    *(Condition(key, Off, f"It drops groups that the estimator uses. Or choose {' or '.join(UNIFORM_IS_ZERO)}.",
                {ESTIMATOR: USES_UNIFORM})
      for key in (f"{GROUPS}.skip_uniform", f"{FILTER}.enable")),
    Condition(f"{FILTER}.metric", Literal["reward", "success"], when={f"{FILTER}.enable": [True]}),
    Condition("horizon.adaptive", NoneType,
              "It needs the success rate of all groups, and the filter drops those that all succeed or all fail. "
              "skip_uniform works with it.", {f"{FILTER}.enable": [True]}),
    # Asynchronous rollout
    Condition(MODE, Literal[SYNC, PARTIAL, SEPARATE], "Others of verl do not suit episodes."),
    Condition(MODE, Literal[SYNC, PARTIAL],
              "The engines receive weights over NCCL, and a machine has one CPU. Add +overlay/rollout=partial instead.",
              {"trainer.device": ["cpu"]}),
    *(Condition(f"{V1}.sampler.custom_sampler.{key}", Literal[name], "The overlays of rollout set it.", {MODE: modes})
      for modes, sampler, module in (([SYNC], "EpisodeSampler", "sampler"),
                                     (ASYNCHRONOUS, "PartialEpisodeSampler", "partial_sampler"))
      for key, name in (("name", sampler), ("path", f"pkg://verl_agent.training.{module}"))),
    Condition("actor_rollout_ref.hybrid_engine", On,
              "Without it verl's separate_async fails at its start (trainer_separate_async.py:181), and the other "
              "modes ignore it."),
    *(Condition(f"{ROLLOUT}.{key}", Literal[value],
                "Engine and trainer share the devices. Leave it, or add +overlay/rollout=separate.",
                {MODE: [SYNC, PARTIAL]})
      for key, value in (("nnodes", 0), ("checkpoint_engine.backend", "naive"))),
    Condition(f"{CORRECTION}.rollout_is", Weights,
              "Several versions of the weights sample an episode, so the loss needs the ratio of probabilities. Add "
              "+overlay/correction=token_is after the other overlays, or leave out +overlay/rollout=partial.",
              {MODE: ASYNCHRONOUS}),
    Condition(f"{V1}.sampler.max_off_policy_threshold", Several,
              "An episode is trained on at most this value - 1 updates after its dispatch: 1 would be synchronous, "
              "null unbounded. Set it to 3, for example.", {MODE: ASYNCHRONOUS}),
    Condition(f"{V1}.sampler.max_off_policy_strategy", Literal["wait"],
              "Another one throws finished groups away, most of them of tasks that take long, and training prefers "
              "easy tasks.", {MODE: ASYNCHRONOUS}),
    *(condition
      for mode, section in ((PARTIAL, "colocate_async"), (SEPARATE, "separate_async"))
      for condition in (
          Condition(f"{V1}.{section}.num_warmup_batches", Warmup,
                    "At 0 nothing is in flight during an update; above 1 more groups could become too old "
                    "than one step trains on. Set it to 0.5.", {MODE: [mode]}),
          Condition(f"{V1}.{section}.num_warmup_batches",
                    Where(lambda share, get: f"{ceil(100 / get(BATCH)) / 100:g} or more, one group of {BATCH}",
                          lambda share, get: share * get(BATCH) >= 1),
                    "With less no episode would be in flight during an update.", {MODE: [mode]}))),
    Condition(f"{FILTER}.max_inflight_gen_batches", Literal[1],
              "It has no effect: each filtered group is replaced by one other.",
              {MODE: ASYNCHRONOUS, f"{FILTER}.enable": [True]}),
    Condition("horizon.adaptive", NoneType,
              "It would start a stage by the results of episodes that still have the limit of an earlier one. Set "
              "horizon.steps_per_stage, or leave out +overlay/rollout=partial.", {MODE: ASYNCHRONOUS}),
    Condition("actor_rollout_ref.model.mtp.enable_rollout", Off,
              "An interrupted reply continues with the random numbers of its seed and position, and speculative "
              "decoding begins with the first ones again. Or leave out +overlay/rollout=partial.",
              {MODE: ASYNCHRONOUS, "actor_rollout_ref.model.mtp.enable": [True]}),
    # Engines on devices of their own, see verl 0.9.1, trainer_separate_async.py, `__init__`
    *(Condition(f"{ROLLOUT}.{key}", Positive, "The engines need devices of their own.", {MODE: [SEPARATE]})
      for key in ("nnodes", "n_gpus_per_node")),
    Condition(f"{ROLLOUT}.checkpoint_engine.backend",
              Where("nccl or another one between devices", lambda backend, get: backend != "naive"),
              "naive sends weights within a device only.", {MODE: [SEPARATE]}),
    Condition(f"{V1}.separate_async.hybrid_rollout.enable_switch", Off,
              f"The sampler would count the groups that {FILTER} replaces more than once.", {MODE: [SEPARATE]}),
    Condition(f"{V1}.separate_async.parameter_sync_step", Literal[1],
              "Metrics, token data and the bound of staleness count one transfer of the weights in each step.",
              {MODE: [SEPARATE]}),
    Condition(MINI, equal_to(BATCH), "A step makes one update.", {MODE: [SEPARATE]}),
    *UPDATE_CONDITIONS,
    *TEACHER_CONDITIONS,
    # Experts of the rollout, which the update replays
    *(Condition(key, allowed, why, {f"{ACTOR}.megatron.router_replay.mode": ["R3"]})
      for key, allowed, why in (
          (f"{ROLLOUT}.enable_rollout_routing_replay", On, "The engine returns no experts without it."),
          (f"{ROLLOUT}.name", ["vllm"], "Others were not tried."),
          (MODE, [SYNC], "A reply may have experts of several weights."),
          ("credit.truncated", ["as_is", "drop"], "The engine did not read the state that bootstrap appends."),
      )),
    # Contexts that remove turns: an episode makes several rows
    Condition(ESTIMATOR, SEVERAL_ROWS,
              "The context splits an episode into several rows, which others take for episodes.", {KEEP: EDITS}),
    Condition(f"{ACTOR}.loss_agg_mode", Literal["token-mean"],
              "The context splits an episode into several rows, and others weight it by its rows.", {KEEP: EDITS}),
    Condition("algorithm.use_kl_in_reward", Off,
              "The context splits an episode into several rows, and only the penalty of the last counts.",
              {KEEP: EDITS}),
    # Devices
    Condition("trainer.n_gpus_per_node",
              Where(lambda ranks, get: f"a whole number from 1 to {len(os.sched_getaffinity(0))}",
                    lambda ranks, get: type(ranks) is int and 1 <= ranks <= len(os.sched_getaffinity(0))),
              "Without a GPU each rank needs a core of its machine.", {"trainer.device": ["cpu"]}),
    Condition(f"{ROLLOUT}.tensor_model_parallel_size",
              Where("a divisor of trainer.n_gpus_per_node={trainer.n_gpus_per_node} * trainer.nnodes={trainer.nnodes}",
                    lambda size, get: type(size) is int and size > 0
                    and get("trainer.n_gpus_per_node") * get("trainer.nnodes") % size == 0)),
    # Token budgets and batches
    Condition("data.overlong_prompt", OverlongPrompt),
    Condition(f"{ROLLOUT}.max_model_len",
              Where(f"null, or at least data.max_prompt_length={{data.max_prompt_length}} + {RESPONSE}={{{RESPONSE}}}",
                    lambda size, get: size is None or get("data.max_prompt_length") + get(RESPONSE) <= int(size)),
              "Lower them, or raise it."),
    *(Condition(key, at_most(RESPONSE), "That is the budget of the whole episode after its prompt.")
      for key in ("episode.max_tokens_per_turn", "episode.max_tokens")),
    *(Condition(BATCH, _divided_by(mini),
                f"A step is split into mini-batches of so many tasks. Or set {mini} to a divisor.", when)
      for mini, when in ((MINI, {}), (f"{CRITIC}.ppo_mini_batch_size", {ESTIMATOR: CRITICS}))),
    # Checkpoints
    *(Condition(f"{model}.checkpoint.save_contents",
                Where(lambda saved, get: f"a list that also has {' and '.join(k for k in KINDS if k not in saved)}",
                      lambda saved, get: set(KINDS) <= set(saved)),
                "Otherwise the run could not resume. Or set trainer.max_restarts=0, and only export the checkpoints.",
                {"trainer.save_freq": SET, "trainer.max_restarts": SET})
      for model in (ACTOR, CRITIC)),
    Condition("trainer.max_critic_ckpt_to_keep", equal_to("trainer.max_actor_ckpt_to_keep"),
              "A checkpoint is removed as a whole."),
    *(Condition(f"{model}.checkpoint.async_save", Off,
                "verl 0.9.1 then never records a checkpoint as complete, so the run could not resume.")
      for model in (ACTOR, CRITIC)),
)
# fmt: on
