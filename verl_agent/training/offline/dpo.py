"""Preference learning (DPO) on pairs of recorded episodes."""

from typing import Any

from verl_agent.config.plan import OfflinePlan
from verl_agent.errors import ConfigError
from verl_agent.sections import section
from verl_agent.training.offline.plan import Rows, check_files
from verl_agent.training.offline.preferences import PreferenceSettings, make_pairs, pairable_records, split_pairs
from verl_agent.training.offline.run import Method
from verl_agent.training.offline.selection import check_agent, content_hash


def pair_rows(plan: OfflinePlan) -> Rows:
    """Check the environment and pair the recorded episodes.

    Raises:
        ConfigError: a setting is not allowed, or the records give no pair of this environment.
    """
    settings = section("preference", PreferenceSettings, plan.value("preference"))
    played, env, batch, passes = plan.played, plan.played.env, plan.batch, plan.actor.passes
    check_files(batch, "train", "validation")
    records = pairable_records(settings, frozenset((item.env, item.id) for item in played.tasks(env.eval_tasks)))
    recorded = {record["env"] for record in records}
    if env.name not in recorded:
        raise ConfigError(
            f"preference.records={settings.records!r} has episodes of {', '.join(sorted(recorded))}, but this recipe "
            f"is for env.name={env.name!r}. Set preference.records to episodes of it, or choose another recipe."
        )
    train, validation = split_pairs(make_pairs(records, settings), settings.val_share)
    if (most := batch.most) > 0:
        train = train[:most]
    if (most := batch.most_val) > 0:
        validation = validation[:most]
    remark = check_agent(played, [pair.better for pair in [*train, *validation]], "preference.records")
    if played.new_agent().context.edits:
        raise ConfigError(
            f"agent.context.keep={played.agent.context.get('keep')!r} splits an episode into several samples, and a "
            "pair needs one of each side. Play and train with agent.context.keep=all."
        )
    if passes.packed and 2 * plan.lengths.row > passes.most_tokens(plan.lengths.row):
        raise ConfigError(
            f"data.max_token_len_per_gpu={passes.tokens} must hold both episodes of a pair: at "
            f"least twice data.max_length={plan.lengths.row}."
        )
    if bool(batch.val_files) != bool(settings.val_share):
        raise ConfigError(
            f"preference.val_share={settings.val_share:g} and data.val_files={batch.val_files!r} contradict each "
            "other. To validate, set a share above 0 and data.val_files=validation; otherwise set 0 and null."
        )

    def datasets(encoder: Any) -> tuple[Any, Any]:
        from verl_agent.training.offline.encoding import PairDataset

        return PairDataset(train, encoder), PairDataset(validation, encoder) if validation else None

    return Rows(
        count=len(train),
        val_count=len(validation),
        datasets=datasets,
        facts={"pairs": content_hash([pair.fingerprint for pair in train])},
        summary=f"{len(train)} pairs of {len({pair.task for pair in train})} tasks of {', '.join(sorted(recorded))}, "
        f"{len(validation)} to validate on" + (f"; {remark}" if remark else ""),
        recorded=frozenset((pair.better["env"], pair.better["task"]) for pair in train),
    )


TRAINER = "verl_agent.training.offline.dpo_trainer:PreferenceTrainer"
DPO = Method("dpo", "agent_dpo", "preference learning", pair_rows, TRAINER, ["loss", "margin"])
