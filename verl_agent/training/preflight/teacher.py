"""Conditions on the settings of on-policy distillation, and checks that a teacher can read the policy's tokens."""

from types import NoneType
from typing import Literal

from verl_agent.config.algorithms import ESTIMATOR, WITHOUT_CRITIC
from verl_agent.config.plan_parts import DISTILLATION_LOSS, TEACHER_PATH, Lengths, TrainedModel
from verl_agent.errors import ConfigError
from verl_agent.models.hf import check_context, load_config, load_tokenizer, positions
from verl_agent.training.preflight.conditions import Condition, Where
from verl_agent.training.preflight.update_conditions import ACTOR, FiniteFactor, Off, On

TAUGHT = {"distillation.enabled": [True]}
"""Condition of a run with a teacher."""
ALONE = {**TAUGHT, f"{DISTILLATION_LOSS}.use_task_rewards": [False]}
SAMPLER = "trainer.v1.sampler.sampler_kwargs"

# fmt: off
TEACHER_CONDITIONS: tuple[Condition, ...] = (
    Condition(TEACHER_PATH, Where("the folder of a model, a checkpoint, a run, or a hub id",
                                  lambda path, get: isinstance(path, str) and path != ""),
              "The teacher has the tokenizer of the policy.", TAUGHT),
    Condition(TEACHER_PATH, Where("a model on this machine or the hub",
                                  lambda path, get: not str(path).startswith("api:") and "://" not in str(path)),
              "A model behind an API does not score the tokens that the policy wrote. Play its episodes with "
              "`verl-agent eval`, and train on them with `verl-agent sft`.", TAUGHT),
    Condition(TEACHER_PATH, Where("another model than the policy",
                                  lambda path, get: path != get("actor_rollout_ref.model.path")),
              f"Both have the same log-probs, so that nothing is learnt. With {DISTILLATION_LOSS}.use_task_rewards="
              "true it keeps the policy near its beginning.", ALONE),
    Condition(f"{DISTILLATION_LOSS}.loss_mode", Literal["k1"],
              "Its gradient is that of the reverse KL divergence. forward_kl_topk needs the teacher's most probable "
              "tokens, which the pass that scores sampled tokens does not return.", TAUGHT),
    Condition(f"{DISTILLATION_LOSS}.use_policy_gradient", On,
              "The gradient of k1 itself does not depend on the teacher.", TAUGHT),
    Condition(f"{DISTILLATION_LOSS}.loss_max_clamp", FiniteFactor | NoneType, when=TAUGHT),
    Condition(f"{DISTILLATION_LOSS}.distillation_loss_coef", FiniteFactor, when=TAUGHT),
    *(Condition(key, Off, "The teacher takes the place of the initial model.", TAUGHT)
      for key in (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")),
    *(Condition(key, Off, "It leaves out groups of equal returns, from which a teacher teaches, too.", TAUGHT)
      for key in (f"{SAMPLER}.skip_uniform", "algorithm.filter_groups.enable")),
    Condition(ESTIMATOR, WITHOUT_CRITIC,
              f"A critic learns the reward, which the loss does not have. Or set {DISTILLATION_LOSS}."
              "use_task_rewards=true.", ALONE),
    Condition(f"{ACTOR}.strategy", Literal["fsdp", "fsdp2"], "Others were not tried with a teacher.", TAUGHT),
)
# fmt: on


def check_teacher(teacher: str, policy: TrainedModel, lengths: Lengths) -> None:
    """Check that a teacher gives the policy's token ids the same meaning, and that it can read whole episodes.

    Args:
        teacher: its folder or hub id.

    Raises:
        ConfigError: it has another tokenizer or vocabulary, or a shorter context.
    """
    config, known = load_config(teacher, TEACHER_PATH), f"{TEACHER_PATH}={teacher!r}"
    check_context(positions(config), lengths.prompt, lengths.response, known)
    own = load_tokenizer(policy.tokenizer_path, "actor_rollout_ref.model.path").get_vocab()
    its = load_tokenizer(teacher, TEACHER_PATH).get_vocab()
    if different := sorted(token for token in own.keys() | its.keys() if own.get(token) != its.get(token)):
        raise ConfigError(
            f"{known} has another tokenizer than the policy: {len(different)} tokens differ, such as {different[0]!r}. "
            "Choose a teacher with the policy's tokenizer, such as a larger model of its family; or play the teacher's "
            "episodes with `verl-agent eval`, and train on them with `verl-agent sft`."
        )
    written = load_config(policy.path, "actor_rollout_ref.model.path").get_text_config().vocab_size
    readable = config.get_text_config().vocab_size
    if readable < written:
        raise ConfigError(
            f"{known} has {readable} tokens, and the policy writes {written}: it cannot read all of them. Choose a "
            "teacher with as many."
        )
