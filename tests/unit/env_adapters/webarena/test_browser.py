"""Tests of actions on local pages and of failures of pages, sites and browsers."""

import asyncio
import os
import shlex
import socket
import sys
import time
from contextlib import contextmanager, suppress
from threading import Thread

import psutil
import pytest
from aiohttp import web

from env_adapters.webarena.browser.chromium import find_chromium
from env_adapters.webarena.browser.grammar import PageActionError
from env_adapters.webarena.browser.network_proxy import SiteAddress
from env_adapters.webarena.browser.pool import RefusedStateError
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.browser.snapshot import PageView
from env_adapters.webarena.browser.tabs import MAX_TABS
from tests import ROOT
from tests.support.escapes import alive, left
from tests.support.waiting import wait_until
from tests.support.web import SITE, Player, needs_chromium, page, playing, serving, serving_pages
from verl_agent.envs.machine.memory import with_descendants
from verl_agent.errors import EnvError

pytestmark = needs_chromium
FORM = """<h1>Form</h1><input aria-label=Name oninput="out.textContent = 'is ' + this.value">
<form action=/sent><input name=q aria-label=Query></form><p id=out>nothing</p>
<button onclick="out.textContent = 'pressed'">Press me</button><label><input type=checkbox>Agree</label>
<div onmouseover="out.textContent = 'hovered'"><a href=#>Menu</a></div>
<select aria-label=Size onchange="out.textContent = 'size ' + this.value">
<option>Small<option>Large<option disabled>Huge</select>
<a href=/next>Next</a><a href=/next target=_blank>Elsewhere</a>
<p style='margin-top:2000px'>Far <a href=/next>below</a></p>"""
PAGES = {"/": FORM, "/next": "<h1>Second</h1><a href=/>Home</a>", "/sent": "<h1>Sent</h1>"}


@pytest.fixture(scope="module")
def site():
    with serving_pages(PAGES) as port:
        yield port


def test_click_presses_buttons_and_follows_links(site):
    with playing(site) as player:
        assert "'pressed'" in player.do("click <'Press me'>").text
        assert "checked: true" in player.do("click <checkbox>").text
        snapshot = player.do("click <'Next'>")
        assert snapshot.url == f"{SITE}/next" and "heading 'Second'" in snapshot.text


METRICS = """<p id=a>none</p><p id=b>none</p>
<button style="position: absolute; left: 777px; top: 333px; width: 40px; height: 20px"
  onclick="b.textContent = 'clicked ' + [event.pageX, event.clientX, event.clientY]">Here</button>
<script>const sizes = [innerWidth, innerHeight, screen.width, screen.height];
const wide = matchMedia('(min-width: 1280px) and (max-device-width: 1280px)').matches, turned = screen.orientation;
a.textContent = [...sizes, devicePixelRatio, visualViewport.scale, wide, turned.type, turned.angle]</script>"""


def test_painting_at_a_smaller_scale_changes_neither_layout_nor_clicks():
    """The second page is on another site, for which the browser starts another process."""
    texts = []
    with serving_pages({"/": METRICS}) as port:
        for scale in (1.0, PageView().paint_scale):
            player = Player(port, PageView(settle_s=5, paint_scale=scale))
            player.session.network_proxy.routes["other.example:80"] = SiteAddress("127.0.0.1", port)
            try:
                player.start()
                actions = ("hover <'Here'>", "click <'Here'>", "goto [http://other.example/]", "click <'Here'>")
                texts.append([player.do(action).text for action in actions])
            finally:
                player.close()
    assert texts[0] == texts[1]
    assert all("clicked 797,797,343" in texts[0][index] for index in (1, 3))


def test_type_fills_the_field_and_enter_submits(site):
    with playing(site) as player:
        assert "'is hello'" in player.do("type <'Name'> [hello] [0]").text
        assert player.do("type <'Query'> [shoes & socks]").url == f"{SITE}/sent?q=shoes+%26+socks"


