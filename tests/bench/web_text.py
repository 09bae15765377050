"""Compare our text of web pages with that of WebArena's own processor, and measure how much faster ours is.

`python -m tests.bench.web_text FOLDER [--urls FILE]`, where FOLDER holds the package `webarena` of libwebarena
(`pip download --no-deps libwebarena==0.0.5`, unzipped): its pins do not go with ours, so only its processor is loaded.
Without `--urls`: MiniWoB's pages, and pages of our own with 100 to 1,000 products; with `--sites` those of the embedded
sites instead, which run (`verl-agent sites up`).
"""

import argparse
import importlib
import json
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
from playwright.sync_api import CDPSession, Page, sync_playwright

from env_adapters.webarena.browser.accessibility_tree import build_page_text, layout_rects, tab_line
from env_adapters.webarena.browser.chromium import find_chromium
from env_adapters.webarena.sites import Copy, SiteSet

SIZE = (1280, 720)
MINIWOB_PAGES = 40
SHOP_SIZES = (8, 60)
TRIES = 5
SITE_PAGES = (
    *("shop.test/catalogue/", "shop.test/catalogue/?page=3", "shop.test/search/?q=kettle", "shop.test/basket/"),
    *("shop.test/catalogue/category/kitchen/cookware_2/", "shop.test/accounts/", "shop.test/accounts/orders/"),
    *(
        "shop.test/catalogue/westbrook-copper-frying-pan_1/",
        "shop.test/accounts/addresses/",
        "shop.test/reached/nothing",
    ),
    *("admin.test/dashboard/", "admin.test/dashboard/orders/", "admin.test/dashboard/catalogue/"),
    *("admin.test/dashboard/users/", "admin.test/dashboard/reviews/", "admin.test/dashboard/orders/?status=Pending"),
    *("forum.test/", "forum.test/topic/187/", "forum.test/topic/177/", "forum.test/category/list/", "forum.test/user/"),
    *("forum.test/search/?q=kettle", "forum.test/topic/publish/"),
    *("code.test/", "code.test/papermill/home", "code.test/papermill/timeline", "code.test/papermill/dir?ci=tip"),
    *("code.test/papermill/reportlist", "code.test/papermill/rptview?rn=1", "code.test/papermill/tktnew"),
    *("code.test/papermill/wcontent", "code.test/papermill/wiki?name=Installation", "code.test/papermill/taglist"),
)
"""Of the embedded sites: lists, forms, tables, texts, and a page that is not there."""
LARGE = 800
"""Nodes from which a page counts as large."""


