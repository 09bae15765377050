"""Benchmark of the text of web pages: equality with WebArena's own processor, and speed.

`python -m tests.bench.web_text FOLDER [--urls FILE]`, where FOLDER contains the package `webarena` of libwebarena
(`pip download --no-deps libwebarena==0.0.5`, unzipped). Its pinned dependencies conflict with those of this project, so
only its processor is loaded. The default pages are those of MiniWoB and generated shops; `--sites` compares the pages
of the embedded sites, which must be running (`verl-agent sites up`).
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

import msgspec
import psutil
from playwright.sync_api import CDPSession, Page, sync_playwright

from env_adapters.web_sites.siteset import Copy, SiteSet
from env_adapters.webarena.browser.accessibility_tree import (
    AccessibilityTree,
    DomSnapshot,
    build_page_text,
    layout_rects,
    tab_line,
)
from env_adapters.webarena.browser.chromium import find_chromium

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
"""Pages of the embedded sites: lists, forms, tables, texts, and a page that does not exist."""
LARGE = 800
"""Smallest number of nodes of a large page."""


class BenchHandler(SimpleHTTPRequestHandler):
    """Handler that serves files and generated shops, without a log."""

    def do_GET(self) -> None:
        """Send a file, a generated shop or one of its products."""
        kind, _, number = self.path.strip("/").partition("/")
        if kind not in ("shop", "p"):
            super().do_GET()
            return
        body = (shop(int(number)) if kind == "shop" else product(number)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


def shop(products: int) -> str:
    """Return the page of a typical list of products."""
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
    """Return the page of a product."""
    rows = "".join(f"<tr><th>Property {n}<td>value {n}" for n in range(20))
    return (
        f"<!DOCTYPE html><title>Item {number}</title><a href=/shop/30>All products</a><h1>Item {number}</h1>"
        f"<label>Quantity <input value=1></label><button>Add to basket</button><table>{rows}</table>"
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, including ended ones, in seconds."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def load_processor(folder: Path) -> ModuleType:
    """Import WebArena's module of processors without the other imports of its package."""
    for name in ("webarena", "webarena.browser_env"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module("webarena.browser_env.processors")


def adapter_text(page: Page, client: CDPSession, whole: bool) -> str:
    """Return the adapter's text of a page."""
    tree, snapshot = (
        # the same commands as in env_adapters/webarena/browser/tab.py
        client._sync(client._impl_obj.send(method=method, params=parameters, timeout=0))
        for method, parameters in (
            ("Accessibility.getFullAXTree", {}),
            ("DOMSnapshot.captureSnapshot", {"computedStyles": []}),
        )
    )
    document = msgspec.convert(snapshot, DomSnapshot)
    nodes = msgspec.convert(tree, AccessibilityTree).nodes
    text = build_page_text(nodes, layout_rects(document.documents[0]), None if whole else SIZE)
    return tab_line([document.title], 0) + "\n\n" + "\n".join(text.lines)


def webarena_text(processors: ModuleType, page: Page, client: CDPSession, whole: bool) -> str:
    """Return WebArena's text of the page, without the lines that repeat the text above them."""
    processor = processors.TextObervationProcessor(
        "accessibility_tree", not whole, {"width": SIZE[0], "height": SIZE[1]}
    )
    text = processor.process(page, client)
    return "\n".join(line for line in text.split("\n") if "] InlineTextBox '" not in line)


def differing_lines(text: str, other: str) -> list[tuple[str, str]]:
    """Return the lines that only one of the texts has."""
    first, second = text.split("\n"), other.split("\n")
    only = [("", line) for line in second if line not in first] + [(line, "") for line in first if line not in second]
    return only or ([("order", "")] if text != other else [])


def urls_of(port: int) -> list[str]:
    """Return the URLs of the pages that are compared without `--urls`."""
    spec = find_spec("miniwob")
    assert spec is not None and spec.origin is not None
    names = sorted(path.name for path in Path(spec.origin).parent.joinpath("html/miniwob").glob("*.html"))
    step = len(names) / MINIWOB_PAGES
    chosen = [names[int(index * step)] for index in range(MINIWOB_PAGES)]
    base = f"http://127.0.0.1:{port}"
    return [f"{base}/miniwob/{name}" for name in chosen] + [f"{base}/shop/{n}" for n in SHOP_SIZES for _ in range(5)]


def site_urls() -> list[str]:
    """Return the URLs of the pages of the embedded sites that are compared."""
    return [f"http://{page}" for page in SITE_PAGES]


def browser_settings(sites: SiteSet, copy: Copy) -> tuple[list[str], dict[str, Any], list[Any]]:
    """Return browser arguments, context settings and cookies with which the browser opens a copy of the sites."""
    rules = ",".join(f"MAP {name} {host}:{port}" for name, (host, port) in sites.routes.items())
    return [f"--host-resolver-rules={rules}"], {"extra_http_headers": copy.headers}, copy.cookies(copy.urls)


def prepare(page: Page, url: str, index: int) -> None:
    """Open a page, scroll it by an amount that depends on its index, focus a field on every second one."""
    page.goto(url)
    if "/miniwob/" in url:
        page.evaluate(f"() => {{ Math.seedrandom && Math.seedrandom('{index}'); core.startEpisodeReal(); }}")
    page.evaluate(f"() => window.scrollTo(0, {(index % 3) * 350})")
    if index % 2 and page.locator("input:visible").count():
        page.locator("input:visible").first.focus()
    page.wait_for_timeout(200)
    page.evaluate(
        "() => { for (let timer = setTimeout(() => 0, 0); timer; timer--) clearTimeout(timer); }"
    )  # stops the timers of the page


def compare(processors: ModuleType, page: Page, client: CDPSession, url: str) -> dict[str, Any]:
    """Return the times and the differences of both texts of the page that is open."""
    nodes = len(client.send("Accessibility.getFullAXTree")["nodes"])
    started_at, cpu_s = time.perf_counter(), cpu_seconds()
    expected = webarena_text(processors, page, client, whole=False)
    webarena_s, webarena_cpu_s = time.perf_counter() - started_at, cpu_seconds() - cpu_s
    text, times, cpu_s = "", [], cpu_seconds()
    for _ in range(TRIES):
        started_at = time.perf_counter()
        text = adapter_text(page, client, whole=False)
        times.append(time.perf_counter() - started_at)
    seconds = {"webarena_s": webarena_s, "adapter_s": statistics.median(times)}
    seconds |= {"webarena_cpu_s": webarena_cpu_s, "adapter_cpu_s": (cpu_seconds() - cpu_s) / TRIES}
    differing = differing_lines(text, expected)
    expected = webarena_text(processors, page, client, whole=True)
    differing += differing_lines(adapter_text(page, client, whole=True), expected)
    return {"url": url, "nodes": nodes, **seconds, "differing": differing[:6]}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of equal pages and the speedup on the large ones."""
    large = [row for row in rows if row["nodes"] >= LARGE]
    summary: dict[str, Any] = {"pages": len(rows), "equal": sum(not row["differing"] for row in rows)}
    for name, kind in (("speedup", "s"), ("CPU time speedup", "cpu_s")):
        ratios = [row[f"webarena_{kind}"] / max(row[f"adapter_{kind}"], 1e-3) for row in large]
        if ratios:
            summary[name] = {"min": round(min(ratios), 1), "median": round(statistics.median(ratios), 1)}
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--urls", type=Path, help="file with one URL a line; {port} is the port of the generated pages")
    parser.add_argument("--sites", action="store_true", help="compare on pages of the embedded sites")
    arguments = parser.parse_args()
    processors = load_processor(arguments.folder)
    spec = find_spec("miniwob")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent / "html"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(BenchHandler, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    urls = arguments.urls.read_text().format(port=port).split() if arguments.urls else urls_of(port)
    flags, settings, cookies, rows = ["--no-sandbox", "--disable-gpu"], {}, [], []
    with sync_playwright() as playwright, ExitStack() as ends:
        if arguments.sites:
            sites = SiteSet.running()
            copy = sites.acquire()
            ends.callback(copy.release)
            more, settings, cookies = browser_settings(sites, copy)
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
    print(json.dumps(summarize(rows)))  # noqa: T201 - the result of the command
    server.shutdown()


if __name__ == "__main__":
    main()
