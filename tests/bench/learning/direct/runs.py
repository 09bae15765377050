"""Runs of the benchmark and their files; a worker process imports this module by name."""

import json
from pathlib import Path

import torch

from tests.bench.learning.direct.arms import STUDIES
from tests.bench.learning.direct.engine_policy import EnginePolicy, Llama
from tests.bench.learning.direct.game import LENGTH, TOKENS
from tests.bench.learning.direct.learner import Learner, warm_start
from tests.bench.learning.direct.model import Transformer


def train(study: str, arm: str, seed: int, folder: Path) -> None:
    """Train one run and write its evaluations; the warm start of a seed is shared by all arms."""
    torch.set_num_threads(1)
    variant, start = STUDIES[study][arm], warm_file(folder, study, seed)
    policy: Transformer | EnginePolicy
    if variant.engine:
        policy = EnginePolicy(*variant.engine, start, variant.learning_rate)
    else:
        policy = new_transformer()
        policy.load_state_dict(torch.load(start))
    learner = Learner(variant, seed, policy)
    points = [[point.step, point.env_steps, point.seconds, point.success] for point in learner.run()]
    measured = {"advantages": learner.mean_advantages(), "staleness": learner.mean_staleness}
    write(run_file(folder, study, arm, seed), {"points": points, **measured})


def new_transformer() -> Transformer:
    """Return a random policy."""
    return Transformer(TOKENS, TOKENS, LENGTH)


def warm(study: str, seed: int, folder: Path) -> None:
    """Write the policy of a seed after imitation."""
    torch.set_num_threads(1)
    file = warm_file(folder, study, seed)
    part = file.with_suffix(".part")
    if file.suffix:
        torch.save(warm_start(new_transformer, seed).state_dict(), part)
    else:
        warm_start(Llama, seed).write(part)
    part.rename(file)


def warm_file(folder: Path, study: str, seed: int) -> Path:
    """Return the file of a seed's policy after imitation; a folder if the arms of the study have engines."""
    engines = any(arm.engine for arm in STUDIES[study].values())
    return folder / (f"warm_llama_{seed}" if engines else f"warm_{seed}.pt")


def run_file(folder: Path, study: str, arm: str, seed: int) -> Path:
    """Return the file of a finished run."""
    return folder / study / f"{arm.replace(' ', '_')}_{seed}.json"


def write(file: Path, content: object) -> None:
    """Write a JSON file at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".part").write_text(json.dumps(content), encoding="utf-8")
    file.with_suffix(".part").rename(file)
