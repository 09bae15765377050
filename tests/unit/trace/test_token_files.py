"""Test the files of token data: what is written is read back, by episode; other files are refused."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_agent.trace.token_files import (
    RecordingBoundary,
    TokenRow,
    read_tokens,
    token_files,
    training_file,
    write_tokens,
)


def row(group: str = "7-a_b", sample: int = 0, segment: int = 0, **columns: list) -> TokenRow:
    """A prompt of two tokens, a reply of two, and one token of an observation."""
    written = [False, False, True, True, False]
    columns = columns or {"advantages": [0.5, 0.5, 9.0], "entropy": [0.1, 0.2, 0.3]}
    return TokenRow(group, sample, segment, 3, 2, [5, 6, 7, 8, 6], written, [-1, -1, 0, 0, -1], columns)


def write(folder: Path, *rows: TokenRow) -> Path:
    path = training_file(folder, 3)
    write_tokens(path, rows, lambda token: f"<{token}>")
    return path


def test_segments_are_read_by_episode_and_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, row(), row(segment=1), row(sample=1, segment=1), row(sample=1), row("8"))
    assert [found.segment for found in read_tokens(path, "7-a_b", 1)] == [0, 1]
    assert read_tokens(path, "7-a_b", 2) == []
    assert token_files(tmp_path, 3) == token_files(tmp_path) == [path]
    assert token_files(tmp_path, 4) == []


def test_values_of_tokens_that_the_model_did_not_write_are_absent(tmp_path: Path) -> None:
    (found,) = read_tokens(write(tmp_path, row()), "7-a_b", 0)
    assert found.texts == ["<5>", "<6>", "<7>", "<8>", "<6>"]
    assert found.turns == [-1, -1, 0, 0, -1] and found.loss_mask == [False, False, True, True, False]
    assert found.columns["advantages"] == [0.5, 0.5, None], "an observation has no advantage"
    assert found.columns["entropy"] == pytest.approx([0.1, 0.2, 0.3]), "but the policy has an entropy there"
    assert set(found.columns) == {"advantages", "entropy"}, "a column that the run does not have is left out"


def test_alternatives_of_a_token_are_read_with_their_texts(tmp_path: Path) -> None:
    top = row(top_token_ids=[[7, 1], [8], None], top_logprobs=[[-0.5, -1.5], [-0.25], None])
    (found,) = read_tokens(write(tmp_path, top), "7-a_b", 0)
    assert found.columns["top_logprobs"] == [[-0.5, -1.5], [-0.25], None]
    assert found.top_texts == [None, None, ["<7>", "<1>"], ["<8>"], None]


def test_not_a_number_is_kept(tmp_path: Path) -> None:
    (found,) = read_tokens(write(tmp_path, row(advantages=[float("nan"), 1.0, 0.0])), "7-a_b", 0)
    assert str(found.columns["advantages"][0]) == "nan"


def test_a_column_that_one_segment_lacks_is_null_there(tmp_path: Path) -> None:
    path = write(tmp_path, row(entropy=[0.1, 0.2, 0.3]), row(segment=1, inference_logprobs=[-1.0, -2.0, 0.0]))
    first, second = read_tokens(path, "7-a_b", 0)
    assert first.columns["inference_logprobs"] == [None] * 3
    assert second.columns["inference_logprobs"] == [-1.0, -2.0, None]


@pytest.mark.parametrize("turn", [1, 40_000])
def test_a_failed_recording_is_logged_once_and_ends_no_run(tmp_path: Path, caplog, turn: int) -> None:
    """A turn number that the column cannot hold fails in the same way as a full disk."""
    boundary, wrong = RecordingBoundary(), row()
    wrong.turns = [-1, -1, turn, turn, -1]
    if turn == 1:
        (tmp_path / "tokens").write_text("a file where the folder should be")
    with boundary("step 3"):
        write(tmp_path, wrong)
    assert boundary.failed
    assert caplog.text.count("step 3: the token data is not written, and no more is recorded") == 1


def test_a_file_is_replaced_and_no_part_of_one_stays(tmp_path: Path) -> None:
    write(tmp_path, row())
    write(tmp_path, row("again"))
    assert [file.name for file in (tmp_path / "tokens").iterdir()] == ["step_3.parquet"]
    assert read_tokens(training_file(tmp_path, 3), "7-a_b", 0) == []


@pytest.mark.parametrize("metadata", [None, {"verl_agent_tokens": "2"}])
def test_files_of_others_and_of_newer_versions_are_refused(tmp_path: Path, metadata: dict | None) -> None:
    pq.write_table(pa.table({"group": ["a"]}).replace_schema_metadata(metadata), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="this verl_agent reads 1 to 1"):
        read_tokens(tmp_path / "x.parquet", "a", 0)
