"""Test exports: a page without foreign markup or network, Inspect's log, Parquet, records, frames and notebooks."""

import base64
import hashlib
import json
import re
import shutil
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

import verl_agent as va
from tests.support.episodes import STARTED, played, talk
from verl_agent.trace.curves import panel_png
from verl_agent.trace.frame import write_parquet
from verl_agent.trace.panels import Curve, Panel, PanelKind
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.trace.turn_record import ReviewRecord, TurnRecord
from verl_agent.types import (
    CallResult,
    Episode,
    Grade,
    Judgement,
    Media,
    Message,
    Reply,
    Review,
    StepResult,
    StopReason,
    TaskItem,
    Turn,
    Usage,
)
from verl_agent.viewer.episode_html import describe_decision, episode_html
from verl_agent.viewer.export.inspect_log import write_inspect_log
from verl_agent.viewer.export.static_page import static_page
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.images import ImageBudget
from verl_agent.viewer.pages.compare import word_difference
from verl_agent.viewer.parts import first_part
from verl_agent.viewer.state import ViewerState
from verl_agent.viewer.text import sparkline

HOSTILE = "</template></script><script>alert(1)</script> \u202e \0 'quoted' \"twice\""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "metrics").mkdir(parents=True)
    with EpisodeWriter(folder / "episodes" / "a.jsonl") as writer:
        for step in (1, 2):
            for sample in (0, 1):
                meta = EpisodeMeta("train", "train", step, f"g{step}", sample, STARTED, seconds=1.0)
                writer.write(played(("north", HOSTILE), ("east", "hall"), reward=float(sample), task="a/b", meta=meta))
    return folder


