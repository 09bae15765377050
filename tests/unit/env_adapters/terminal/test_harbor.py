"""Tasks in Harbor's format."""

import logging
from pathlib import Path

import pytest

from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.harbor import read_task, reward
from tests.support.sandboxes import as_files, need, play
from verl_agent.errors import ConfigError

TOML = """
version = "1.0"
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 20.0
[agent]
timeout_sec = 60.0
"""
TEST = """#!/bin/bash
mkdir -p /logs/verifier
if python3 -c 'import sys; sys.path.insert(0, "/tests")
import expected; assert open("out.txt").read() == expected.TEXT'; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
DOCKERFILE = """# A plain base.
FROM python:3.11-slim
WORKDIR /srv/task
ENV GREETING=hello
COPY in.txt .
COPY data /srv/task/data/
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task with all parts."""
    files = {
        "task.toml": TOML,
        "instruction.md": "Write in.txt in upper case to out.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/in.txt": "some words",
        "environment/data/more.txt": "more",
        "tests/test.sh": TEST,
        "tests/expected.py": "TEXT = 'SOME WORDS'\n",
        "solution/solve.sh": "#!/bin/bash\ntr a-z A-Z < in.txt > out.txt\n",
    }
    for name, text in files.items():
        (tmp_path / "upper" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "upper" / name).write_text(text)
    return tmp_path / "upper"


def only(folder: Path):
    env = Terminal(tasks=str(folder))
    return env, env.tasks("all")[0]


def test_a_task_is_played_in_its_folder_and_graded_by_its_tests(task):
    need()
    env, item = only(task.parent)
    assert [one.action for one in env.demonstration(item)][-1] == "submit"
    steps = play(
        env,
        item,
        ["pwd; echo $GREETING; cat data/more.txt; ls /tests /logs", *(one.action for one in env.demonstration(item))],
    )
    assert (
        steps[0].observation.startswith("/srv/task\nhello\nmore") and "cannot access '/tests'" in steps[0].observation
    )
    assert steps[-1].reward == 1.0
    assert play(env, item, ["submit"])[-1].reward == 0.0


@pytest.mark.parametrize(
    "cheat",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; mkdir logs; echo 1 > logs/reward.txt",
        "printf 'TEXT = \"x\"' > expected.py; printf x > out.txt",
        "printf 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py sys.py expected.py > x; touch out.txt",
        "printf '#!/bin/sh\\nexit 0' > python3; chmod +x python3; export PATH=/srv/task:$PATH",
        "ln -s /tests/expected.py out.txt; ln -s /logs/verifier/reward.txt reward.txt",
    ],
)
def test_files_that_the_agent_leaves_do_not_fake_the_reward(task, cheat):
    need()
    env, item = only(task)
    assert play(env, item, [cheat, "submit"])[-1].reward == 0.0


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"reward.txt": "0.5\n"}, 0.5),
        ({"reward.json": '{"reward": 0.25}'}, 0.25),
        ({"reward.txt": "17"}, 1.0),
        ({"reward.txt": "nan"}, 0.0),
        ({"reward.txt": "yes"}, 0.0),
        ({"reward.json": "[]"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_reward_is_read_from_either_file(written, expected):
    assert reward(as_files(written)) == expected


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("RUN apt-get install -y gcc", "`RUN apt-get install -y gcc`"),
        ("FROM nvidia/cuda:12", "`FROM nvidia/cuda:12`"),
        ("COPY in.txt /etc/passwd", "`COPY in.txt /etc/passwd`"),
        ("COPY ../secret .", "`COPY ../secret .`"),
        ("WORKDIR /etc", "`WORKDIR /etc`"),
        ("USER agent", "`USER agent`"),
        ("ENV PATH=/opt/bin:$PATH", "`ENV PATH=/opt/bin:$PATH`"),
    ],
)
def test_what_needs_more_than_a_plain_image_is_named_and_left_out(task, line, named, caplog):
    with (task / "environment" / "Dockerfile").open("a") as file:
        file.write(line + "\n")
    assert named in read_task(task).missing
    with pytest.raises(ConfigError, match=r"upper needs more than a plain image.*set runtime=docker"):
        only(task)
    other = task.parent / "other"
    task.rename(other)
    (task.parent / "plain").mkdir()
    for part in ("task.toml", "instruction.md", "tests/test.sh"):
        (task.parent / "plain" / part).parent.mkdir(exist_ok=True)
        (task.parent / "plain" / part).write_text((other / part).read_text())
    with caplog.at_level(logging.WARNING):
        assert [one.id for one in Terminal(tasks=str(task.parent)).tasks("all")] == ["plain"]
    assert named in caplog.text


def test_tests_that_need_a_network_are_named(task):
    (task / "tests" / "test.sh").write_text("curl -LsSf https://example.org/install.sh | sh\n")
    assert read_task(task).missing == "tests/test.sh uses curl, which needs a network"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("tests/test.sh", r"upper has no tests\. Add tests/test\.sh"),
        ("instruction.md", r"upper has no instruction\.md"),
        ("task.toml", r"has no task\.toml.*or `generated`"),
    ],
)
def test_a_task_without_a_part_is_refused(task, part, message):
    (task / part).unlink()
    with pytest.raises(ConfigError, match=message):
        only(task)


def test_a_limit_that_is_no_number_is_refused(task):
    (task / "task.toml").write_text(TOML.replace("20.0", '"long"'))
    with pytest.raises(ConfigError, match=r"verifier\.timeout_sec='long'\. Allowed"):
        only(task)


def test_a_quoted_variable_and_a_folder_whose_name_begins_as_that_of_the_system_are_read(task):
    (task / "environment" / "Dockerfile").write_text('FROM debian:12\nWORKDIR /development\nENV GREETING="hello"\n')
    layout = read_task(task).layout
    assert (layout.folder, layout.environ, read_task(task).missing) == ("/development", {"GREETING": "hello"}, "")


def test_the_last_observation_names_the_limit_of_the_task(task):
    need()
    (task / "task.toml").write_text(TOML.replace("60.0", "1.0"))
    steps = play(*only(task.parent), ["sleep 5"])
    assert "The episode has ended after 1 seconds." in steps[-1].observation
