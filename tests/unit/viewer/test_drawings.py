"""Test drawings of states: those of TextCraft and BabyAI, their text and pictures, and the files of a run."""

import asyncio
import base64
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from tests.support.episodes import STARTED, played
from verl_agent.envs.drawing import Cell, Grid, Node, Table, Tree
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, parse_record, to_episode, to_record
from verl_agent.types import Episode, Media, Message, Reply, StepResult, StopReason, Turn
from verl_agent.viewer.drawings import as_html, as_text, draw_states, grid_url
from verl_agent.viewer.images import find_image
from verl_agent.viewer.state_panels import draw_in_thread


def solved(env: str, split: str, **options: object) -> EpisodeRecord:
    """The record of the first task of a split, solved by its demonstration."""
    adapter = make_env(env, options)
    item = adapter.tasks(split)[0]

    async def play() -> Episode:
        session = adapter.new_session()
        messages: list[Message] = list(await session.reset(item))
        episode = Episode(item, 20, messages, stop=StopReason.TERMINATED, prompt_length=len(messages))
        for demo in adapter.demonstration(item):
            step = await session.step(demo.action)
            episode.turns.append(Turn(Reply(demo.action), demo.action, step, 0.0, 0.0))
        return episode

    return to_record(asyncio.run(play()), EpisodeMeta("evaluation", split, 0, "g", 0, STARTED, 1.0))


def test_an_episode_after_the_turns_of_another_has_no_drawings() -> None:
    record = solved("textcraft", "easy_train")
    assert draw_states(record) and draw_states({**record, "given_turns": 1}) == []


def test_textcraft_draws_the_inventory_and_what_is_left_to_craft() -> None:
    record = solved("textcraft", "easy_train")
    states = draw_states(record)
    assert len(states) == len(record["turns"]) + 1
    inventory, tree = states[0]
    assert as_text(inventory) == "Inventory\n  empty"
    assert isinstance(tree, Tree) and tree.roots[0].done is False
    assert states[-1][-1].roots[0].done is True, "the goal is crafted"


@pytest.mark.parametrize(("env", "split"), [("textcraft", "easy_train"), ("babyai", "easy_train")])
def test_a_rejected_action_changes_no_drawing(env: str, split: str) -> None:
    record = solved(env, split)
    without = draw_states(record)
    refused = {**record["turns"][0], "info": {"rejected_action": 1.0}, "observation": "The action was not carried out."}
    record["turns"].insert(0, refused)
    assert draw_states(record) == [without[0], [], *without[1:]]


def test_a_drawing_that_did_not_change_is_left_out() -> None:
    record = solved("textcraft", "easy_train")
    record["turns"].insert(0, {**record["turns"][0], "action": "inventory"})
    assert draw_states(record)[1] == []


@pytest.mark.parametrize("options", [{"prompt": "short"}, {}])
def test_babyai_draws_the_grid_whatever_the_options_of_the_run(options: dict) -> None:
    record = solved("babyai", "easy_train", **options)
    states = draw_states(record)
    assert len(states) == len(record["turns"]) + 1
    for (grid,) in filter(None, states):
        assert sum(cell.text in "▶▼◀▲" and cell.text != "" for row in grid.rows for cell in row) == 1


def test_babyai_draws_only_as_far_as_the_observations_agree() -> None:
    record = solved("babyai", "easy_train")
    record["turns"][0]["observation"] = "another version of the game"
    assert len(draw_states(record)) == 1


def test_scienceworld_draws_the_rooms_as_far_as_they_were_seen_and_what_is_carried() -> None:
    bathroom = (
        "Your task is to boil lead.\n\nThis room is called the bathroom. In it, you see: \n\tthe agent\n"
        "\ta substance called air\n\ta sink, which is turned off. In the sink is: nothing.\nYou also see:\n"
        "\tA door to the kitchen (that is closed)\n"
    )
    outside = (
        "This outside location is called the outside. Here you see: \n\tthe agent\n\ta frog egg\nYou also see:\n"
        "\tA door to the kitchen (that is open)\n"
    )
    record = played(
        ("open door to kitchen", "The door is now open."),
        ("go to kitchen", "You move to the kitchen."),
        ("pick up metal pot", "You move the metal pot to the inventory."),
        ("go to outside", "You move to the outside."),
        ("look around", outside),
        ("move metal pot in inventory to ground", "You move the metal pot to the ground."),
    )
    record["messages"][record["prompt_length"] - 1]["content"] = bathroom
    states = draw_states({**record, "env": "scienceworld"})
    head = "Rooms\n    room      doors to           last seen there\n"
    assert as_text(
        states[0][0]
    ) == f"{head.replace('open', '')}  ▶ bathroom  kitchen (closed)   a sink\n    kitchen" + (
        "   bathroom (closed)  not visited"
    )
    assert "kitchen (open)" in as_text(states[1][0]) and states[2][0].rows[1][0] == "▶ kitchen"
    assert as_text(states[3][0]) == "Carries\n  metal pot"
    assert [row[0] for row in states[4][0].rows] == ["  bathroom", "  kitchen", "▶ outside"]
    assert states[5][0].rows[2][1:] == ("kitchen (open)", "a frog egg")
    assert as_text(states[6][0]) == "Carries\n  nothing"


