"""Test that the table of verl's keys is complete, and that files of this project set only keys that code reads.

tests/support/config_reads.py finds the reads in verl's source and own_reads.py those of this package; both state their
limits. Tests of losses, estimators and engines show what a key does.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.composing import COMMON, RECIPES, ROOT, SHARED, kind, written_in
from tests.support.config_reads import references, verl_reads
from tests.support.own_reads import is_read
from verl_agent.config.catalogue import KeyRow, rows_of, verl_rows
from verl_agent.config.checks import FIELDS
from verl_agent.config.keys import FREE, leaves, reference

OWN = ("env.", "agent.", "horizon.", "episode.", "credit.", "judge.", "data.custom_cls.", "evaluation.", "evolve.")
OWN += ("episodes.", "preference.", "data.max_len")
OWN += ("data.overlong_prompt", "trainer.hang_timeout_s", "trainer.max_restarts", "trainer.test_best")
OWN += (
    "trainer.play",
    "trainer.v1.sampler.sampler_kwargs.",
)
"""Sections that this package reads."""
HANDED_ON = ("data.custom_cls.", *(key for key, row in verl_rows().items() if row.untraced))
"""Keys and sections that reach their reader in a way that the search of the source does not follow."""

NOT_VERLS = ("env.", "agent.", "horizon.", "episode.", "credit.", "judge.", "hydra.", "offload", "_target_")
"""Sections of this package, and names that are no settings."""
OUTER = ("actor_rollout_ref.ref.", "critic.")
"""Sections whose row has a condition for all keys in them, which have rows of their own besides."""


def is_verls(key: str) -> bool:
    """Return True for keys that belong into the table."""
    return not (key.startswith((*NOT_VERLS, *FREE)) or key.endswith("_target_"))


@cache
def known_keys() -> Mapping[str, Any]:
    """Return verl's keys of both engines, with their unresolved values."""
    both = dict(leaves(reference("agent_base", "model_engine=megatron"))) | dict(leaves(reference("agent_base")))
    return {key: value for key, value in sorted(both.items()) if is_verls(key)}


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
    own = {name for name in verl_rows() if name not in OUTER and name.endswith(".")}
    return key in verl_rows() or any(f"{key}.".startswith(name) for name in own)


@pytest.mark.parametrize("engine", ["dp", "megatron"])
def test_every_key_of_verl_has_a_row_in_the_table(engine: str):
    keys = {key for key, _ in leaves(reference("agent_base", f"model_engine={engine}")) if is_verls(key)}
    assert len(keys) > 800
    assert {key for key in keys if not covered(key)} == set(), "add rows: `unread: true`, unless verl reads the key"


def test_every_row_of_the_table_stands_for_a_key():
    bases = ("agent_base", "agent_sft", "agent_dpo")
    keys = [*known_keys(), *(key for base in bases for key, _ in leaves(reference(base)))]
    keys += [f"actor_rollout_ref.{part}{field}" for part in ("rollout", "actor.fsdp_config") for field in FIELDS]
    for name, row in verl_rows().items():
        pattern = f"{name}*" if name.endswith(".") else name
        assert any(fnmatchcase(f"{key}.", pattern) or fnmatchcase(f"{key}.", f"{pattern}.*") for key in keys), name
        switches = {switch for condition in row.conditions for switch in condition}
        assert switches <= set(keys), name


def test_no_key_that_verls_source_reads_is_marked_as_unread():
    reads = verl_reads("agent_base")
    assert {key for key in known_keys() if key in reads and _row(key).unread} == set()


def _row(key: str) -> KeyRow:
    return (rows_of(key) or [KeyRow()])[0]


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