def test_type_appends_to_the_text_of_a_field():
    """A click sets the cursor in the middle of the field. Text that the page selects is replaced."""
    body = """<input aria-label=Long value="0123456789" style="width: 60px">
    <input type=number aria-label=Count value=12>
    <textarea aria-label=Lines rows=3>one\ntwo\nthree</textarea>
    <input aria-label=Chosen value=old onclick="this.select()">"""
    with serving_pages({"/": body}) as port, playing(port) as player:
        for name, held in (("Long", "0123456789x"), ("Count", "123"), ("Lines", "one\ntwo\nthreex"), ("Chosen", "x")):
            player.do(f"type <'{name}'> [{'3' if name == 'Count' else 'x'}] [0]")
            assert player.run(player.session.page.input_value(f"[aria-label={name}]")) == held


def test_long_text_is_inserted_completely(site):
    text = "word " * 300
    with playing(site) as player:
        player.do(f"type <'Name'> [{text}] [0]")
        assert player.run(player.session.page.input_value("[aria-label=Name]")) == text


def test_hover_and_press(site):
    with playing(site) as player:
        assert "'hovered'" in player.do("hover <link 'Menu'>").text
        player.do("type <'Name'> [abc] [0]")
        player.do("press [Control+a]")
        assert "'is x'" in player.do("press [x]").text


def test_type_selects_the_option_of_a_list(site):
    with playing(site) as player:
        assert "'size Large'" in player.do("type <'Size'> [large]").text
        with pytest.raises(PageActionError, match="no option 'Medium'"):
            player.do("type <'Size'> [Medium]")


def test_show_options_shows_options_that_can_be_clicked(site):
    with playing(site, view=PageView(show_options=True)) as player:
        assert "option 'Small' selected: True" in player.snapshot.text
        assert "option 'Large' selected: True" in player.do("click <'Large'>").text
        with pytest.raises(PageActionError, match="is disabled"):
            player.do("click <'Huge'>")


def test_scroll_moves_the_viewport_and_whole_page_shows_everything(site):
    with playing(site) as player:
        assert "'below'" not in player.snapshot.text
        for _ in range(2):
            player.do("scroll [down]")
        assert "'below'" in player.do("scroll [down]").text
        assert "'below'" not in player.do("scroll [up]").text
    with playing(site, view=PageView(whole_page=True)) as player:
        assert player.do("click <'below'>").url == f"{SITE}/next"


def test_go_back_and_go_forward(site):
    with playing(site) as player:
        with pytest.raises(PageActionError, match="no page to go back to"):
            player.do("go_back")
        player.do("click <'Next'>")
        assert player.do("go_back").url == f"{SITE}/"
        assert player.do("go_forward").url == f"{SITE}/next"
        with pytest.raises(PageActionError, match="no page to go forward to"):
            player.do("go_forward")


def test_tabs_open_focus_and_close(site):
    with playing(site, "/", "/next") as player:
        assert player.snapshot.tabs == "Tab 0 (current): Page | Tab 1: Page"
        assert player.do("tab_focus [1]").url == f"{SITE}/next"
        assert player.do("new_tab").tabs == "Tab 0: Page | Tab 1: Page | Tab 2 (current): "
        assert player.do("goto [site.test/next]").url == f"{SITE}/next"
        assert player.do("close_tab").tabs == "Tab 0: Page | Tab 1 (current): Page"
        with pytest.raises(PageActionError, match="no tab 5"):
            player.do("tab_focus [5]")
        player.do("close_tab")
        assert player.do("close_tab").url == "about:blank"  # one tab always stays open


def test_link_to_a_new_tab_keeps_the_current_tab(site):
    with playing(site) as player:
        snapshot = player.do("click <'Elsewhere'>")
        assert snapshot.url == f"{SITE}/" and snapshot.tabs.startswith("Tab 0 (current): Page | Tab 1: ")
        assert player.do("tab_focus [1]").url == f"{SITE}/next"
        while len(player.session._tabs) < MAX_TABS:
            player.do("new_tab")
        with pytest.raises(PageActionError, match="8 tabs already"):
            player.do("new_tab")


CLOSING = """<button onclick="window.close()">close</button>
<button onclick="setTimeout(() => window.close(), 30)">soon</button>
<button onclick="setTimeout(() => window.close(), 1500)">later</button>
<button onclick="window.open('/popup')">open</button>"""


