"""Tasks in Harbor's format."""

import logging
import os
from pathlib import Path

import pytest

from env_adapters.terminal.adapter import Terminal
from env_adapters.terminal.grading import RunCheck, TerminalTask, TestsFailedError
from env_adapters.terminal.harbor import read_task, reward
from env_adapters.terminal.runtimes import Limits
from tests.support.sandboxes import Dying, as_files, need, play
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
        ({"reward.txt": "-3"}, 0.0),
    ],
)
def test_the_reward_is_read_from_either_file(written, expected):
    assert reward(as_files(written)) == expected


@pytest.mark.parametrize(
    "written",
    [
        *({"reward.txt": text} for text in ("nan", "inf", "-inf", "1e999", "yes", "", "1" * 5000)),
        *({"reward.json": text} for text in ("[]", "{}", '{"reward": NaN}', '{"reward": Infinity}', "[" * 100_000)),
        *({"reward.json": f'{{"reward": {text}}}'} for text in ("true", '"1"', "[1]", "null", "1" * 400)),
        {},
    ],
)
def test_a_reward_that_is_no_number_is_a_named_failure(written):
    with pytest.raises(TestsFailedError, match="they wrote"):
        reward(as_files(written))


def test_the_reward_may_not_be_other_bytes_than_text():
    with pytest.raises(TestsFailedError, match=r"reward\.txt"):
        reward({"reward.txt": (0o644, "1".encode("utf-16"))})


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("head -c 3000000 /dev/zero; echo 1 > /logs/verifier/reward.txt", "they wrote more than 1 MiB of output"),
        ("echo 1 > /logs/verifier/reward.txt; sleep 9", "they took more than 1 seconds"),
        ("echo nan > /logs/verifier/reward.txt", "they wrote no number from 0 to 1 to reward.txt: 'nan'"),
        ("true", "they wrote neither reward.txt nor reward.json"),
    ],
)
def test_tests_that_exceed_a_limit_or_say_nothing_fail_by_name(task, script, reason, caplog):
    need()
    (task / "tests" / "test.sh").write_text(script)
    (task / "task.toml").write_text(TOML.replace("20.0", "1.0"))
    step = play(*only(task), ["submit"])[-1]
    assert step.observation.startswith(f"The hidden tests failed: {reason}")
    assert (step.reward, step.terminated, dict(step.info)) == (0.0, True, {"tests_failed": 1.0})
    assert "the task upper failed" in caplog.text


def link(target: str):
    return lambda path: (path.unlink(missing_ok=True), path.symlink_to(target))


def content(data: bytes):
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("tests/expected.py", link("/etc/passwd"), "'tests/expected.py', a link"),
        ("environment/in.txt", link("/etc/passwd"), "'environment/in.txt', a link"),
        ("environment/more", link("/etc"), "'environment/more', a link"),
        ("instruction.md", link("/etc/passwd"), "'instruction.md', a link"),
        ("solution/solve.sh", link("missing"), "'solution/solve.sh', a link"),
        ("environment/pipe", os.mkfifo, "'environment/pipe', neither file nor folder"),
        ("instruction.md", content("Schön".encode("latin-1")), "instruction.md in another encoding than UTF-8"),
        ("instruction.md", content("Do it".encode("utf-16")), "instruction.md in another encoding than UTF-8"),
        ("solution/solve.sh", content(b"\xff"), "solve.sh in another encoding"),
        ("environment/Dockerfile", content(b"ENV A=\xff"), "Dockerfile in another encoding"),
        ("environment/Dockerfile", content(b"ENV A=\0"), "Dockerfile with a null character"),
        ("task.toml", content(b"\xff"), "task.toml in another encoding"),
        ("task.toml", content(b"x = " + b"[" * 5000), "not TOML"),
        ("task.toml", content(b"verifier = 3"), "verifier=3 in task.toml. Allowed: a table"),
        ("task.toml", content(b"environment = []"), r"environment=\[\] in task.toml. Allowed: a table"),
        ("task.toml", content(b"[environment]\ndocker_image = 5"), "docker_image=5. Allowed: the name"),
        *(
            ("task.toml", content(b"[agent]\ntimeout_sec = " + value), rf"agent\.timeout_sec={shown}\S* Allowed")
            for value, shown in (
                (b"nan", "nan"),
                *((b"inf", "inf"), (b"-inf", "-inf"), (b"0", "0"), (b"true", "True"), (b"[1]", r"\[1\]")),
                (b"9" * 500, "999"),
            )
        ),
        ("instruction.md", content(b"x" * (2 << 20)), "instruction.md of 2097152 bytes. Allowed: at most 1048576"),
        ("tests/more", lambda path: [path.with_name(f"{n}").touch() for n in range(201)], "203 of them in tests"),
        ("tests/a\nb", content(b""), "printable"),
        *(
            (
                f"tests/{name}",
                content(b"echo 1\r\n"),
                rf"tests/{name} with line ends of Windows.*sed -i 's/\\r\$//' \S+",
            )
            for name in ("test.sh", "run.sh")
        ),
    ],
)
def test_a_hostile_part_is_refused_with_the_name_of_the_task(task, part, change, message):
    change(task / part)
    with pytest.raises(ConfigError, match=rf"the task '\S*upper' has .*{message}"):
        read_task(task)


