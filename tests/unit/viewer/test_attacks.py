"""Attacks on a running viewer: another user of the machine, a page of another origin, an episode of 100,000 turns."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.support.episodes import STARTED, played
from tests.support.viewing import at, chromium, cli, viewing
from tests.support.waiting import wait_until
from tests.support.web import needs_chromium
from verl_agent.trace.record import EpisodeMeta
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.parts import PART, read_part
from verl_agent.viewer.queries import find_episodes, find_group
from verl_agent.viewer.sources import open_source

TURNS = 100_000


def long_episode(turns: int, group: str = "1-0") -> str:
    """Return the line of an episode whose texts need several bytes a character, with a loop at its end."""
    acted = [(f"go {number} é😀", f"you are at {number} ü\u2028") for number in range(1, turns - 3)]
    acted += [(text, "nothing") for text in ("up", "down") * 2]
    meta = EpisodeMeta("train", "train", 1, group, 0, STARTED, 1.0)
    return json.dumps(played(*acted, first="Goal: ä.", meta=meta), ensure_ascii=False)


def write_run(folder: Path, *lines: str) -> Path:
    for name in ("episodes", "metrics"):
        (folder / name).mkdir(parents=True)
    (folder / "episodes" / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", json.dumps(played(("north", "hall"))))


@pytest.fixture(scope="module")
def url(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with viewing(run, tmp_path_factory.mktemp("config")) as found:
        yield found


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to become another user")
@pytest.mark.parametrize("path", ["/", "/run/run/episode/1", "/run/run/control", "/run/run/media/a.png", "/_nicegui/x"])
def test_another_user_of_the_machine_gets_nothing_without_the_token(url: str, path: str) -> None:
    start = url.partition("/?")[0]
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    command = [*other, "curl", "-s", "-o", os.devnull, "-w", "%{http_code}"]
    for guess in ("", "?token=", "?token=secret"):
        assert subprocess.run([*command, f"{start}{path}{guess}"], capture_output=True, text=True).stdout == "403"
    socket = [*command, "-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "-H", "Sec-WebSocket-Version: 13"]
    socket += [
        "-H",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"{start}/_nicegui_ws/socket.io/?transport=websocket",
    ]
    assert subprocess.run(socket, capture_output=True, text=True).stdout == "403"


class Foreign(BaseHTTPRequestHandler):
    """Web page of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>foreign</title>")

    def log_message(self, *_: object) -> None:
        """Keep the output of the tests clean."""


@needs_chromium
def test_a_page_of_another_origin_reads_nothing_although_the_browser_has_the_token(url: str) -> None:
    foreign = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=foreign.serve_forever, daemon=True).start()
    start = url.partition("/?")[0]
    try:
        with chromium() as browser:
            context = browser.new_context()
            own = context.new_page()
            own.goto(at(url, "/run/run/episode/1"))
            own.get_by_text("north").first.wait_for()
            page = context.new_page()
            statuses: list[int] = []
            page.on("response", lambda answer: statuses.append(answer.status) if answer.url.startswith(start) else None)
            page.goto(f"http://localhost:{foreign.server_port}/")
            script = """async url => {
                const read = await fetch(url, {credentials: 'include'}).then(() => 'read', () => 'refused');
                await fetch(url, {credentials: 'include', mode: 'no-cors'}).catch(() => null);
                const socket = new WebSocket(url.replace('http', 'ws') + '/_nicegui_ws/socket.io/?transport=websocket');
                return [read, await new Promise(done => {
                    socket.onopen = () => done('open');
                    socket.onerror = () => done('refused');
                })];
            }"""
            assert page.evaluate(script, start) == ["refused", "refused"]
            assert statuses and set(statuses) == {403}
    finally:
        foreign.shutdown()
        foreign.server_close()


def test_parts_have_the_turns_the_behaviors_and_the_numbers_of_the_whole_episode(tmp_path: Path) -> None:
    turns = 3 * PART + 7
    run = write_run(tmp_path / "run", long_episode(turns), json.dumps(played(("x", "y"))))
    with RecordIndex(open_source(run)) as index:
        index.update()
        whole = index.read(1)
        parts = [read_part(index, 1, turn) for turn in range(1, turns + 1, PART)]
        assert [turn for part in parts for turn in part.record["turns"]] == whole["turns"]
        assert [number for part in parts for number in part.numbers] == list(range(1, turns + 1))
        assert [len(part.behaviors) for part in parts] == [PART, PART, PART, 7]
        assert "loop" in parts[-1].behaviors[-1] and parts[0].behaviors[0] == []
        assert read_part(index, 1, 10**9).numbers == parts[-1].numbers
        assert {part.record["messages"][0]["content"] for part in parts} == {"Goal: ä."}
        assert read_part(index, 2).whole
        assert "actions" not in find_episodes(index, Filter())[0]
        assert len(json.loads(find_group(index, "1-0", 1, "train").episodes[0]["actions"])) == turns


def test_a_replaced_file_takes_its_parts_along(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", long_episode(2 * PART))
    with RecordIndex(open_source(run)) as index:
        index.update()
        (run / "new").write_text(long_episode(3 * PART) + "\n")
        os.replace(run / "new", run / "episodes" / "a.jsonl")
        index.update()
        (row,) = find_episodes(index, Filter())
        assert read_part(index, row["id"], 1).total == 3 * PART
        assert index.db.execute("SELECT count(*) FROM parts").fetchone()[0] == 3


def test_an_exported_page_names_the_turns_and_episodes_that_it_leaves_out(tmp_path: Path) -> None:
    words = json.dumps(played(("north", "hall" * 250_000)))
    run = write_run(tmp_path / "run", long_episode(1000), *[words] * 10)
    export_episodes([run], tmp_path / "page.html", "step=1")
    assert "950 more turns are left out" in (tmp_path / "page.html").read_text()
    wrote = export_episodes([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert f"{11 - wrote} more episodes are left out" in text and wrote < 11
    assert len(text) < 6_000_000


def test_an_episode_of_100_000_turns_opens_and_the_viewer_ends_when_it_is_told_to(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", long_episode(TURNS))
    server = subprocess.Popen(cli("view", str(run), "--port", "0"), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(found[0]).close()
        path = "/run/run/episode/1"

        def read() -> str:
            return browser.open(at(found[0], path)).read().decode()

        # A poll delays the index, which is being built: the page is rendered for it.
        wait_until(lambda: "turns 1 to 50 of 100,000" in read(), running=server, every_s=1.0)
        last = read()
        assert len(last) < 500_000 and '"id":"turn-50"' in last, "a part of the page is missing"
        for other in (f"{path}?turn={TURNS}", "/run/run/group?group=1-0&step=1", "/run/run/episodes"):
            assert len(browser.open(at(found[0], other)).read()) < 500_000, other
        assert psutil.Process(server.pid).memory_info().rss < 400e6
        threading.Thread(target=browser.open, args=(at(found[0], path),), daemon=True).start()
        server.send_signal(signal.SIGTERM)
        server.wait(10)
    finally:
        server.kill()
        server.wait()


def test_sigterm_ends_the_viewer_while_it_reads_records(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *[long_episode(20_000)] * 5)
    server = subprocess.Popen(cli("view", str(run), "--port", "0"), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        server.wait(10)
    finally:
        server.kill()
        server.wait()
