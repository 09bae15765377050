"""Runs of the benchmark and their files; a worker process imports this module by name."""

import json
from pathlib import Path

import torch

from tests.bench.learning.direct.arms import STUDIES
from tests.bench.learning.direct.game import LENGTH, TOKENS
from tests.bench.learning.direct.learner import Learner, warm_start
from tests.bench.learning.direct.model import Transformer


def train(study: str, arm: str, seed: int, folder: Path) -> None:
    """Train one run and write its evaluations; the warm start of a seed is shared by all arms."""
    torch.set_num_threads(1)
    policy = Transformer(TOKENS, TOKENS, LENGTH)
    policy.load_state_dict(torch.load(warm_file(folder, seed)))
    learner = Learner(STUDIES[study][arm], seed, policy)
    points = [[point.step, point.env_steps, point.seconds, point.success] for point in learner.run()]
    measured = {"advantages": learner.mean_advantages(), "staleness": learner.mean_staleness}
    write(run_file(folder, study, arm, seed), {"points": points, **measured})


def warm(seed: int, folder: Path) -> None:
    """Write the policy of a seed after imitation."""
    torch.set_num_threads(1)
    file = warm_file(folder, seed)
    torch.save(warm_start(seed).state_dict(), file.with_suffix(".part"))
    file.with_suffix(".part").rename(file)


def warm_file(folder: Path, seed: int) -> Path:
    """Return the file of a seed's policy after imitation."""
    return folder / f"warm_{seed}.pt"


def run_file(folder: Path, study: str, arm: str, seed: int) -> Path:
    """Return the file of a finished run."""
    return folder / study / f"{arm.replace(' ', '_')}_{seed}.json"


def write(file: Path, content: object) -> None:
    """Write a JSON file at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".part").write_text(json.dumps(content), encoding="utf-8")
    file.with_suffix(".part").rename(file)
