"""A request sees the copy that it names and no other, and is refused without one."""

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from env_adapters.web_sites.folders import Home
from env_adapters.web_sites.served.copies import VISITOR, Copies, current
from env_adapters.web_sites.siteset import SITES, SiteSet
from env_adapters.web_sites.supervisor import remove_idle_copies
from verl_agent.errors import ConfigError, EnvError

PORTS = {"shop": 7770, "forum": 7771, "code": 7772}


def notes(environ, start_response):
    """A site that adds a note at each POST and shows all notes."""
    with sqlite3.connect(current.get() / "site.sqlite3") as database:
        if environ["REQUEST_METHOD"] == "POST":
            database.execute("INSERT INTO notes VALUES (?)", (environ["QUERY_STRING"],))
        found = [row[0] for row in database.execute("SELECT text FROM notes")]
    database.close()
    start_response("200 OK", [])
    return [",".join(found).encode()]


@pytest.fixture
def site(tmp_path):
    seed, copies, static = tmp_path / "seed", tmp_path / "copies", tmp_path / "static"
    for folder in (seed, copies, static):
        folder.mkdir()
    with sqlite3.connect(seed / "site.sqlite3") as database:
        database.execute("CREATE TABLE notes (text)")
        database.execute("INSERT INTO notes VALUES ('first')")
    database.close()
    (static / "style.css").write_text("body {}")
    (tmp_path / "secret").write_text("secret")
    return Copies(notes, seed, copies, ["site.sqlite3"], {"/static/": static})


def ask(site, copy="", path="/", post="", host="shop.test"):
    """Status and text of an answer."""
    answered = []
    environ = {"PATH_INFO": path, "REQUEST_METHOD": "POST" if post else "GET", "QUERY_STRING": post, "HTTP_HOST": host}
    if copy:
        environ["HTTP_X_SITE_COPY"] = copy
    body = b"".join(site(environ, lambda status, headers: answered.append(status)))
    return answered[0][:3], body.decode()


def home_of(site):
    home = Home(site.folder.parent)
    return SiteSet(home, PORTS, 1, 0)


def test_two_copies_do_not_see_each_other(site):
    one, other = home_of(site).acquire(), home_of(site).acquire()
    ask(site, one.name, post="mine")
    assert ask(site, one.name) == ("200", "first,mine")
    assert ask(site, other.name) == ("200", "first")
    assert ask(site, home_of(site).acquire().name) == ("200", "first")


@pytest.mark.parametrize("copy", ["", "0" * 32, "visitor", "../seed", ".", "0" * 32 + "/.."])
def test_a_request_without_a_copy_of_its_own_is_refused(site, copy):
    ask(site, host="127.0.0.1:7770")  # the visitors' copy is there
    assert ask(site, copy)[0] == "403"


def test_people_see_a_copy_of_their_own(site):
    ask(site, host="127.0.0.1:7770", post="hello")
    assert ask(site, host="localhost") == ("200", "first,hello")
    assert ask(site, home_of(site).acquire().name) == ("200", "first")


def test_a_copy_that_was_released_is_gone_and_does_not_come_back(site):
    copy = home_of(site).acquire()
    ask(site, copy.name)
    copy.release()
    copy.release()
    assert ask(site, copy.name)[0] == "403"
    assert not list(site.folder.iterdir())


def test_workers_that_fill_a_copy_at_once_lose_nothing(site):
    copy = home_of(site).acquire()
    threads = [threading.Thread(target=ask, args=(site, copy.name), kwargs={"post": str(n)}) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ask(site, copy.name)[1].split(",")) == sorted(["first", *map(str, range(16))])
    assert [file.name for file in copy.folder.iterdir()] == ["site.sqlite3"]


def test_files_are_sent_without_a_copy_but_only_those_of_the_folder(site):
    assert ask(site, path="/static/style.css") == ("200", "body {}")
    assert ask(site, path="/static/../secret")[0] == "404"
    assert ask(site, path="/static/none.css")[0] == "404"


def test_copies_that_nobody_uses_are_swept(site):
    old, new = home_of(site).acquire(), home_of(site).acquire()
    (site.folder / VISITOR).mkdir()
    for folder in (old.folder, site.folder / VISITOR):
        os.utime(folder, (1, 1))
    assert remove_idle_copies(site.folder, idle_s=60) == 1
    assert sorted(folder.name for folder in site.folder.iterdir()) == sorted([new.name, VISITOR])


def test_without_sites_the_error_says_how_to_start_them(tmp_path):
    with pytest.raises(ConfigError, match="verl-agent sites up"):
        SiteSet.running(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match="verl-agent sites up"):
        SiteSet.running(tmp_path)
    with pytest.raises(EnvError, match="verl-agent sites up"):
        SiteSet(Home(tmp_path / "none"), PORTS, 1, 0).acquire()


def test_addresses_lead_to_the_ports_and_name_every_site(tmp_path):
    sites = SiteSet(Home(tmp_path), PORTS, 1, 0)
    assert sites.routes == {
        "shop.test:80": ("127.0.0.1", 7770),
        "admin.test:80": ("127.0.0.1", 7770),
        "forum.test:80": ("127.0.0.1", 7771),
        "code.test:80": ("127.0.0.1", 7772),
    }
    assert set(sites.urls) == set(SITES)


def test_a_session_is_logged_in_where_it_asks_for_it(tmp_path):
    (tmp_path / "copies").mkdir()
    copy = SiteSet(Home(tmp_path), PORTS, 1, 0).acquire()
    assert copy.cookies([]) == []
    customer, admin = copy.cookies(["shopping", "shopping_admin"])
    assert (customer["domain"], admin["domain"]) == ("shop.test", "admin.test")
    assert customer["value"] != admin["value"]
    assert len(copy.cookies(["gitlab"])) == 8


def test_the_folder_of_the_state_changes_with_the_code_that_writes_it():
    home = Home(Path("/x"))
    assert home.seed(1) != home.seed(2)
    assert home.seed(1) == home.seed(1)
