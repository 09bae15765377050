"""Test the plan of a run: its fields, their keys and their readers."""

import ast
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest

import verl_agent
from verl_agent.config import plan_parts
from verl_agent.config.keys import FREE, leaves, reference
from verl_agent.config.plan import OfflinePlan, RunPlan
from verl_agent.config.plan_parts import Layout, Schedule, read_part

PLAYED = {
    "env": {"name": "guess_number"},
    "horizon": {"max_turns": [2]},
    "episode": {"max_tokens_per_turn": 8},
    "agent": {"name": "raw"},
}
SECTIONS = {
    "key": ("actor_rollout_ref.actor", "critic", "data"),
    "model": ("actor_rollout_ref.model", "critic.model", "model"),
    "layout": ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp", "engine"),
    "section": ("actor_rollout_ref.actor", "critic", "data", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"),
    "begin": ("ppo_", "", "log_prob_"),
}
"""Sections that stand for a name in braces."""


def keys_of_parts() -> Iterator[tuple[str, str]]:
    """Yield the name of each field of a part and each of its keys."""
    for kind in vars(plan_parts).values():
        if isinstance(kind, type) and is_dataclass(kind):
            for one in fields(kind):
                yield from ((f"{kind.__name__}.{one.name}", key) for key in one.metadata.get("keys", ()))


def spelled(key: str) -> Iterator[str]:
    """Yield a key with each choice of its sections in braces."""
    for name, sections in SECTIONS.items():
        if f"{{{name}}}" in key:
            yield from (one for section in sections for one in spelled(key.replace(f"{{{name}}}", section)))
            return
    yield key


@pytest.mark.parametrize(("field", "key"), list(keys_of_parts()))
def test_every_key_of_a_part_is_a_setting(field, key):
    """A misspelt key would read as null."""
    if key.startswith(FREE):  # keyword arguments of another program
        return
    known = {name for base in ("agent_base", "agent_sft", "agent_dpo") for name, _ in leaves(reference(base))}
    assert any(name == one or name.startswith(f"{one}.") for one in spelled(key) for name in known)


def test_every_field_of_a_plan_is_read():
    parts = Path(plan_parts.__file__)
    modules = [ast.parse(path.read_text("utf-8")) for path in Path(verl_agent.__file__).parent.rglob("*.py")]
    read = {node.attr for module in modules for node in ast.walk(module) if isinstance(node, ast.Attribute)}
    assert len(list(keys_of_parts())) > 60 and parts.is_file()
    assert {field for field, _ in keys_of_parts() if field.partition(".")[2] not in read} == set()


def test_a_field_has_the_first_of_its_keys_that_is_set(tmp_path):
    kept = [
        read_part(Schedule, {"trainer": trainer}, folder=tmp_path).keep
        for trainer in ({"max_ckpt_to_keep": 3}, {"max_actor_ckpt_to_keep": 0, "max_ckpt_to_keep": 3}, {})
    ]
    assert kept == [3, 0, None]


def test_each_process_that_plays_has_a_judge_for_each_environment_with_a_rubric():
    judge = {"rubric": {"question": "Solved?"}, "api": {"name": "m"}}
    entries = [{"name": "guess_number"}, {"name": "textcraft", "judge": judge}, {"name": "babyai", "judge": judge}]
    values = {**PLAYED, "trainer": {"default_local_dir": "run"}}
    values["actor_rollout_ref"] = {"rollout": {"agent": {"num_workers": 3}}}
    assert RunPlan.of({**values, "judge": judge}).judges == 3
    assert RunPlan.of({**values, "env": {**PLAYED["env"], "mixture": entries}}).judges == 6
    assert RunPlan.of(values).judges == 0


def test_a_plan_cannot_be_changed():
    plan = RunPlan.of({**PLAYED, "trainer": {"nnodes": 2, "n_gpus_per_node": 4, "default_local_dir": "run"}})
    assert (plan.layout.ranks, plan.schedule.folder) == (8, Path("run").resolve())
    with pytest.raises(FrozenInstanceError):
        plan.layout = Layout  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        plan.layout.nodes = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("algorithm", "enable", "trained"), [("grpo", None, 1), ("gae", None, 2), ("gae", False, 1), ("grpo", True, 2)]
)
def test_a_critic_is_trained_if_verl_needs_one(algorithm, enable, trained):
    settings = {"algorithm": {"adv_estimator": algorithm}, "critic": {"enable": enable}}
    assert len(RunPlan.of({**PLAYED, **settings}).trained) == trained


def test_passes_are_rows_or_packed_tokens():
    data = {"micro_batch_size_per_gpu": 2, "max_token_len_per_gpu": 5000}
    packed, rows = (OfflinePlan.of({**PLAYED, "data": {**data, "use_dynamic_bsz": one}}) for one in (True, False))
    assert (packed.actor.passes.most_tokens(300), rows.actor.passes.most_tokens(300)) == (5000, 600)