@pytest.mark.parametrize("name", ["close", "soon"])
def test_page_that_closes_its_own_tab_leaves_the_other_tabs(name):
    """Only windows that a script has opened may close themselves."""
    with serving_pages({"/": CLOSING, "/popup": CLOSING}) as port, playing(port) as player:
        player.do("click <'open'>")
        assert player.do("tab_focus [1]").url == f"{SITE}/popup"
        snapshot = player.do(f"click <'{name}'>")
        assert (snapshot.tabs, snapshot.url) == ("Tab 0 (current): Page", f"{SITE}/")
        assert player.do("click <'open'>").tabs.startswith("Tab 0 (current): Page | Tab 1: ")


@pytest.mark.parametrize("name", ["close", "soon"])
def test_page_that_closes_the_last_tab_leaves_an_empty_tab_and_a_note(name):
    """A popup closes itself after the agent has closed all other tabs."""
    with serving_pages({"/": CLOSING, "/popup": CLOSING}) as port, playing(port) as player:
        player.do("click <'open'>")
        assert player.do("close_tab").url == f"{SITE}/popup"
        snapshot = player.do(f"click <'{name}'>")
        assert (snapshot.url, snapshot.notes) == (
            "about:blank",
            ("The last tab was closed by its page; this one is empty.",),
        )
        assert player.do("goto [site.test]").url == f"{SITE}/"


def test_tab_that_closes_between_two_actions_is_reported():
    with serving_pages({"/": CLOSING, "/popup": CLOSING}) as port, playing(port) as player:
        player.do("click <'open'>")
        player.do("close_tab")
        player.do("click <'later'>")
        time.sleep(3)
        with pytest.raises(PageActionError, match="The page had closed its tab"):
            player.do("scroll [down]")
        assert player.run(player.session.observe()).url == "about:blank"


def test_new_document_restarts_the_node_numbers(site):
    with playing(site) as player:
        tab = player.session.tab
        assert tab._numbers.number_of("a node") != "1"
        navigation = tab._navigation
        navigation._on_navigated({"frame": {"id": navigation._main_frame, "url": tab.url}})
        assert tab._numbers.number_of("a node") == "1"


def test_missing_element_raises_action_error_with_its_id(site):
    with playing(site) as player:
        with pytest.raises(PageActionError, match=r"no element \[999999\]"):
            player.do("click [999999]")
        number = next(key for key, one in player.snapshot.page.elements.items() if "Press me" in one.description)
        player.run(player.session.page.evaluate("document.querySelector('button').remove()"))
        with pytest.raises(PageActionError, match="cannot be reached"):
            player.do(f"click [{number}]")


def test_observation_waits_until_the_page_has_settled():
    body = """<script>const show = text => setTimeout(() => out.textContent = text, 20)</script>
    <button onclick="fetch('/slow').then(r => r.text()).then(show)">load</button><p id=out>nothing</p>"""

    async def answer(request):
        if request.path == "/slow":
            await asyncio.sleep(0.5)
            return web.Response(text="arrived")
        return page(body)

    with serving(answer) as port, playing(port) as player:
        assert "'arrived'" in player.do("click <'load'>").text


def test_page_that_keeps_changing_is_read_in_time():
    body = "<p id=out></p><script>setInterval(() => out.textContent = Math.random(), 5)</script><a href=#>link</a>"
    with serving_pages({"/": body}) as port, playing(port, view=PageView(settle_s=30)) as player:
        started_at = time.monotonic()
        player.do("click <'link'>")
        assert time.monotonic() - started_at < 15


