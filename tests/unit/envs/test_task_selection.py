"""Selection of tasks by split or by a file of ids, and the check that selections are disjoint."""

from pathlib import Path

import pytest

from env_adapters.guess_number.adapter import GuessNumber
from verl_agent.envs.registry import list_tasks, make_env
from verl_agent.envs.tasks import check_disjoint, select_tasks
from verl_agent.errors import ConfigError, counted, did_you_mean
from verl_agent.types import TaskItem

SOURCES = {"env.train_tasks": "train", "env.eval_tasks": "test"}


@pytest.fixture
def write(tmp_path: Path):
    """Write a file of ids and return its path."""

    def write(text: str, name: str = "ids.txt") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def items(source: str) -> list[TaskItem]:
    return select_tasks(make_env("guess_number"), source)


def ids(source: str) -> list[str]:
    return [item.id for item in items(source)]


def test_a_split_keeps_the_order_of_its_environment():
    assert ids("small_test") == list(list_tasks(make_env("guess_number"), "small_test"))
    assert len(ids("small_test")) == 17


def test_a_file_keeps_its_order_and_mixes_splits(write):
    test, train = ids("test")[0], ids("train")[0]
    assert ids(write(f"# held out and not\n{test}  # first\n\n  {train}\r\n")) == [test, train]


def test_an_id_may_have_a_number_sign(write):
    class Issues(GuessNumber):
        splits = ("test",)

        def tasks(self, split: str) -> list[TaskItem]:
            return [TaskItem("guess_number", "repo#12")]

    (item,) = select_tasks(Issues(), write("repo#12 # of the tracker\n#repo#13\n"))
    assert item.id == "repo#12"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no task ids."),
        ("# nothing\n \n", "holds no task ids."),
        ("100:1\n100:1\n100:2\n100:1\n", "2 task ids occur more than once."),
        ("100:1\n100:101\n", "GuessNumber has no task '100:101'. Did you mean '100:"),
    ],
)
def test_an_invalid_file_raises_config_error(write, text, message):
    with pytest.raises(ConfigError) as error:
        ids(write(text))
    assert message in str(error.value)
    assert "ids.txt" in str(error.value)


def test_a_missing_file_lists_the_splits():
    with pytest.raises(ConfigError, match=r"'no/such\.txt' does not exist.*train, test, small_train, small_test\."):
        ids("no/such.txt")


def test_an_unknown_split_names_the_key_that_has_it():
    with pytest.raises(ConfigError, match=r"^env\.eval_tasks='tset' is not allowed: GuessNumber has no split"):
        select_tasks(make_env("guess_number"), "tset", key="env.eval_tasks")


def test_a_long_list_of_names_ends_with_a_whole_name():
    names = [f"number {n}" for n in range(100)]
    assert did_you_mean("x", names, 30) == "Known: number 0, number 1 and 98 more."
    assert did_you_mean("x", names[:3], 30) == "Known: number 0, number 1, number 2."


@pytest.mark.parametrize(("number", "text"), [(0, "0 processes"), (1, "1 process"), (2, "2 processes")])
def test_a_counted_noun_is_in_the_plural_unless_the_number_is_1(number, text):
    assert counted(number, "process") == text
    assert counted(2, "reply") == "2 replies" and counted(2, "turn") == "2 turns"


def test_overlapping_selections_raise_config_error(write):
    """In AgentGym's SciWorld 61 test items come from the training set."""
    leak = write(f"{ids('test')[3]}\n{ids('train')[0]}\n")
    with pytest.raises(ConfigError) as error:
        check_disjoint(items(leak), items("test"), SOURCES)
    assert str(error.value) == (
        f"env.train_tasks='train' and env.eval_tasks='test' share 1 task, such as '{ids('test')[3]}'. Choose splits "
        "that do not overlap."
    )


def test_a_split_whose_name_has_a_dot_is_no_missing_file():
    class Dotted(GuessNumber):
        splits = ("nq.v2",)

        def tasks(self, split):
            return [TaskItem("dotted", "1")]

    assert [item.id for item in select_tasks(Dotted(), "nq.v2", "env.eval_tasks")] == ["1"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-8"])
def test_a_file_of_ids_may_begin_with_a_byte_order_mark(encoding: str, tmp_path: Path):
    file = tmp_path / "ids.txt"
    file.write_text(ids("test")[0] + "\r\n", encoding=encoding)
    assert ids(str(file)) == ids("test")[:1]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_of_ids_in_another_encoding_raises_config_error_with_the_remedy(encoding: str, tmp_path: Path):
    file = tmp_path / "ids.txt"
    file.write_text(f"{ids('test')[0]} # für\n", encoding=encoding)
    with pytest.raises(ConfigError, match=r"ids\.txt is not UTF-8 \(byte \d+: .*\)\. Save it as UTF-8"):
        ids(str(file))


@pytest.mark.parametrize("source", ["x" * 300 + ".txt", "y" * 300, "test\0"])
def test_a_source_that_no_file_can_be_named_raises_config_error(source: str):
    with pytest.raises(ConfigError, match="is not allowed"):
        ids(source)
