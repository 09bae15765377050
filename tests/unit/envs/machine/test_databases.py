"""SQLite on file systems that refuse its write-ahead log, or its locks altogether."""

import errno
import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.cluster_files import refusing

JOURNAL = """
import logging, sys
from pathlib import Path
from verl_agent.envs.machine.databases import check_databases, connect
from verl_agent.errors import ConfigError
logging.basicConfig(format="%(message)s")
folder = Path(sys.argv[1])
try:
    check_databases(folder, "Choose another.")
except ConfigError as error:
    sys.exit(str(error))
writer, reader = connect(folder / "db"), connect(folder / "db")
writer.execute("CREATE TABLE t (a)")
writer.execute("INSERT INTO t VALUES (7)")
print(reader.execute("PRAGMA journal_mode").fetchone()[0], reader.execute("SELECT a FROM t").fetchone()[0])
"""
MODES = [("", 0, "wal"), ("mmap", errno.ENODEV, "delete"), ("mmap", errno.EINVAL, "delete")]
LOCKS = [("fcntl", number) for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)]


def run(script: str, folder, kinds: str, number: int) -> subprocess.CompletedProcess[str]:
    given = refusing(folder, kinds, number) if kinds else dict(os.environ)
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, env=given, capture_output=True, text=True
    )


@pytest.mark.parametrize(("kinds", "number", "mode"), MODES)
def test_the_best_journal_that_works_is_used(kinds, number, mode, tmp_path):
    done = run(JOURNAL, tmp_path, kinds, number)
    assert done.stdout == f"{mode} 7\n", done.stderr
    assert ("rollback journal" in done.stderr) == (mode == "delete")
    assert {path.name for path in tmp_path.iterdir()} <= {"db", "db-wal", "db-shm"}


@pytest.mark.parametrize(("kinds", "number"), LOCKS)
def test_a_folder_without_locks_is_named_at_the_start(kinds, number, tmp_path):
    done = run(JOURNAL, tmp_path, kinds, number)
    assert done.returncode == 1 and str(tmp_path) in done.stderr and "Choose another." in done.stderr
    assert "disk space" not in done.stderr


VIEWER = """
import json, logging, sys
from pathlib import Path
from tests.support.episodes import played
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.listings import list_groups
from verl_agent.viewer.sources import open_source
logging.basicConfig(format="%(message)s")
file = Path(sys.argv[1], "run", "episodes.jsonl")
file.parent.mkdir(exist_ok=True)
file.write_text(json.dumps(played(("north", "hall"))) + "\\n")
with RecordIndex(open_source(file.parent)) as index:
    index.update()
    count = index.db.execute("SELECT count(*) FROM episodes").fetchone()[0]
    print(count, index.path.is_relative_to(file.parent))
print(index.path.exists())
"""


PLACES = [*((kinds, number, True) for kinds, number, _ in MODES), *((*one, False) for one in LOCKS)]


@pytest.mark.parametrize(("kinds", "number", "beside"), PLACES)
def test_the_viewer_reads_records_everywhere(kinds, number, beside, tmp_path):
    """The index lies in a temporary folder where SQLite does not work beside the records, and is removed at the end."""
    done = run(VIEWER, tmp_path, kinds, number)
    assert done.stdout == f"1 {beside}\n{beside}\n", done.stderr
    assert ("refuses SQLite" in done.stderr) == (not beside)


@pytest.mark.parametrize(("kinds", "number"), [("mmap", errno.ENODEV), ("mmap", errno.EIO), ("fcntl", errno.ENOLCK)])
def test_an_index_of_another_machine_whose_log_is_refused_here_is_built_in_a_temporary_folder(kinds, number, tmp_path):
    """A machine that allows the write-ahead log has left its mark in the file, which this one cannot open."""
    assert run(VIEWER, tmp_path, "", 0).stdout == "1 True\nTrue\n"
    done = run(VIEWER, tmp_path, kinds, number)
    assert done.stdout == "1 False\nFalse\n", done.stderr
    assert "the index lies in a temporary folder" in done.stderr
    assert run(VIEWER, tmp_path, "", 0).stdout == "1 True\nTrue\n"
