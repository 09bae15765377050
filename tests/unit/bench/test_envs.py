"""Tests of the benchmark of the environments: both servers play the same episodes."""

import asyncio
import json
from io import StringIO

import pytest
from rich.console import Console

from env_adapters.babyai.adapter import build
from env_adapters.babyai.strict import StrictGame
from env_adapters.babyai.tasks import split_items
from env_adapters.babyai.texts import Style
from env_adapters.textcraft.adapter import TextCraft
from tests.bench.env_alone import InProcess, StartTimes, Waiting
from tests.bench.env_play import Window
from tests.bench.env_report import Pair, show
from tests.bench.envs import parse
from tests.bench.reference import SlowGame, create_app
from tests.support.scripts import scripts, strict_scripts
from tests.support.serving import Running, pool_of, serving, serving_app
from tests.support.wire_client import Connection, RequestFailedError, Script, Session


async def rewards(server: Running, script: Script) -> list[tuple[str, float, bool]]:
    session = Session(await Connection.to(server.url))
    await session.create()
    await session.reset(script.item)
    answers = [await session.step(action) for action in script.actions]
    session.connection.close()
    return [(answer["observation"], answer["reward"], answer["done"]) for answer in answers]


def test_both_servers_play_the_same_episodes_of_textcraft():
    with (
        serving("textcraft", pool_of(TextCraft), split="test") as ours,
        serving_app(create_app("textcraft", "test")) as theirs,
    ):
        for script in scripts("textcraft", "test", 5):
            played = asyncio.run(rewards(ours, script))
            assert played == asyncio.run(rewards(theirs, script))
            assert played[-1][1:] == (1.0, True)


def test_a_search_for_each_object_finds_the_paths_of_one_search():
    """The reference differs from `strict` only in its cost."""
    items = split_items("test")
    for script in strict_scripts("test", 6):
        one, each = (kind(build(items[script.item]), Style()) for kind in (StrictGame, SlowGame))
        assert one.opening() == each.opening()
        for action in script.actions:
            assert one.play(action) == each.play(action)


def test_the_client_raises_the_status_of_an_error():
    async def step_unknown_session(url: str) -> None:
        with pytest.raises(RequestFailedError, match="404") as error:
            await Session(await Connection.to(url), number=7).step("get 1 oak log")
        assert error.value.status == 404

    with serving("textcraft", pool_of(TextCraft)) as running:
        asyncio.run(step_unknown_session(running.url))


def window(rate: float) -> Window:
    return Window(seconds=1.0, step_s=[1 / rate] * int(rate), reset_s=[0.01, 0.01], client_cores=0.5)


def test_a_sum_of_windows_weights_them_by_their_seconds():
    both = window(100) + Window(seconds=3.0, step_s=[0.1] * 60, client_cores=1.0)
    assert (both.steps_per_s, both.client_cores) == (40.0, 0.875)
    assert both.reset_ms == pytest.approx((10.0, 10.0))


def test_most_steps_per_second_follow_from_processor_time():
    busy = Window(seconds=1.0, step_s=[0.01] * 100, client_cores=0.1, server_cores=0.5, host_cores=0.2)
    assert busy.most_steps_per_s(2) == 200.0  # the server has one process
    busy.host_cores = 1.0
    assert busy.most_steps_per_s(2) == pytest.approx(125.0)
    assert busy.most_steps_per_s(16) == 200.0


@pytest.mark.parametrize(
    ("ratio", "steps", "last_s", "valid", "missed"),
    [
        (3.0, 1500.0, 2.0, 490, 0),
        (2.9, 1500.0, 2.0, 490, 1),
        (3.0, 1499.0, 2.0, 490, 1),
        (3.0, 1500.0, 2.1, 490, 1),
        (3.0, 1500.0, 2.0, 480, 1),
    ],
)
def test_targets_are_judged_on_the_median_of_neighbouring_windows(ratio, steps, last_s, valid, missed):
    ours, theirs = [window(100 * ratio), window(400), window(100)], [window(100)] * 3
    pairs = [
        Pair("textcraft", 32, ours, theirs, (100.0, 80.0), (60.0, 50.0)),
        Pair("scienceworld", 32, ours, [], (1, 1), (0, 0)),
    ]
    starts = [
        StartTimes("textcraft", "ours", 200, 1.0, 0.1, last_s, 0.01),
        StartTimes("babyai", "reference", 200, 1, 1, 9, 0.01),
    ]
    output = StringIO()
    targets = show(
        Console(file=output, width=160),
        pairs,
        [InProcess("babyai", steps, 1, 1)],
        starts,
        [Waiting(512, 5, valid, 6, 5)],
    )
    assert [target.met for target in targets].count(False) == output.getvalue().count("MISSED") == missed
    assert "1,080-1,100" in output.getvalue()


def test_arguments_are_validated(capsys):
    with pytest.raises(SystemExit):
        parse(["--rounds", "0"])
    assert "must be >= 1" in capsys.readouterr().err
    assert json.dumps(vars(parse(["--envs", "babyai"]))["envs"]) == '["babyai"]'
