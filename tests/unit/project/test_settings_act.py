"""Test that the table of verl's keys is complete, and that files of this project set only keys that code reads.

tests/support/key_table.py writes the table from traced runs. config_reads.py finds the reads in verl's source and
own_reads.py those of this package; both state their limits. Tests of losses, estimators and engines show what a key
does.
"""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.support.composing import COMMON, RECIPES, ROOT, SHARED, kind, written_in
from tests.support.config_reads import references, verl_reads
from tests.support.key_table import OUTER, condition, contradictions, is_verls, known_keys
from tests.support.own_reads import is_read
from tests.support.traced_runs import RECIPE, RUNS, run
from verl_agent.config.catalogue import Row, rows, rows_of
from verl_agent.config.checks import FIELDS
from verl_agent.config.keys import FREE, leaves, reference

OWN = ("env.", "agent.", "horizon.", "episode.", "credit.", "data.custom_cls.", "evaluation.", "evolve.")
OWN += ("episodes.", "preference.", "data.max_len")
OWN += ("data.overlong_prompt", "trainer.hang_timeout_s", "trainer.max_restarts", "trainer.test_best")
OWN += ("trainer.v1.sampler.sampler_kwargs.",)
"""Sections that this package reads."""
HANDED_ON = ("data.custom_cls.", *(key for key, row in rows().items() if row.untraced))
"""Keys and sections that reach their reader in a way that the search of the source does not follow."""


def read_keys(base: str) -> set[str]:
    """Return the keys of a base YAML that verl reads, itself or through a key whose value refers to them."""
    reads, values = verl_reads(base), dict(leaves(reference(base)))
    found = {key for key in values if key in reads or key.startswith(tuple(HANDED_ON))}
    found |= {key for key in reads if key not in values}  # sections, and keys that the YAML does not list
    waiting = [key for key in values if key in found]
    while waiting:
        for name in references(key := waiting.pop(), values[key]) - found:
            found.add(name)
            waiting += [name] if name in values else []
    return found


def covered(key: str) -> bool:
    """Return True if a key has a row, of its own or of the section in which it is."""
    own = {name for name in rows() if name not in OUTER and name.endswith(".")}
    return key in rows() or any(f"{key}.".startswith(name) for name in own)


@pytest.mark.parametrize("engine", ["dp", "megatron"])
def test_every_key_of_verl_has_a_row_in_the_table(engine: str):
    keys = {key for key, _ in leaves(reference("agent_base", f"model_engine={engine}")) if is_verls(key)}
    assert len(keys) > 800
    assert {key for key in keys if not covered(key)} == set(), "run `make trace-settings` to add them"


def test_every_row_of_the_table_stands_for_a_key():
    bases = ("agent_base", "agent_sft", "agent_dpo")
    keys = [*known_keys(), *(key for base in bases for key, _ in leaves(reference(base)))]
    keys += [f"actor_rollout_ref.{part}{field}" for part in ("rollout", "actor.fsdp_config") for field in FIELDS]
    for name, row in rows().items():
        pattern = f"{name}*" if name.endswith(".") else name
        assert any(fnmatchcase(f"{key}.", pattern) or fnmatchcase(f"{key}.", f"{pattern}.*") for key in keys), name
        switches = {switch for condition in row.conditions for switch in condition}
        assert switches <= set(keys), name


def test_no_key_that_verls_source_reads_is_marked_as_unread():
    reads = verl_reads("agent_base")
    assert {key for key in known_keys() if key in reads and _row(key).unread} == set()


def _row(key: str) -> Row:
    return (rows_of(key) or [Row()])[0]


LORA = "actor_rollout_ref.model.target_modules"
VALIDATED = {"trainer.test_freq": "set", "trainer.val_before_train": "set"}


@pytest.mark.parametrize(
    ("key", "read_in", "expected"),
    [
        (LORA, ["lora"], {"actor_rollout_ref.model.lora_rank": "set"}),
        ("trainer.validation_data_dir", ["kl", "rloo", "partial"], VALIDATED),
        ("actor_rollout_ref.actor.fsdp_config.seed", ["lora", "gigpo"], {}),  # only their estimators tell them apart
        ("algorithm.gamma", ["lora", "gigpo"], {"algorithm.adv_estimator": ["gigpo", "reinforce_plus_plus"]}),
    ],
)
def test_a_condition_tells_the_runs_that_read_a_key_from_all_others(key, read_in, expected):
    assert condition(key, read_in, [name for name in RUNS if name not in read_in]) == expected


def test_two_runs_tell_no_condition():
    assert condition("actor_rollout_ref.actor.megatron.dtype", ["megatron"], ["megatron_ppo"]) == {}


def test_an_effect_that_a_run_does_not_read_is_a_contradiction():
    made = {section: {"effect": dict(rows()[section].effect)} for section in OUTER}
    made[LORA] = {"effect": {"actor_rollout_ref.actor.use_kl_loss": "set"}}
    (line,) = contradictions({"kl": set(), "lora": {LORA}, "grpo": set()}, made)
    assert line.startswith(f"{LORA}: ") and line.endswith("not read in kl")


def test_a_finished_trace_is_not_repeated(tmp_path: Path):
    (tmp_path / "reads").mkdir()
    (tmp_path / "reads/1.txt").write_text("trainer.save_freq\t/verl/a.py:1\n")
    (tmp_path / "settings.txt").write_text("\n".join([RECIPE, *RUNS["kl"]]))
    assert run("kl", tmp_path, timeout_s=0) == {"trainer.save_freq": {"/verl/a.py:1"}}


NO_SETTINGS = ("agent_loop.yaml", "router.yaml", "verl_keys.yaml")
"""Files that name a class for verl, and the table of its keys."""
FILES = [*RECIPES, *COMMON, *(path for path in SHARED.rglob("*.yaml") if path.name not in NO_SETTINGS)]
VERL_BASES = {"agent_sft": ("agent_sft",), "agent_dpo": ("agent_dpo",), "cpu_sft": ("agent_sft",)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_sets_only_keys_that_are_read(path: Path):
    base = kind(path) if path in RECIPES else path.stem
    own = OWN
    if base in ("agent_eval", "agent_evolve", "cpu_eval"):
        own, read = ("",), set[str]()
    else:
        read = read_keys(*VERL_BASES.get(base, ("agent_base",)))
    dead = set()
    for key in written_in(path):
        traced = base not in VERL_BASES and covered(key) and not _row(key).unread
        passed = key.startswith((*FREE, *HANDED_ON)) or key.endswith("_target_")
        if not passed and not traced and key not in read and not (key.startswith(own) and is_read(key)):
            dead.add(key)
    assert dead == set()


@pytest.mark.parametrize("base", ["agent_base", "agent_eval", "agent_evolve", "agent_sft", "agent_dpo"])
def test_every_own_key_of_a_base_is_read(base: str):
    sections = ("",) if base in ("agent_eval", "agent_evolve") else OWN
    keys = {key for key in dict(leaves(reference(base))) if key.startswith(sections) and not key.startswith("hydra.")}
    checked = {key for key in keys if not key.startswith((*FREE, *HANDED_ON))}
    assert len(checked) > 10
    assert {key for key in checked if not is_read(key)} == set()


@pytest.mark.parametrize("key", ["credit.scale", "episode.seed", "horizon.window", "env.hosts.retries"])
def test_a_key_that_only_another_section_has_is_not_read(key: str):
    assert not is_read(key)