def test_deepsearch_draws_which_steps_of_the_gold_chain_were_made() -> None:
    record = played(("<search>Where is X?</search>", "X is in Y"), ("<answer>Y</answer>", "Right."), reward=1.0)
    chain = [["I look for X.", "where is x"], ["Then Y.", "what is y"], ["It is Y.", "Y"]]
    states = draw_states({**record, "env": "deepsearch", "data": {"chain": chain}})
    assert [[node.done for node in tree.roots] for (tree,) in states] == [
        [False, False, False],
        [True, False, False],
        [True, False, True],
    ]


def test_a_failing_adapter_is_reported_and_an_unknown_one_draws_nothing() -> None:
    record = solved("textcraft", "easy_train")
    with pytest.raises(ConfigError, match=r"'textcraft' cannot draw this episode: KeyError"):
        draw_states({**record, "data": {}})
    assert draw_states({**record, "env": "of another machine"}) == []


def test_drawings_of_a_wrong_type_and_slow_ones_are_reported() -> None:
    with pytest.raises(ConfigError, match="'env' has drawings that cannot be shown: TypeError"):
        as_html([[Table("rows", ("n",), [5])]], "env")  # type: ignore[list-item]
    assert as_html([[Table("<b>", (), [])], []], "env") == ["<div class='mono'>&lt;b&gt;</div>", ""]
    record = solved("textcraft", "easy_train")
    assert len(asyncio.run(draw_in_thread(record))) == len(record["turns"]) + 1
    with pytest.raises(ConfigError, match="'textcraft' has not drawn this episode within 0 s"):
        asyncio.run(draw_in_thread(record, timeout_s=0.0))


def test_tables_and_trees_are_aligned_text() -> None:
    assert (
        as_text(Table("Bag", ("n", "item"), [("10", "log"), ("2", "stick")]))
        == "Bag\n  n   item\n  10  log\n  2   stick"
    )
    tree = Tree("Plan", [Node("door", False, [Node("log", True), Node("note")])])
    assert as_text(tree) == "Plan\n  · door\n    ✓ log\n    note"


def test_text_of_a_grid_is_no_markup() -> None:
    hostile = Cell("</>", 'red"/><script>', "blue")
    image = base64.b64decode(grid_url(Grid("map", [[hostile]])).partition(",")[2])
    svg = ElementTree.fromstring(image)
    assert [child.tag.partition("}")[2] for child in svg] == ["rect", "text"]
    assert svg[1].text == "</>" and svg[1].attrib["fill"] == "black"


def test_a_grid_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="200 times 200 cells"):
        grid_url(Grid("map", [[Cell()] * 200] * 200))


def test_media_survive_in_a_record() -> None:
    record = played(("north", "hall"), ("east", "yard"))
    episode = to_episode(record)
    media = (Media("a/001.png", "before", [0.5, 0.25, 0.125, 0.0]), Media("a/002.png"))
    episode.turns[0] = Turn(Reply("north"), "north", StepResult("hall", media=media), 0.0, 0.0)
    again = to_record(episode, EpisodeMeta("evaluation", "train", 0, "1", 0, STARTED, 1.0))
    assert to_episode(parse_record(again)).turns[0].step.media == media
    assert "media" not in again["turns"][1]
    again["turns"][0]["media"][0]["box"] = [1.0]
    with pytest.raises(ConfigError, match="box"):
        parse_record(again)


@pytest.mark.parametrize(
    "path", ["../secret.png", "/etc/passwd", "a/../../secret.png", "link.png", "a.svg", "\0", "x" * 999]
)
def test_only_images_in_the_folder_of_the_run_are_found(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "run" / "media"
    (folder / "a").mkdir(parents=True)
    for file in (tmp_path / "run" / "secret.png", folder / "a" / "1.png", folder / "a.svg"):
        file.write_bytes(b"image")
    (folder / "link.png").symlink_to(tmp_path / "run" / "secret.png")
    opened = SimpleNamespace(source=SimpleNamespace(folder=tmp_path / "run"))
    assert find_image(opened, "a/1.png") == folder / "a" / "1.png"
    assert find_image(opened, path) is None