def test_a_page_has_every_episode_and_no_markup_or_address_from_outside(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert export_episodes([run], page) == 4
    text = page.read_text()
    assert text.count("<template id=") == text.count("</template>") == 4
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; ⟨RLO⟩ ␀ &#x27;quoted&#x27; &quot;twice&quot;" in text
    assert not re.search(r"https?://|\ssrc=(?!\"data:image/)|@import|url\(", text.replace("img-src", ""))
    assert "2 groups" in text


def test_a_turn_says_who_acted_who_decided_and_what_was_proposed() -> None:
    record = played(("north", "hall"), ("buy", "The action was not carried out: too dear"), ("east", "kitchen"))
    edited: ReviewRecord = {"decision": "edited", "by": "person", "reason": "", "seconds": 2.0}
    rejected: ReviewRecord = {"decision": "rejected", "by": "rule", "reason": "too <dear>", "seconds": 0.0}
    record["turns"][0] |= {"author": "person", "proposed": "south & away", "review": edited}
    record["turns"][1]["review"] = rejected
    assert [describe_decision(turn) for turn in record["turns"]] == [
        "written by the person; edited by the person (2.0 s)",
        "rejected by a rule: too <dear> (0.0 s)",
        "",
    ]
    text = episode_html(first_part(record))
    assert "edited by the person" in text and "south &amp; away" in text and "too &lt;dear&gt;" in text
    assert text.count("class='mono warn'") == 2 and text.count("class='mono muted line-through'") == 1


def test_a_reply_of_unknown_length_has_no_number_of_tokens() -> None:
    record = played(("north", "hall"))
    record["turns"][0]["tokens"] = 0
    assert "token" not in episode_html(first_part(record))
    record["turns"][0]["tokens"] = 7
    assert "7 tokens, " in episode_html(first_part(record))


def test_a_page_holds_the_images_of_its_turns_and_none_of_other_folders(run: Path, tmp_path: Path) -> None:
    image = b"\x89PNG fake"
    (run / "media").mkdir()
    (run / "media" / "a.png").write_bytes(image)
    (run / "secret.png").write_bytes(b"secret")
    record = played(("north", "hall"))
    paths = ("a.png", "../secret.png", "missing.png")
    record["turns"][0]["media"] = [{"path": path, "title": "<b>", "box": None} for path in paths]
    with EpisodeWriter(run / "episodes" / "b.jsonl") as writer:
        writer.write(record)
    export_episodes([run], tmp_path / "page.html", "purpose=evaluation")
    found = re.findall(r'<img alt="&lt;b&gt;" src="data:image/png;base64,(.*?)">', (tmp_path / "page.html").read_text())
    assert [base64.b64decode(one) for one in found] == [image]
    assert export_episodes([run], tmp_path / "all.parquet") == 5


def test_images_beyond_the_limit_of_a_page_are_counted(run: Path) -> None:
    (run / "media").mkdir()
    for name, size in (("a.png", 60), ("b.png", 60), ("c.png", 40)):
        (run / "media" / name).write_bytes(b"x" * size)
    with closing(ViewerState([run])) as state:
        (opened,) = state.opened.values()
        images = ImageBudget(left=100)
        found = [images.embed(opened, name) is not None for name in ("a.png", "b.png", "c.png", "missing.png")]
    assert found == [True, False, True, False]
    assert "<p>1 images are left out: a page holds at most 3 MB" in static_page([], "", images)[0]
    assert "left out" not in static_page([], "", ImageBudget())[0]


def test_a_filter_and_a_limit_choose_the_episodes(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert export_episodes([run], page, "success=yes&step=2..") == 1
    assert "Filter: success=yes&amp;step=2.." in page.read_text()
    assert export_episodes([run], page, limit=3) == 3
    assert "The first 3 of 4 are shown." in page.read_text()


@pytest.mark.parametrize(
    ("name", "where", "message"),
    [
        ("a.pdf", "", "Allowed: .html, .eval, .parquet, .jsonl"),
        ("a.html", "step", "step=3..7&success=no"),
        ("a.html", "steps=1", "Did you mean 'step'"),
        ("a.html", "step=9", "no episode of .* is selected by 'step=9'"),
        ("missing/a.html", "", r"cannot be written: there is no folder .*/missing\. Create it first"),
    ],
)
def test_an_invalid_export_is_refused_and_leaves_no_file(run: Path, name: str, where: str, message: str) -> None:
    before = sorted(run.parent.rglob("*"))
    with pytest.raises(va.ConfigError, match=message):
        export_episodes([run], run.parent / name, where)
    assert [path for path in sorted(run.parent.rglob("*")) if ".viewer" not in str(path)] == before


@pytest.mark.parametrize("name", ["runs/all.jsonl", "runs/run/episodes/a/all.jsonl", "runs/eval/all.jsonl"])
def test_records_are_not_exported_to_where_their_sources_are_read(run: Path, name: str) -> None:
    """A viewer of the same folder would count each episode twice."""
    runs = run.parent / "runs"
    shutil.copytree(run, runs / "run")
    (runs / "run" / "metrics" / "a.jsonl").touch()
    shutil.copytree(run / "episodes", runs / "eval")
    (runs / "eval" / "a.jsonl").rename(runs / "eval" / "episodes.jsonl")
    (run.parent / name).parent.mkdir(exist_ok=True)
    with pytest.raises(va.ConfigError, match=r"each exported episode would count twice\. Choose a file outside"):
        export_episodes([runs], run.parent / name)
    with closing(ViewerState([runs])) as state:
        assert sorted(state.opened) == ["eval", "run"]


def test_records_are_exported_neither_over_their_source_nor_refused_beside_it(run: Path) -> None:
    file = run / "episodes" / "a.jsonl"
    with pytest.raises(va.ConfigError, match="would count twice"):
        export_episodes([file], file, "step=1")
    assert export_episodes([run], run / "all.jsonl") == export_episodes([file], run / "episodes.html") == 4
    assert export_episodes([run], run / "again.jsonl") == 4


def test_an_export_of_a_file_without_records_names_the_import(tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").write_text('{"nodes": []}\n')
    with pytest.raises(va.ConfigError, match=r"no episode record: traces\.jsonl, byte 0: .*verl-agent records import"):
        export_episodes([tmp_path / "traces.jsonl"], tmp_path / "page.html")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(va.ConfigError, match="has no episode yet"):
        export_episodes([tmp_path / "empty.jsonl"], tmp_path / "page.html")


def test_an_export_to_the_name_of_a_folder_names_no_internal_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(va.ConfigError, match="cannot be written") as refused:
        export_episodes([run], tmp_path / "page.html")
    assert ".part" not in str(refused.value)


def test_a_log_of_inspect_has_a_sample_for_each_episode(run: Path, tmp_path: Path) -> None:
    assert export_episodes([run], tmp_path / "log.eval") == 4
    with zipfile.ZipFile(tmp_path / "log.eval") as file:
        header = json.loads(file.read("header.json"))
        (name,) = [
            one for one in file.namelist() if re.fullmatch(r"samples/train step 2 talk a_b \w{8}_epoch_2.json", one)
        ]
        sample = json.loads(file.read(name))
        assert len(file.namelist()) == 6
    assert header["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.5
    assert header["eval"]["config"]["epochs"] == 2
    assert sample["scores"]["return"]["value"] == 1.0
    assert [message["role"] for message in sample["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert sample["messages"][3]["metadata"]["action"] == "east"


def test_a_log_of_inspect_scores_no_failed_episode_and_keeps_tasks_apart(tmp_path: Path) -> None:
    meta = EpisodeMeta("evaluation", "test", 0, "g", 0, STARTED, seconds=1.0)
    records = [played(("go", "hall"), reward=1.0, task=task, meta=meta) for task in ("a/b", "a_b", "c" * 200 + "1")]
    records.append(played(("go", "hall"), task="c" * 200 + "2", meta=meta) | {"stop": "env_error", "error": "down"})
    records[0]["started_at"] = records[1]["started_at"] = ""
    records.append(played(("go", "hall"), task="helped", meta=meta))
    records[-1]["turns"][0]["author"] = "person"
    assert write_inspect_log(records, tmp_path / "log.eval", "run") == 5
    with zipfile.ZipFile(tmp_path / "log.eval") as file:
        header, summaries = (json.loads(file.read(f"{name}.json")) for name in ("header", "summaries"))
    (success, _) = header["results"]["scores"]
    assert (success["metrics"]["mean"]["value"], success["scored_samples"]) == (1.0, 3)
    assert header["results"]["completed_samples"] == 3 < header["results"]["total_samples"]
    assert len({summary["id"] for summary in summaries}) == 5
    assert summaries[3]["scores"] == summaries[4]["scores"] == {}


def test_parquet_holds_whole_records_and_jsonl_is_read_again(run: Path, tmp_path: Path) -> None:
    import pandas

    first, *_ = records = list(va.read_records(run))
    assert export_episodes([run], tmp_path / "some.jsonl") == 4
    assert list(va.read_records(tmp_path / "some.jsonl")) == records
    assert (
        export_episodes([run], tmp_path / "all.parquet")
        == va.read_records(run).to_parquet(tmp_path / "same.parquet")
        == 4
    )
    table = pandas.read_parquet(tmp_path / "all.parquet")
    assert table.equals(pandas.read_parquet(tmp_path / "same.parquet"))
    assert table["success"].tolist() == [False, True, False, True]
    assert table["steps"][0][0]["observation"] == first["turns"][0]["observation"]
    assert [message["content"] for message in table["messages"][0]] == [one["content"] for one in first["messages"]]


def whole_record() -> EpisodeRecord:
    """Return a record that has every field."""
    review, usage = Review("edited", "person", "safer", 2.0), Usage("m", output_tokens=3, finish="stop")
    reply = Reply("north", StopReason.TURN_TOKENS, 3, True, usage, author="person", proposed="south", review=review)
    step = StepResult("hall", 0.5, True, {"gold": 2.0}, [Media("a.png", "map", (0.0, 0.0, 0.5, 0.5))])
    calls = (CallResult("open", StepResult("hall", 0.5, True)), CallResult(None, errors=("no_call",), name="b"))
    messages: list[Message] = [
        {"role": "user", "content": "Begin.", "limits": {"max_tokens": 9, "stop": ["."]}},
        {"role": "assistant", "content": "north"},
        {"role": "tool", "content": "hall", "answers": ["hall", "no call"]},
    ]
    judgement = Judgement(0, 0.5, 0.5, [Grade("polite", 1.0, 0.5, "why")], 0.0, "m", 0.25)
    episode = Episode(
        TaskItem("talk", "1", {"n": [1]}, "easy"), 9, messages, [Turn(reply, "open", step, 0.5, 0.25, calls)],
        StopReason.TERMINATED, "late", prompt_length=1, replays=["down"], oracle_turns=2, judgements=[judgement],
        given_turns=1,
    )  # fmt: skip
    meta = EpisodeMeta("train", "train", 1, "g", 0, STARTED, 1.0, model="m", shaped_return=0.25, env_label="other")
    return to_record(episode, meta) | {"unknown": ["data"]}


def test_parquet_has_each_field_of_a_record(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'verl-agent[eval]'")
    record = whole_record()
    (turn,) = record["turns"]
    kinds = ((EpisodeRecord, record), (TurnRecord, turn))
    assert all(kind.__annotations__.keys() == whole.keys() for kind, whole in kinds), "a field has no value in the test"
    assert {name for message in record["messages"] for name in message} == Message.__annotations__.keys()
    write_parquet([record], tmp_path / "a.parquet")
    (row,) = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    (step,) = row["steps"]
    row["messages"] = [{key: one[key] for key in one if one[key] is not None} for one in row["messages"]]
    for written, fields in ((step, turn), (row, {**record, "turns": 1})):
        for name, value in fields.items():
            as_json = isinstance(written[name], str) and not isinstance(value, str)
            assert (json.loads(written[name]) if as_json else written[name]) == value, name


def test_a_frame_has_a_row_for_each_episode_or_turn(run: Path) -> None:
    frame = va.read_records(run).to_frame()
    assert frame.groupby("step")["reward"].mean().to_dict() == {1: 0.5, 2: 0.5}
    assert frame["turns"].tolist() == [2, 2, 2, 2]
    turns = va.read_records(run).to_frame(turns=True)
    assert turns["action"].tolist() == ["north", "east"] * 4
    assert va.read_records([]).to_frame().empty


def test_a_notebook_shows_an_episode_as_escaped_html() -> None:
    html = va.show_episode(talk("a b", prompt=HOSTILE + "x" * 30_000))._repr_html_()
    assert "Turn 2" in html
    assert "<script" not in html
    assert "more characters" in html


def test_word_differences_are_marked_and_escaped() -> None:
    assert word_difference("go <b>north</b> now", "go south now") == (
        "go <mark>&lt;b&gt;north&lt;/b&gt;</mark> now",
        "go <mark>south</mark> now",
    )


def test_curves_are_drawn_for_one_point_and_for_equal_values() -> None:
    kind = PanelKind("<b> $x_1$", "", share=True)
    band = Curve("rate", {1: 0.5, 2: 0.5}, band={1: (0.25, 0.75), 2: (0.25, 0.75)})
    limit = Curve("limit", {1: 4.0, 2: 6.0}, dashed=True)
    stack = [Curve(name, {1: 0.5, 2: 0.5}, stack="stop") for name in "ab"]
    for curves in ([Curve("a", {1: 0.5}, "red")], [band], [limit], stack):
        assert panel_png(Panel(kind, curves, [2]), [1, 2], 1).startswith(b"\x89PNG")
    assert (sparkline([0.0, 0.5, 1.0]), sparkline([])) == ("▁▅█", "")
    assert sparkline([1.0] * 100 + [0.0], most=40) == "█" * 33 + "▁", "the last value is shown"
