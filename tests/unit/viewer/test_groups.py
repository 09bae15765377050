"""Test that a group is judged by all of its valid episodes, by the definition that the trainer uses."""

import json
import re
from pathlib import Path

import pytest

from tests.support.episodes import STARTED, played
from verl_agent.returns import is_uniform
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord
from verl_agent.viewer import queries
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.listings import count_groups, list_groups
from verl_agent.viewer.sources import open_source

FILTERS: tuple[dict[str, str], ...] = ({}, {"success": "yes"}, {"sample": "3"}, {"step": "1", "reward": "..0"})


def episode(sample: int, reward: float, group: str = "g") -> EpisodeRecord:
    return played(("north", "hall"), reward=reward, meta=EpisodeMeta("train", "train", 1, group, sample, STARTED, 1.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "episodes.jsonl"
    broken = episode(4, 0.0) | {"stop": "env_error"}
    records = [*(episode(number, float(number % 2)) for number in range(4)), broken]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


@pytest.mark.parametrize("parameters", FILTERS)
def test_a_filter_chooses_groups_and_leaves_their_verdict_as_it_is(file: Path, parameters: dict[str, str]) -> None:
    with RecordIndex(open_source(file)) as index:
        index.update()
        chosen = Filter.parse(parameters)
        assert count_groups(index, chosen) == (1, 0)
        (group,) = list_groups(index, chosen, 9)
        assert (group["episodes"], group["reward"], group["uniform"]) == (4, 0.5, 0)
        assert count_groups(index, Filter.parse({"step": "2"})) == (0, 0)


def test_an_exported_page_has_the_same_verdict_with_a_filter_or_a_limit(file: Path, tmp_path: Path) -> None:
    for where, limit in (("success=yes", None), ("", 1)):
        export_episodes([file], tmp_path / "page.html", where, limit)
        text = (tmp_path / "page.html").read_text()
        cells = re.findall("<td[^>]*>(.*?)</td>", text)
        assert ["4", "0.5", "yes: spread 1"] in [cells[at : at + 3] for at in range(len(cells))]
        assert "1 group." in text


@pytest.mark.parametrize(
    "values",
    [
        (0.3, 0.1 + 0.2),
        (0.0, 9e-7),
        (0.0, 1e-5),
        (1e3, 1e3 + 1e-4),
        (1e3, 1e3 + 2e-4),
        (-1e4, -1e4 - 1e-3),
        (1e6, 1e6 + 0.5),
    ],
)
def test_viewer_and_trainer_agree_on_equal_returns(tmp_path: Path, values: tuple[float, float]) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{json.dumps(episode(*pair))}\n" for pair in enumerate(values)))
    with RecordIndex(open_source(file)) as index:
        index.update()
        expected = is_uniform(values)
        assert count_groups(index, Filter()) == (1, int(expected))
        assert list_groups(index, Filter(), 1)[0]["uniform"] == int(expected)
        assert queries.count_uniform_groups(index) == {1: (int(expected), 1)}
        assert queries.find_group(index, "g", 1, "train").uniform == expected
