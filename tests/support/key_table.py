"""Table of verl's keys (verl_agent/config/verl_keys.yaml), written from the keys that traced runs read.

`make trace-settings` runs every combination of `RUNS` and writes the table. For each key it finds the condition
that tells the runs that read it from the others. Keys that no run read and that verl's source reads are marked with the
place (`config_reads`): runs on a CPU do not reach all code.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tests.support.config_reads import CHECKPOINTS, ENGINES, OPTIMIZERS, references, verl_reads
from tests.support.own_reads import is_read
from tests.support.traced_runs import RECIPE, RUNS, run
from verl_agent.config.keys import FREE, leaves, reference
from verl_agent.config.search_path import register_config
from verl_agent.config.unread import SET, TABLE

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
SWITCHES = (
    *("algorithm.adv_estimator", f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.type"),
    *("algorithm.filter_groups.enable", f"{ACTOR}.strategy", "trainer.v1.trainer_mode"),
    "actor_rollout_ref.rollout.name",
    *("actor_rollout_ref.model.lora_rank", f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.loss_agg_mode"),
    *(f"{ACTOR}.use_dynamic_bsz", f"{CORRECTION}.rollout_rs", f"{CORRECTION}.rollout_is", f"{CORRECTION}.bypass_mode"),
    *("trainer.save_freq", "trainer.test_freq", "trainer.val_before_train"),
)
"""Keys on which the use of other keys may depend; each is on in another set of runs."""
PAIRS = ((f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"), ("trainer.test_freq", "trainer.val_before_train"))
"""Switches of which either one suffices."""
OWN = ("env.", "agent.", "horizon.", "episode.", "credit.", "hydra.", "offload", "_target_")
"""Sections of this package, whose readers `own_reads` finds, and names that are no settings."""
LOOSE = {"megatron", "qat", "turbo_config", "disaggregation", "trtllm", "mtp", "router_replay", "profiler"}
LOOSE |= {"global_profiler", "skip", "transfer_queue", "ray_kwargs", "prometheus", "engine_kwargs", "checkpoint_engine"}
LOOSE |= {"wrap_policy", "lora", "tiled_mlp", "optim", "hybrid_rollout"}
"""Sections that `config_reads` does not follow: a key counts as read if code of verl has its name."""
HANDED_ON = {
    **{f"{section}.wrap_policy.": "verl/utils/fsdp_utils.py" for section in ENGINES},
    **{f"{section}.turbo_config.": "the section is handed on to MindSpeed" for section in ENGINES},
    **{f"{section}.warmup_style": "verl/workers/config/optimizer.py" for section in OPTIMIZERS},
    **{f"actor_rollout_ref.{name}.ulysses_sequence": "verl/workers/config/actor.py" for name in ("actor", "ref")},
    **{f"{section}.mbridge_config": "verl/utils/checkpoint/megatron_checkpoint_manager.py" for section in CHECKPOINTS},
    "actor_rollout_ref.ref.strategy": "verl/workers/config/actor.py",
    "critic.strategy": "verl/workers/config/critic.py",
    "critic.megatron.override_transformer_config.": "the section is handed on to Megatron",
    "global_profiler.global_tool_config.": "the section is handed on to the profiler",
    "transfer_queue.backend.": "the section is handed on to TransferQueue",
    "model_engine": "verl/trainer/config/ppo_trainer.yaml",
}
"""Keys and sections that reach their reader in a way that neither traces nor `config_reads` follow."""
OUTER = ("actor_rollout_ref.ref.", "critic.")
"""Sections whose row has a condition for all keys in them, which have rows of their own besides."""
WRITTEN = ("when", "unread", "untraced")
HEADER = "# Keys of verl and the settings under which they have an effect; config/unread.py explains the columns.\n"


def is_verls(key: str) -> bool:
    """Return True for keys that belong into the table."""
    return not (key.startswith((*OWN, *FREE)) or key.endswith("_target_"))


@cache
def known_keys() -> Mapping[str, Any]:
    """Return verl's keys of both engines, with their unresolved values."""
    both = dict(leaves(reference("agent_base", "model_engine=megatron"))) | dict(leaves(reference("agent_base")))
    return {key: value for key, value in sorted(both.items()) if is_verls(key)}


@cache
def composed(name: str) -> Mapping[str, Any]:
    """Return the values of a traced run by key."""
    register_config()
    with initialize_config_dir(str(_recipe_folder()), version_base=None):
        config = compose("recipe", list(RUNS[name]), return_hydra_config=True)
    OmegaConf.set_struct(config, False)
    plain = OmegaConf.to_container(config)
    return {key: OmegaConf.select(config, key, throw_on_missing=False) for key in SWITCHES} | dict.fromkeys(
        key for key, _ in leaves(plain) if key not in SWITCHES
    )


