"""Tests of the records of the sites' state and of their changes."""

import asyncio
import shutil
import sqlite3

import pytest

from env_adapters.web_sites.records import difference, record_changes
from env_adapters.webarena.grading.changes import Change
from env_adapters.webarena.grading.evaluators import FinalState
from env_adapters.webarena.grading.strict import strict_score
from verl_agent.errors import EnvError

TABLES = """
CREATE TABLE ticket(tkt_id INTEGER, tkt_uuid, tkt_ctime, title, type, status, priority, assignee, reporter, comment);
CREATE TABLE ticketchng(tkt_id, tkt_rid, login, mimetype, icomment);
CREATE TABLE user(uid INTEGER, login, pw, cap, info);
CREATE TABLE event(objid INTEGER, type, user, euser, comment, ecomment, bgcolor);
CREATE TABLE config(name, value);
CREATE TABLE tag(tagid, tagname);
CREATE TABLE tagxref(rid, tagid, tagtype, value);
CREATE TABLE blob(rid INTEGER, content);
INSERT INTO ticket VALUES(1, 'aaaa', 1.0, 'Slow', 'Bug', 'Open', 'Low', NULL, 'ida', 'It is slow.');
"""


@pytest.fixture
def folders(tmp_path):
    """Return the folder of the initial state and that of a copy, with one repository each."""
    before, after = tmp_path / "before", tmp_path / "after"
    (before / "code").mkdir(parents=True)
    with sqlite3.connect(before / "code" / "mill.fossil") as database:
        database.executescript(TABLES)
    shutil.copytree(before, after)
    return before, after


def run(folder, *statements):
    with sqlite3.connect(folder / "code" / "mill.fossil") as database:
        for statement in statements:
            database.execute(statement)


def test_unchanged_copy_has_no_changes(folders):
    assert record_changes(*folders) == []


def test_copy_without_files_has_no_changes(folders, tmp_path):
    (tmp_path / "empty").mkdir()
    assert record_changes(folders[0], tmp_path / "empty") == []


def test_changes_name_the_project_and_the_new_values(folders):
    run(folders[1], "UPDATE ticket SET status = 'Closed', assignee = ''", "INSERT INTO blob VALUES(9, 'x')")
    assert record_changes(*folders) == [Change("changed", "mill ticket", "aaaa", {"status": "Closed"})]


def test_captcha_that_was_shown_is_no_change(folders):
    """The code host writes a setting when it reads a captcha aloud."""
    run(
        folders[1],
        "INSERT INTO config VALUES('captcha-secret', 'x')",
        "INSERT INTO config VALUES('captcha-secret-1', 'x')",
    )
    assert record_changes(*folders) == []
    run(folders[1], "INSERT INTO config VALUES('project-name', 'x')")
    assert [change.record for change in record_changes(*folders)] == ["mill setting"]


def test_added_records_are_in_the_order_of_their_creation(folders):
    rows = [("zzzz", 2.0, "First"), ("bbbb", 3.0, "Second")]
    run(folders[1], *(f"INSERT INTO ticket(tkt_uuid, tkt_ctime, title) VALUES{row}" for row in rows))
    assert [change.values["title"] for change in record_changes(*folders)] == ["First", "Second"]


def test_row_of_an_unknown_table_is_a_change(folders):
    run(folders[1], "CREATE TABLE attachment(filename)", "INSERT INTO attachment VALUES('a.txt')")
    assert record_changes(*folders) == [Change("added", "mill table attachment", "1", {"filename": "a.txt"})]


def test_row_of_a_table_without_rowid_is_a_change(folders):
    """Reading its `rowid` raises, and the episode would be left out."""
    run(
        folders[1],
        'CREATE TABLE seen(page, "by", count, PRIMARY KEY(page, "by")) WITHOUT ROWID',
        "INSERT INTO seen VALUES('/home', 7, 2), ('/home', '7', 3)",
    )
    found = record_changes(*folders)
    assert [change.key for change in found] == ["'/home' '7'", "'/home' 7"]
    assert found[0].values == {"page": "/home", "by": "7", "count": "3"}


def test_texts_are_compared_with_single_spaces(folders):
    run(folders[1], "UPDATE ticket SET comment = 'It is' || char(13, 10) || ' slow.  '")
    assert record_changes(*folders) == []


def test_text_of_invalid_utf_8_is_a_change(folders):
    """A state that cannot be read would be an environment error, and the episode would be left out."""
    run(folders[1], "UPDATE ticket SET title = CAST(x'ff61' AS TEXT)")
    assert record_changes(*folders) == [Change("changed", "mill ticket", "aaaa", {"title": "\ufffda"})]


def test_removed_record_is_a_change():
    found = list(difference({("wish", "1"): {"product": "Pan"}}, {}))
    assert found == [Change("removed", "wish", "1", {"product": "Pan"})]


def test_state_of_sites_that_cannot_be_read_is_an_environment_error():
    with pytest.raises(EnvError, match="only the embedded sites record them"):
        asyncio.run(strict_score("state_change", {"state_change": []}, FinalState("", None, "", {})))