@contextmanager
def serving_bytes(response: bytes):
    """Serve a port that reads a request, sends these bytes, and closes the connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.recv(65536)
                connection.sendall(response)
                connection.close()

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


async def slow(request):
    if request.path == "/slow":
        await asyncio.sleep(2)
        return page("late")
    return page("<a href=/next onclick=\"fetch('/slow')\">go</a>" if request.path == "/" else "<h1>Second</h1>")


async def hang(request):
    await asyncio.sleep(30)
    return page("late")


def test_page_that_never_loads_raises_env_error_with_its_url():
    async def answer(request):
        return await hang(request) if request.path == "/never" else page("<a href=/never>go</a><button>stay</button>")

    with serving(answer) as port:
        with (
            playing(port, view=PageView(settle_s=2)) as player,
            pytest.raises(EnvError, match=r"/never did not come within 2 s"),
        ):
            player.do("click <'go'>")
        with (
            playing(port, view=PageView(settle_s=2)) as player,
            pytest.raises(EnvError, match=r"/never did not come within 2 s"),
        ):
            player.do("goto [http://site.test/never]")
        player = Player(port, PageView(settle_s=2))
        with pytest.raises(EnvError, match=r"the start page http://site.test/never did not load"):
            player.start("/never")
        player.close()


def test_image_that_never_loads_delays_the_page_only_until_the_timeout():
    async def answer(request):
        return await hang(request) if request.path == "/never.png" else page("<h1>Here</h1><img src=/never.png>")

    with serving(answer) as port, playing(port, view=PageView(settle_s=1)) as player:
        assert "'Here'" in player.snapshot.text


def test_dialogs_are_closed_and_reported():
    body = """<button onclick="alert('hello'); out.textContent = 'went on'">alert</button><p id=out></p>
    <button onclick="out.textContent = 'said ' + confirm('sure?')">ask</button>"""
    with serving_pages({"/": body}) as port, playing(port) as player:
        snapshot = player.do("click <'alert'>")
        assert snapshot.notes == ("A box (alert) said 'hello'; it was closed.",) and "'went on'" in snapshot.text
        assert "'said false'" in player.do("click <'ask'>").text
        assert player.do("scroll [down]").notes == ()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("while (true) alert('x')", "showed more than 20 dialogs"),
        ("for (let i = 0; i < 500; i++) window.open('/')", "opened more than 20 windows"),
        ("while (true) {}", "does not answer|did not come"),
    ],
)
def test_misbehaving_page_ends_only_its_own_episode(script, reason):
    pages = {"/": f'<button onclick="{script}">go</button><a href=#>stay</a>'}
    with serving_pages(pages) as port, playing(port) as other, playing(port, view=PageView(settle_s=1)) as player:
        with pytest.raises(EnvError, match=reason):
            player.do("click <'go'>")
        assert other.do("click <'stay'>").url == "http://site.test/#"


def test_window_whose_name_has_half_a_surrogate_pair_ends_no_session():
    """Chromium reports the name in an event that the usual JSON decoders reject."""
    pages = {"/": "<button onclick=\"window.open('/p', '\\ud800')\">go</button><a href=#>stay</a>", "/p": "<p>popup"}
    with serving_pages(pages) as port, playing(port) as other, playing(port) as player:
        assert "Tab 1" in player.do("click <'go'>").tabs
        assert other.do("click <'stay'>").url == "http://site.test/#"


def test_window_that_is_left_after_its_opener_has_closed_is_attached():
    """The evaluators need the URL of the current tab, which no observation has shown."""
    body = "<button onclick=\"window.open('/p')\">go</button>"
    with serving_pages({"/": body, "/p": "<p>popup"}) as port, playing(port) as player:
        player.do("click <'go'>")
        player.run(player.session.page.close())
        player.run(player.session.ensure_tab())
        assert player.session.tab.url == "http://site.test/p"


def test_endless_redirect_is_reported_and_can_be_left():
    async def answer(request):
        if request.path == "/round":
            raise web.HTTPFound("/round")
        return page("<a href=/round>round</a>")

    with serving(answer) as port, playing(port) as player:
        snapshot = player.do("goto [http://site.test/round]")
        assert "ERR_TOO_MANY_REDIRECTS" in snapshot.notes[0]
        assert "'round'" in player.do("goto [http://site.test/]").text
        assert "chrome-error" in player.do("click <'round'>").url
        assert "'round'" in player.do("go_back").text


def test_site_that_is_down_raises_env_error_with_its_url():
    with serving_pages({"/": "<a href=/>again</a>"}) as port:
        player = Player(port)
        with pytest.raises(EnvError, match=r"/missing answers 404\. Check that the site is up, and its URL"):
            player.start("/missing")
        player.close()
        player = Player(port)
        player.start("/")
    with pytest.raises(EnvError, match=r"a site does not answer: http://site\.test/"):
        player.do("click <'again'>")
    player.close()
    player = Player(1)
    with pytest.raises(EnvError, match=r"answers 502: http://site\.test/"):
        player.start("/")
    player.close()


@pytest.mark.parametrize(
    ("headers", "response", "reason"),
    [
        ({}, b"", "the connection closed before the response"),
        ({"X-Site-Copy": "mine"}, b"HTTP/1.1 403 Forbidden\r\nx-site-copy-lost: none\r\n\r\ngone", "403 Forbidden"),
        ({"X-Site-Copy": "mine"}, b"HTTP/1.1 502 Bad Gateway\r\n\r\nFossil did not answer.", "502 Bad Gateway"),
        ({}, b"HTTP/1.1 503 Service Unavailable\r\n\r\nMaintenance", "503 Service Unavailable"),
        ({}, b"HTTP/1.1 504 Gateway Timeout\r\n\r\nToo slow", "504 Gateway Timeout"),
    ],
)
def test_failed_response_of_a_site_ends_the_episode(site, headers, response, reason):
    """A closed connection, a gateway error and a lost copy of the site are errors and are never shown as a page."""
    with serving_bytes(response) as port:
        player = Player(site)
        player.session.network_proxy.routes["other.test:80"] = SiteAddress("127.0.0.1", port, headers)
        player.start("/")
        with pytest.raises(EnvError, match=f"a site does not answer: http://other.test/ .*{reason}"):
            player.do("goto [http://other.test/]")
        player.close()


def test_failed_subresource_does_not_end_the_episode():
    async def answer(request):
        if request.path == "/":
            return page("<h1>Here</h1><img src=/picture.png><script>fetch('/data')</script><a href=/>again</a>")
        return web.Response(status=503)

    with serving(answer) as port, playing(port) as player:
        assert "'Here'" in player.do("click <'again'>").text


def test_request_aborted_by_the_browser_is_not_an_error_of_the_site():
    """The agent leaves the page before a response arrives, so the browser closes the connection."""
    with serving(slow) as port, playing(port) as player:
        snapshot = player.do("click <'go'>")
        assert snapshot.url == f"{SITE}/next" and "heading 'Second'" in snapshot.text
        traffic = player.session.network_proxy.traffic
        assert (traffic.requests, traffic.site_error) == (3, "")


def test_cancelled_lease_releases_its_context(site):
    """The reset was cancelled by its timeout. Its browser is retired and closes."""
    browser_pool = Player(site, limits=BrowserLimits(max_open_contexts=3, max_contexts=77)).browser_pool

    async def cancelled():
        lease = await browser_pool.lease("http://127.0.0.1:9", (800, 600), None)
        family = with_descendants(lease.browser.process)
        for process in family:
            process.suspend()
        waiting = asyncio.create_task(browser_pool.lease("http://127.0.0.1:9", (800, 600), None))
        await asyncio.sleep(0.3)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        for process in family:
            process.resume()
        assert isinstance(outcome, asyncio.CancelledError)
        assert lease.browser.open_contexts == 1
        await lease.close()
        return lease.browser

    browser = asyncio.run_coroutine_threadsafe(cancelled(), browser_pool.loop).result(timeout=60)
    wait_until(lambda: not (browser.alive or psutil.pid_exists(browser.process.pid)), 10)


def test_refused_state_does_not_affect_other_sessions(site):
    state = {"cookies": [{"name": "who", "value": "me", "domain": "site.test", "path": "/", "sameSite": "Any"}]}
    with playing(site) as other:
        with pytest.raises(RefusedStateError):
            other.run(other.browser_pool.lease("http://127.0.0.1:9", (800, 600), {"origins": [], **state}))
        browser = other.session._lease.browser
        assert (browser.alive, browser.retired) == (True, False)
        assert "'pressed'" in other.do("click <'Press me'>").text


def test_failed_browser_start_leaves_no_process(site, tmp_path, monkeypatch):
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nsleep 1; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(broken))
    before = len(psutil.Process().children(recursive=True))
    player = Player(site, limits=BrowserLimits(max_open_contexts=1, max_contexts=55))
    with pytest.raises(EnvError, match="does not start"):
        player.start("/")
    player.close()
    assert len(psutil.Process().children(recursive=True)) <= before


def test_killed_browser_ends_only_its_own_sessions_and_is_replaced(site):
    limits = BrowserLimits(max_open_contexts=1, max_contexts=100)
    with playing(site, limits=limits) as other:
        player = Player(site, limits=limits)
        player.start("/")
        player.session._lease.browser.kill()
        with pytest.raises(EnvError, match="the browser of this session has ended"):
            player.do("click <'Press me'>")
        player.close()
        assert "'pressed'" in other.do("click <'Press me'>").text
        with playing(site, limits=limits) as again:
            assert "'pressed'" in again.do("click <'Press me'>").text


def is_running(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_hung_browser_is_killed_with_all_its_processes(site):
    limits = BrowserLimits(max_open_contexts=2, max_contexts=100, ping_interval_s=0.2, ping_timeout_s=1.0)
    player = Player(site, limits=limits)
    player.start("/")
    family = with_descendants(player.session._lease.browser.process)
    for process in family:
        process.suspend()
    wait_until(lambda: not any(map(is_running, family)), 15)
    with pytest.raises(EnvError, match="has ended"):
        player.do("click <'Press me'>")
    player.close()


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_browser_leaves_no_process_that_it_has_started(end, site, tmp_path, monkeypatch):
    starter = tmp_path / "browser"
    spawns = f"from tests.support.escapes import spawn; import sys; spawn(sys.argv[1], '{tmp_path}/' + sys.argv[1])"
    ways = ("child", "nohup", "session", "orphan")
    lines = [f"PYTHONPATH={ROOT} {sys.executable} -c {shlex.quote(spawns)} {way}" for way in ways]
    starter.write_text("\n".join(["#!/bin/sh", *lines, f'exec {find_chromium()} "$@"']))
    starter.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(starter))
    player = Player(site, limits=BrowserLimits(max_contexts=1, max_memory_mb=2999 + len(end)))
    player.start("/")
    pids = [int((tmp_path / way).read_text()) for way in ways]
    assert all(map(alive, pids))
    if end == "kill":
        player.session._lease.browser.kill()
        assert left(pids) == []
    player.close()  # the last context of this browser, which is then closed
    assert left(pids) == []


def test_hung_driver_is_replaced(site):
    limits = BrowserLimits(max_open_contexts=2, max_contexts=101, ping_interval_s=0.2, ping_timeout_s=1.5)
    player = Player(site, limits=limits)
    player.start("/")
    driver = player.session._lease.browser.process.parent()
    driver.suspend()
    wait_until(lambda: not player.session._alive, 15)
    with pytest.raises(EnvError, match="has ended"):
        player.do("click <'Press me'>")
    with playing(site, limits=limits) as again:
        assert "'pressed'" in again.do("click <'Press me'>").text
    player.close()
    assert not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE


def test_retired_browser_closes_after_its_last_session(site):
    limits = BrowserLimits(max_open_contexts=4, max_contexts=2)
    with playing(site, limits=limits) as first, playing(site, limits=limits) as second:
        retired = first.session._lease.browser
        assert second.session._lease.browser is retired
        with playing(site, limits=limits) as third:
            assert third.session._lease.browser is not retired
        assert retired.alive
    wait_until(lambda: not (retired.alive or psutil.pid_exists(retired.process.pid)), 10)


def test_many_episodes_leave_no_open_file_descriptors(site):
    player = Player(site)
    player.start("/")
    handles = []
    for _ in range(12):
        with playing(site) as one:
            one.do("click <'Elsewhere'>")
        handles.append(len(os.listdir("/proc/self/fd")))
    player.close()
    assert max(handles[6:]) <= max(handles[:6]) + 2


def test_closed_network_proxy_closes_its_connections():
    with serving(hang) as port:
        player = Player(port, PageView(settle_s=1))
        started_at = time.monotonic()
        with pytest.raises(EnvError):
            player.start("/")
        player.close()
        assert time.monotonic() - started_at < 5
        assert player.session.network_proxy.routes == {"site.test:80": SiteAddress("127.0.0.1", port)}