class Quiet(SimpleHTTPRequestHandler):
    """Files and generated shops, without a log."""

    def do_GET(self) -> None:
        part, _, number = self.path.strip("/").partition("/")
        if part not in ("shop", "p"):
            super().do_GET()
            return
        body = (shop(int(number)) if part == "shop" else product(number)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def shop(products: int) -> str:
    """A list of products as shops have them."""
    cards = "".join(
        f"<li><article><a href='/p/{n}'><img alt='Item {n}' width=80 height=80></a>"
        f"<h3><a href='/p/{n}'>Item <b>{n}</b></a>"
        f"</h3><p class=price>${n}.99</p><p>In stock</p><form><label>Quantity <input value='{n % 5}'></label>"
        f"<button type=button>Add to basket</button></form></article></li>"
        for n in range(products)
    )
    return (
        "<!DOCTYPE html><title>All  products</title>"
        "<style>li{display:inline-block;width:23%}.wide{display:contents}</style>"
        "<nav><ul><li><a href=/>Home</a><li><a href=/b aria-current=page>Basket</a></ul></nav><h1>All products</h1>"
        "<p>A <i>list</i> that<br>is <b>broken</b> and <a href=#long>wrapped over the end of its line"
        f"{' word' * 80}</a></p><div class=wide><span>contents</span></div><select><option>Price<option selected>Name"
        "</select><details><summary>More</summary>Hidden</details><input type=date value=2024-02-03>"
        "<input placeholder=Search><textarea>text\nlines</textarea><input type=checkbox checked aria-label=Only>"
        f"<table><tr><th>H<td>1</table><svg width=20 height=20><text y=10>svg</text></svg><ol>{cards}</ol>"
        "<iframe srcdoc='<p>inside'></iframe><p hidden>no</p><p style='visibility:hidden'>nor this</p>"
    )


def product(number: str) -> str:
    """The page of a product."""
    rows = "".join(f"<tr><th>Property {n}<td>value {n}" for n in range(20))
    return (
        f"<!DOCTYPE html><title>Item {number}</title><a href=/shop/30>All products</a><h1>Item {number}</h1>"
        f"<label>Quantity <input value=1></label><button>Add to basket</button><table>{rows}</table>"
    )


def computed() -> float:
    """Seconds that this process, those below it, and those of them that have ended have computed so far."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def load_processor(folder: Path) -> ModuleType:
    """WebArena's module of processors, without what its package imports besides."""
    for name in ("webarena", "webarena.browser_env"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module("webarena.browser_env.processors")


def ours(page: Page, client: CDPSession, whole: bool) -> str:
    """Our text of a page."""
    tree, snapshot = (
        # as env_adapters/webarena/browser/tab.py asks
        client._sync(client._impl_obj.send(method=method, params=parameters, timeout=0))
        for method, parameters in (
            ("Accessibility.getFullAXTree", {}),
            ("DOMSnapshot.captureSnapshot", {"computedStyles": []}),
        )
    )
    document = snapshot["documents"][0]
    title = " ".join(snapshot["strings"][document["title"]].split()) if document["title"] >= 0 else ""
    text = build_page_text(tree["nodes"], layout_rects(document), None if whole else SIZE)
    return tab_line([title], 0) + "\n\n" + "\n".join(text.lines)


def theirs(processors: ModuleType, page: Page, client: CDPSession, whole: bool) -> str:
    """WebArena's text of the same page; without the lines that repeat the text above them, see the README."""
    processor = processors.TextObervationProcessor(
        "accessibility_tree", not whole, {"width": SIZE[0], "height": SIZE[1]}
    )
    text = processor.process(page, client)
    return "\n".join(line for line in text.split("\n") if "] InlineTextBox '" not in line)


def differing(one: str, other: str) -> list[tuple[str, str]]:
    """Lines that are not the same."""
    first, second = one.split("\n"), other.split("\n")
    only = [("", line) for line in second if line not in first] + [(line, "") for line in first if line not in second]
    return only or ([("order", "")] if one != other else [])


def urls_of(port: int) -> list[str]:
    """The pages that are compared without `--urls`."""
    spec = find_spec("miniwob")
    assert spec is not None and spec.origin is not None
    names = sorted(path.name for path in Path(spec.origin).parent.joinpath("html/miniwob").glob("*.html"))
    step = len(names) / MINIWOB_PAGES
    chosen = [names[int(index * step)] for index in range(MINIWOB_PAGES)]
    base = f"http://127.0.0.1:{port}"
    return [f"{base}/miniwob/{name}" for name in chosen] + [f"{base}/shop/{n}" for n in SHOP_SIZES for _ in range(5)]


def site_urls() -> list[str]:
    """The pages of the embedded sites that are compared."""
    return [f"http://{page}" for page in SITE_PAGES]


def as_the_sites_want(sites: SiteSet, copy: Copy) -> tuple[list[str], dict[str, Any], list[Any]]:
    """Arguments of the browser, settings of the context and cookies with which it sees one copy of the sites."""
    rules = ",".join(f"MAP {name} {host}:{port}" for name, (host, port) in sites.routes.items())
    return [f"--host-resolver-rules={rules}"], {"extra_http_headers": copy.headers}, copy.cookies(copy.urls)


def prepare(page: Page, url: str, index: int) -> None:
    """Open a page, and scroll it for each third."""
    page.goto(url)
    if "/miniwob/" in url:
        page.evaluate(f"() => {{ Math.seedrandom && Math.seedrandom('{index}'); core.startEpisodeReal(); }}")
    page.evaluate(f"() => window.scrollTo(0, {(index % 3) * 350})")
    if index % 2 and page.locator("input:visible").count():
        page.locator("input:visible").first.focus()
    page.wait_for_timeout(200)
    page.evaluate(
        "() => { for (let timer = setTimeout(() => 0, 0); timer; timer--) clearTimeout(timer); }"
    )  # stand still


def compare(processors: ModuleType, page: Page, client: CDPSession, url: str) -> dict[str, Any]:
    """Both texts of a page that is shown, and what they take."""
    nodes = len(client.send("Accessibility.getFullAXTree")["nodes"])
    begun, cpu = time.perf_counter(), computed()
    their = theirs(processors, page, client, whole=False)
    their_s, their_cpu_s = time.perf_counter() - begun, computed() - cpu
    our, times, cpu = "", [], computed()
    for _ in range(TRIES):
        begun = time.perf_counter()
        our = ours(page, client, whole=False)
        times.append(time.perf_counter() - begun)
    seconds = {"theirs_s": their_s, "ours_s": statistics.median(times)}
    seconds |= {"theirs_cpu_s": their_cpu_s, "ours_cpu_s": (computed() - cpu) / TRIES}
    difference = differing(our, their)
    difference += differing(ours(page, client, whole=True), theirs(processors, page, client, whole=True))
    return {"url": url, "nodes": nodes, **seconds, "differing": difference[:6]}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many pages are equal, and how much faster ours is on the large ones."""
    large = [row for row in rows if row["nodes"] >= LARGE]
    found: dict[str, Any] = {"pages": len(rows), "equal": sum(not row["differing"] for row in rows)}
    for name, kind in (("times faster", "s"), ("times less computing", "cpu_s")):
        ratios = [row[f"theirs_{kind}"] / max(row[f"ours_{kind}"], 1e-3) for row in large]
        if ratios:
            found[name] = {"least": round(min(ratios), 1), "median": round(statistics.median(ratios), 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--urls", type=Path, help="a file with one URL a line; {port} is that of our own pages")
    parser.add_argument("--sites", action="store_true", help="compare on pages of the embedded sites")
    arguments = parser.parse_args()
    processors = load_processor(arguments.folder)
    spec = find_spec("miniwob")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent / "html"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    urls = arguments.urls.read_text().format(port=port).split() if arguments.urls else urls_of(port)
    flags, settings, cookies, rows = ["--no-sandbox", "--disable-gpu"], {}, [], []
    with sync_playwright() as playwright, ExitStack() as ends:
        if arguments.sites:
            sites = SiteSet.running()
            copy = sites.acquire()
            ends.callback(copy.release)
            more, settings, cookies = as_the_sites_want(sites, copy)
            flags, urls = flags + more, site_urls()
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        context = browser.new_context(viewport={"width": SIZE[0], "height": SIZE[1]}, device_scale_factor=1, **settings)
        context.add_cookies(cookies)
        page = context.new_page()
        client = context.new_cdp_session(page)
        client.send("Accessibility.enable")
        for index, url in enumerate(urls):
            prepare(page, url, index)
            rows.append(compare(processors, page, client, url))
            print(json.dumps(rows[-1]))  # noqa: T201 - a table of results
        browser.close()
    print(json.dumps(summary(rows)))  # noqa: T201
    server.shutdown()


if __name__ == "__main__":
    main()
