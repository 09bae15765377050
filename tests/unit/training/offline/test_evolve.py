"""Rounds of exploration and training: order, resuming, folders and settings."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.episodes import talk
from verl_agent.config.catalogue import may_change
from verl_agent.errors import ConfigError
from verl_agent.results.comparison import compare
from verl_agent.results.results import summarize
from verl_agent.training.offline.evolve.report import RoundResult, rounds_table
from verl_agent.training.offline.evolve.rounds import (
    EvolveFolder,
    EvolveSettings,
    Exploration,
    Phase,
    evolve_settings,
    folder_names,
    phases,
)

TWO = [Exploration("a.yaml", "train"), Exploration("b.yaml", "train")]
SETTINGS = {"evolve": {"start": "base", "rounds": 2}, "learn": {"optim": {"lr": 0.1}}}


def settings(**changes) -> EvolveSettings:
    return EvolveSettings(**{"explore": TWO, "learn": "learn.yaml", "output_dir": "runs/x", "rounds": 2, **changes})


def folder(root: Path) -> EvolveFolder:
    return EvolveFolder(root, ["toy", "maze"])


def save(learn: Path) -> None:
    """Write the checkpoint that supervised training leaves in a round."""
    checkpoint = learn / "global_step_4"
    (checkpoint / "huggingface").mkdir(parents=True)
    (checkpoint / "huggingface/config.json").write_text("{}")
    (checkpoint / "huggingface/model.safetensors").write_text("")
    (checkpoint / "optim_world_size_1_rank_0.pt").write_text("")


def test_phases_train_on_the_base_set_then_explore_and_train_in_each_round():
    order = [str(phase) for phase in phases(settings())]
    assert order[:3] == ["0/learn/0", "0/validate/0", "0/validate/1"]
    assert order[3:8] == ["1/explore/0", "1/explore/1", "1/learn/0", "1/validate/0", "1/validate/1"]
    assert len(order) == len(set(order)) == 3 + 2 * 5


def test_rejection_sampling_needs_no_validation():
    order = [str(phase) for phase in phases(settings(rounds=1, validate=False))]
    assert order == ["0/learn/0", "1/explore/0", "1/explore/1", "1/learn/0"]


def test_finished_phases_are_known_after_a_restart(tmp_path):
    first = folder(tmp_path)
    first.claim(SETTINGS, may_change("evolve"))
    save(first.of(Phase(0, "learn")))
    first.finish(Phase(0, "learn"))
    again = folder(tmp_path)
    again.claim(SETTINGS, may_change("evolve"))
    assert again.done == {"0/learn/0"}
    assert again.policy(0) == tmp_path / "round_0/learn/global_step_4/huggingface"


def test_a_finished_training_keeps_its_weights_and_no_shards(tmp_path):
    rounds = folder(tmp_path)
    rounds.claim(SETTINGS, may_change("evolve"))
    save(rounds.of(Phase(1, "learn")))
    rounds.finish(Phase(1, "learn"))
    assert not list(tmp_path.rglob("*.pt"))
    assert (rounds.policy(1) / "model.safetensors").is_file()


def test_rounds_of_another_recipe_raise_config_error(tmp_path):
    folder(tmp_path).claim(SETTINGS, may_change("evolve"))
    with pytest.raises(ConfigError, match=r"rounds of another recipe: learn.optim.lr was 0.1, is now 0.2"):
        folder(tmp_path).claim({**SETTINGS, "learn": {"optim": {"lr": 0.2}}}, may_change("evolve"))


def test_the_number_of_rounds_may_change(tmp_path):
    folder(tmp_path).claim(SETTINGS, may_change("evolve"))
    folder(tmp_path).claim({**SETTINGS, "evolve": {"start": "base", "rounds": 3}}, may_change("evolve"))
    assert [str(one) for one in phases(settings(rounds=3))][: len(list(phases(settings())))] == [
        str(one) for one in phases(settings())
    ]


def test_the_pool_is_the_round_or_all_rounds(tmp_path):
    rounds = folder(tmp_path)

    def names(number: int, pool: str) -> list[str]:
        return [str(Path(path).relative_to(tmp_path)) for path in rounds.explored(number, pool)]

    assert names(0, "round") == names(0, "all") == []
    assert names(2, "round") == ["round_2/explore/toy", "round_2/explore/maze"]
    assert names(2, "all") == [f"round_{number}/explore/{env}" for number in (1, 2) for env in ("toy", "maze")]


def test_environments_that_are_explored_twice_have_numbered_folders():
    assert folder_names(["toy", "maze", "toy"]) == ["toy_1", "maze", "toy_2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "evolve.rounds=0 is not allowed. Allowed: a whole number >= 1."),
        ({"explore": []}, "evolve.explore=[] is not allowed. Allowed: a list of 1 or more sections"),
        ({"start": "bas"}, "evolve.start='bas' is not allowed. Allowed: base, previous. Did you mean 'base'?"),
        ({"pool": "rounds"}, "evolve.pool='rounds' is not allowed. Allowed: round, all. Did you mean 'round'?"),
        ({"weight": "rewards"}, "evolve.weight='rewards' is not allowed. Allowed: none, reward, task."),
        ({"per_task": 0}, "evolve.per_task=0 is not allowed. Allowed: a whole number >= 1 or null."),
        ({"explore": [{"recipe": "a.yaml", "tasks": "train", "samples": 0}]}, "evolve.explore[0].samples=0"),
        ({"explore": [{"recipe": "a.yaml", "tasks": "train", "sample": 2}]}, "evolve.explore[0].sample is not a"),
    ],
)
def test_invalid_settings_raise_config_error_naming_the_key(changes, message):
    explore = [{"recipe": "a.yaml", "tasks": "train"}]
    with pytest.raises(ConfigError) as error:
        evolve_settings({"explore": explore, "learn": "b.yaml", "output_dir": "runs/x", **changes})
    assert str(error.value).startswith(message)


def test_the_table_shows_each_round_and_its_gain():
    first = [talk("a", 0.0, task) for task in "1234"]
    later = [talk("a", float(task < "4"), task) for task in "1234"]
    gain = compare(first, later)[-1]
    table = rounds_table(
        [RoundResult(0, "talk", summarize(first)[-1], None), RoundResult(1, "talk", summarize(later)[-1], gain)]
    )
    console = Console(width=100, file=io.StringIO())
    console.print(table)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[:5] for line in lines if line.startswith(("0", "1"))] == [
        ["0", "talk", "4", "4", "0.000"],
        ["1", "talk", "4", "4", "0.750"],
    ]
    assert str(gain.difference) in lines[-2] and str(gain.return_difference) in lines[-1]