@cache
def _names() -> Mapping[str, str]:
    """Return the names of attributes and the texts in verl's code, each with a file; classes of settings excepted."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    root, found = Path(spec.origin).parent, dict[str, str]()
    for path in sorted(root.rglob("*.py")):
        place = f"verl/{path.relative_to(root)}"
        if "/config/" in place or place.startswith(("verl/experimental/fully_async", "verl/model_merger")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.setdefault(node.attr, place)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.setdefault(node.value, place)
    return found


def naming(name: str) -> str | None:
    """Return a file of verl whose code has a name, as an attribute or as a text."""
    return _names().get(name)


def with_references(read: set[str]) -> set[str]:
    """Return keys with those to which their values in the base YAML refer."""
    found, waiting = set(read), list(read)
    while waiting:
        key = waiting.pop()
        new = references(key, known_keys().get(key)) - found
        found |= new
        waiting += new
    return found


def condition(key: str, read_in: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    """Return the condition that holds in the runs that read a key and in no other; empty unless exactly one does.

    Of several conditions, one on a switch in the section of the key is the only one.
    """
    found: dict[str, dict[str, Any]] = {}
    for group in [*((switch,) for switch in SWITCHES if switch != key), *PAIRS]:
        on, off = ([tuple(composed(name)[one] for one in group) for name in names] for names in (read_in, others))
        if len(group) == 1 and set(on).isdisjoint(off):
            values = sorted({value for (value,) in on}, key=str)
            numbers = all(map(is_set, values)) and not any(is_set(value) for (value,) in off)
            if numbers or not group[0].endswith(".strategy"):  # no run on a CPU has FSDP 1
                found[group[0]] = {group[0]: SET if numbers else values}
        elif all(any(map(is_set, values)) for values in on) and not any(any(map(is_set, values)) for values in off):
            found["|".join(group)] = dict.fromkeys(group, SET)
    near = [one for one in found.values() if key.startswith(f"{next(iter(one)).rpartition('.')[0]}.")]
    candidates = list(found.values()) if len(found) == 1 else near
    return candidates[0] if others and len(candidates) == 1 else {}


def is_set(value: Any) -> bool:
    """Return True for true, for a number above 0 and for a text."""
    return bool(value) and not (isinstance(value, int | float) and value <= 0)


def table(reads: Mapping[str, set[str]], earlier: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the rows of all keys."""
    source, found = verl_reads("agent_base"), {name: with_references(keys) for name, keys in reads.items()}
    in_source = with_references(set(source))
    rows = {}
    for key in known_keys():
        having = [name for name in found if key in composed(name)]
        read_in = [name for name in having if key in found[name]]
        kept = {column: value for column, value in _row(earlier, key).items() if column not in WRITTEN}
        place = next((place for name, place in HANDED_ON.items() if key.startswith(name)), None)
        row: dict[str, Any] = {}
        if read_in:
            when = condition(key, read_in, [name for name in having if name not in read_in])
            outer = [earlier[section].get("effect") for section in OUTER if key.startswith(section)]
            row = {"when": when} if when and when not in (kept.get("effect"), *outer) else {}
        elif key in in_source:
            row = {"untraced": source[key].partition(":")[0] if key in source else "a key whose value refers to it"}
        elif place or (LOOSE & set(key.split(".")) and (place := naming(key.rpartition(".")[2]))):
            row = {"untraced": place}
        elif is_read(key):
            row = {"untraced": "verl_agent"}
        else:
            row = {"unread": True}
        rows[key] = row | kept
    own = {key: dict(row) for key, row in earlier.items() if key in OUTER or not is_verls(key)}
    return own | dict(shorten(rows))


def _row(table: Mapping[str, Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """Return the columns of a key: those of its own row, or of the innermost section with a row."""
    names = [key, *(f"{key.rsplit('.', depth)[0]}." for depth in range(1, key.count(".") + 1))]
    return next((table[name] for name in names if name in table and name not in OUTER), {})


def shorten(rows: Mapping[str, dict[str, Any]], section: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows, with one row for a section whose keys have equal rows."""
    inside = {key: row for key, row in rows.items() if key.startswith(section)}
    if section and len(inside) > 1 and all(row == next(iter(inside.values())) for row in inside.values()):
        yield section, next(iter(inside.values()))
        return
    for name in dict.fromkeys(key[len(section) :].partition(".")[0] for key in inside):
        key = f"{section}{name}"
        if key in inside:
            yield key, inside[key]
        else:
            yield from shorten(inside, f"{key}.")


def write(rows: Mapping[str, Mapping[str, Any]], path: Path = TABLE) -> None:
    """Write the table, one row a line."""
    lines = []
    for key, row in rows.items():
        text = yaml.safe_dump(dict(row), default_flow_style=True, sort_keys=False, width=1000, allow_unicode=True)
        lines.append(f"{key}: {text}")
    path.write_text(HEADER + "".join(lines), encoding="utf-8")


@cache
def _recipe_folder() -> Path:
    from tempfile import mkdtemp

    folder = Path(mkdtemp())
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    names = [name for name in RUNS if len(sys.argv) < 3 or (folder / name / "reads").is_dir()]
    write(
        table(
            {name: set(run(name, folder / name)) for name in names},
            yaml.safe_load(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {},
        )
    )
