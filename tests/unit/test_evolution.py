"""The rounds come in order, go on where they stopped, and are refused where they are others."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.episodes import talk
from verl_agent.errors import ConfigError
from verl_agent.evaluation.results import compare, summarize
from verl_agent.offline.evolve.report import RoundResult, rounds_table
from verl_agent.offline.evolve.rounds import EvolveFolder, EvolveSettings, Exploration, Phase, folder_names, phases
from verl_agent.offline.evolve.subprocesses import literal

TWO = [Exploration("a.yaml", "train"), Exploration("b.yaml", "train")]
IDENTITY = {"start": "base", "a.yaml": "0123"}


def settings(**changes) -> EvolveSettings:
    return EvolveSettings(**{"explore": TWO, "learn": "learn.yaml", "output_dir": "runs/x", "rounds": 2, **changes})


def folder(root: Path) -> EvolveFolder:
    return EvolveFolder(root, ["toy", "maze"])


def save(learn: Path) -> None:
    """What supervised training leaves in a round."""
    checkpoint = learn / "global_step_4"
    (checkpoint / "huggingface").mkdir(parents=True)
    (checkpoint / "huggingface/config.json").write_text("{}")
    (checkpoint / "huggingface/model.safetensors").write_text("")
    (checkpoint / "optim_world_size_1_rank_0.pt").write_text("")


def test_the_base_set_is_learnt_first_then_each_round_explores_and_learns():
    order = [str(phase) for phase in phases(settings())]
    assert order[:3] == ["0/learn/0", "0/validate/0", "0/validate/1"]
    assert order[3:8] == ["1/explore/0", "1/explore/1", "1/learn/0", "1/validate/0", "1/validate/1"]
    assert len(order) == len(set(order)) == 3 + 2 * 5


def test_rejection_sampling_needs_no_validation():
    order = [str(phase) for phase in phases(settings(rounds=1, validate=False))]
    assert order == ["0/learn/0", "1/explore/0", "1/explore/1", "1/learn/0"]


def test_what_is_done_is_known_after_a_restart(tmp_path):
    first = folder(tmp_path)
    first.claim(IDENTITY)
    save(first.of(Phase(0, "learn")))
    first.finish(Phase(0, "learn"), IDENTITY)
    again = folder(tmp_path)
    again.claim(IDENTITY)
    assert again.done == {"0/learn/0"}
    assert again.policy(0) == tmp_path / "round_0/learn/global_step_4/huggingface"


def test_a_round_that_is_learnt_keeps_its_weights_and_no_shards(tmp_path):
    rounds = folder(tmp_path)
    rounds.claim(IDENTITY)
    save(rounds.of(Phase(1, "learn")))
    rounds.finish(Phase(1, "learn"), IDENTITY)
    assert not list(tmp_path.rglob("*.pt"))
    assert (rounds.policy(1) / "model.safetensors").is_file()


def test_rounds_of_another_recipe_are_refused(tmp_path):
    folder(tmp_path).claim(IDENTITY)
    with pytest.raises(ConfigError, match=r"rounds of another recipe: a.yaml changed \(a.yaml was '0123', is '4567'\)"):
        folder(tmp_path).claim({**IDENTITY, "a.yaml": "4567"})


def test_more_rounds_may_follow(tmp_path):
    """The number of rounds is no part of what they are."""
    rounds = folder(tmp_path)
    rounds.claim(IDENTITY)
    rounds.finish(Phase(0, "validate"), IDENTITY)
    assert [str(one) for one in phases(settings(rounds=3))][: len(list(phases(settings())))] == [
        str(one) for one in phases(settings())
    ]


def test_a_round_learns_from_its_own_episodes_or_from_all(tmp_path):
    rounds = folder(tmp_path)

    def names(number: int, pool: str) -> list[str]:
        return [str(Path(path).relative_to(tmp_path)) for path in rounds.explored(number, pool)]

    assert names(0, "round") == names(0, "all") == []
    assert names(2, "round") == ["round_2/explore/toy", "round_2/explore/maze"]
    assert names(2, "all") == [f"round_{number}/explore/{env}" for number in (1, 2) for env in ("toy", "maze")]


def test_environments_that_are_explored_twice_have_folders_of_their_own():
    assert folder_names(["toy", "maze", "toy"]) == ["toy_1", "maze", "toy_2"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        ("runs/a b=c", "'runs/a b=c'"),
        ("it's", "'it\\'s'"),
        (["a", "b"], "['a','b']"),
        ([], "[]"),
    ],
)
def test_a_value_is_written_as_hydra_reads_it(value, text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert literal(value) == text
    assert OverridesParser.create().parse_override(f"key={text}").value() == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "evolve.rounds must be >= 1, got 0"),
        ({"explore": []}, "evolve.explore is empty"),
        ({"start": "bas"}, "evolve.start='bas' is not known. Did you mean 'base'"),
        ({"pool": "rounds"}, "evolve.pool='rounds' is not known. Did you mean 'round'"),
        ({"weight": "rewards"}, "evolve.weight='rewards' is not known. Did you mean 'reward'"),
        ({"per_task": 0}, "evolve.per_task must be >= 1 or null"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        settings(**changes)


def test_the_table_shows_each_round_and_what_it_gained():
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
    assert str(gain.difference) in lines[-1]


def test_an_exploration_without_episodes_is_refused():
    with pytest.raises(ConfigError, match=r"evolve.explore: samples must be >= 1, got 0"):
        Exploration("a.yaml", "train", samples=0)
