"""Unchanged copies share their answers; one that was changed never gets them, nor gives its own."""

import multiprocessing
import shutil
import sqlite3

import pytest

from env_adapters.web_sites.served.copies import Copies, current
from env_adapters.web_sites.served.one_token import TOKEN, OneToken
from env_adapters.web_sites.served.pristine import MAX_ANSWERS, PristineAnswers


class Counting:
    """A site that says what its copy holds, and counts how often it is asked."""

    asked = 0

    def __call__(self, environ, start_response):
        self.asked += 1
        with sqlite3.connect(current.get() / "site.sqlite3") as database:
            if environ["REQUEST_METHOD"] == "POST" or environ["QUERY_STRING"] == "count":
                database.execute("INSERT INTO notes VALUES ('more')")
            found = database.execute("SELECT count(*) FROM notes").fetchone()[0]
        database.close()
        start_response("200 OK", [("X-Answer", str(found))])
        return [str(found).encode()]


@pytest.fixture
def site(tmp_path):
    seed = tmp_path / "seed"
    seed.mkdir()
    with sqlite3.connect(seed / "site.sqlite3") as database:
        database.execute("CREATE TABLE notes (text)")
    database.close()
    copies = tmp_path / "copies"
    for name in ("a" * 32, "b" * 32):
        (copies / name).mkdir(parents=True)
    return Copies(
        Counting(), seed, copies, ["site.sqlite3"], {}, PristineAnswers(seed / "site.sqlite3", tmp_path / "answers")
    )


def ask(site, copy, method="GET", query="", cookie=""):
    environ = {"PATH_INFO": "/", "REQUEST_METHOD": method, "QUERY_STRING": query, "HTTP_COOKIE": cookie}
    said = []
    body = b"".join(site({**environ, "HTTP_X_SITE_COPY": copy * 32}, lambda status, headers: said.extend(headers)))
    assert said == [("X-Answer", body.decode())]
    return int(body)


def test_a_page_is_made_once_for_all_unchanged_copies(site):
    assert [ask(site, copy) for copy in "abab"] == [0, 0, 0, 0]
    assert site.app.asked == 1


def test_a_copy_that_was_changed_is_asked_anew_and_the_others_are_not_told(site):
    ask(site, "a")
    assert ask(site, "a", "POST") == 1
    assert [ask(site, copy) for copy in "abab"] == [1, 0, 1, 0]


def test_an_answer_that_changed_the_copy_by_being_made_is_not_kept(site):
    assert ask(site, "a", query="count") == 1
    assert ask(site, "b", query="count") == 1
    assert site.app.asked == 2


def test_cookies_and_queries_have_answers_of_their_own(site):
    for cookie in ("", "user=1"):
        for query in ("", "page=2"):
            ask(site, "a", query=query, cookie=cookie)
    assert site.app.asked == 4


@pytest.fixture
def answers(tmp_path):
    shutil.copyfile(__file__, tmp_path / "file")
    return PristineAnswers(tmp_path / "file", tmp_path / "answers")


def test_only_so_many_answers_are_kept(answers):
    for number in range(MAX_ANSWERS + 5):
        answers.keep((number,), ("200 OK", [], b"page"))
    assert len(list(answers.folder.iterdir())) == 5
    assert answers.get((0,)) is None
    assert answers.get((MAX_ANSWERS,)) == ("200 OK", [], b"page")


def test_an_error_is_not_kept(answers):
    answers.keep(("error",), ("500 Internal Server Error", [], b""))
    assert answers.get(("error",)) is None


def test_workers_share_the_answers(answers):
    """As gunicorn's do: forked after the application was made."""
    worker = multiprocessing.get_context("fork").Process(
        target=answers.keep, args=(("page",), ("200 OK", [("X-Made", "elsewhere")], b"page"))
    )
    worker.start()
    worker.join()
    assert answers.get(("page",)) == ("200 OK", [("X-Made", "elsewhere")], b"page")


def test_a_site_that_starts_begins_without_answers(answers):
    answers.keep(("page",), ("200 OK", [], b"page"))
    assert PristineAnswers(answers.folder.parent / "file", answers.folder).get(("page",)) is None


@pytest.mark.parametrize(
    ("sent", "seen"),
    [("", f"csrf={TOKEN}"), ("session=1", f"session=1; csrf={TOKEN}"), ("session=1; csrf=own", "session=1; csrf=own")],
)
def test_visitors_without_a_token_have_the_same_one(sent, seen):
    found = []
    site = OneToken(lambda environ, start_response: found.append(environ["HTTP_COOKIE"]) or [], "csrf")
    site({"HTTP_COOKIE": sent}, lambda *answer: None)
    assert found == [seen]