def test_a_task_that_is_a_link_is_refused(task):
    (task.parent / "other").symlink_to(task)
    with pytest.raises(ConfigError, match=r"the task '\S*other' has '\.', a link"):
        Terminal(tasks=str(task.parent)).tasks("all")


@pytest.mark.parametrize(
    "folder",
    [
        *("/", "relative", "/app/../etc", "/app/./x", "/etc", "/usr/local/x", "/proc/1", "/app//x", "/a b", '"/app"'),
        *("/app/$HOME", "/app/{seconds}", "/ünïcode", "/" + "x" * 300, "/tests/x", "~", "C:\\\\app", "/sys/fs"),
    ],
)
def test_an_odd_working_folder_is_named(task, folder):
    (task / "environment" / "Dockerfile").write_text(f"FROM debian:12\nWORKDIR {folder}\n")
    assert read_task(task).missing.startswith("`WORKDIR")
    with pytest.raises(ConfigError, match="upper needs more than a plain image"):
        only(task)


def test_copies_stay_in_the_working_folder(task):
    for to in ("../etc/x", "/srv/task/../x"):
        (task / "environment" / "Dockerfile").write_text(f"FROM debian:12\nWORKDIR /srv/task\nCOPY in.txt {to}\n")
        assert f"`COPY in.txt {to}`" in read_task(task).missing


@pytest.mark.parametrize(
    ("lines", "copies"),
    [
        ("COPY in.txt .", ["in.txt"]),
        ("WORKDIR /srv\nCOPY in.txt task/\nWORKDIR /srv/task", ["in.txt"]),
        ("COPY in.txt /srv/task/a.txt\nWORKDIR /srv/task", ["a.txt"]),
        ("WORKDIR /other\nCOPY data /srv/task/data\nWORKDIR /srv/task", ["data/more.txt"]),
        ("WORKDIR /srv/task\nCOPY in.txt a.\nCOPY in.txt ./", ["a.", "in.txt"]),
    ],
)
def test_a_copy_lands_where_the_working_folder_of_its_line_puts_it(task, lines, copies):
    (task / "environment" / "Dockerfile").write_text(f"FROM debian:12\n{lines}\n")
    assert (list(read_task(task).copies), read_task(task).missing) == (copies, "")


@pytest.mark.parametrize(
    "lines",
    [
        "WORKDIR /srv\nCOPY in.txt .\nWORKDIR /srv/task",
        "COPY in.txt .\nWORKDIR /app",  # the folder of the image is another one
        "COPY in.txt /app/\nWORKDIR /srv/task",
        "WORKDIR /srv/task\nCOPY in.txt .\nWORKDIR /other",
    ],
)
def test_a_copy_outside_of_the_last_working_folder_is_named(task, lines):
    (task / "environment" / "Dockerfile").write_text(f"FROM debian:12\n{lines}\n")
    assert read_task(task).copies == {}
    assert read_task(task).missing.startswith("`COPY in.txt")


@pytest.mark.parametrize(("ended", "expected"), [(0, 1.0), (1, 1.0), (2, 0.0)])
def test_hidden_tests_whose_sandbox_ends_get_a_second_one(task, ended, expected):
    """A second end counts: an error would let the agent's programs choose which episodes count."""
    assert read_task(task).grade({}, Dying(ended), Limits()) == expected
    generated = TerminalTask("", {}, [], [RunCheck(("/bin/cat", "out.txt"), "", "SOME WORDS")])
    assert generated.grade({}, Dying(ended), Limits()) == expected


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
        ("tests/test.sh", r"upper' has no tests\. Add tests/test\.sh"),
        ("instruction.md", r"upper' has no instruction\.md"),
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
