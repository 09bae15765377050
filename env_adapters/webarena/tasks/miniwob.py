"""MiniWoB++ as tasks in WebArena's format: small pages of the package `miniwob`, served on loopback.

A page begins at once, with the seed in its address; it has no time limit; and what it thinks of the episode stands in
its own document, so that WebArena's evaluators judge it: the address is still that of the task, and the attribute
`data-reward` is 1. What has to be done stands on the page.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from env_adapters.webarena.tasks.miniwob_pages import LEFT_OUT, PAGES, TEST_PAGES
from verl_agent.errors import ConfigError

GET_PAGES = "pip install --no-deps miniwob==1.1.0"
SITE, URL = "miniwob", "http://miniwob.test"
SEEDS: Mapping[str, range] = {"train": range(10), "test": range(1000, 1006)}
"""Seeds of the tasks of each page."""
FIRST_TASK = 100_000
INTENT = "Do what the page asks for, then stop."
LOCATOR = "document.documentElement.getAttribute('data-reward')"
SCRIPT = """<script>
(function () {
  var begin = core.startEpisode, end = core.endEpisode, page = document.documentElement;
  var here = location.pathname + location.search, first = localStorage.getItem('task') || here;
  var ended = first == here && localStorage.getItem('reward'), begun = ended || first != here;
  localStorage.setItem('task', first);
  page.setAttribute('data-reward', ended || '0');
  core.EPISODE_MAX_TIME = 2000000000;
  core.startEpisode = function () {
    if (begun) return;
    begun = true;
    begin();
    Math.seedrandom(new URLSearchParams(location.search).get('seed') || '0');
    core.startEpisodeReal();
    document.getElementById('sync-task-cover').remove();
    document.getElementById('reward-display').style.display = 'none';
  };
  core.endEpisode = function (reward, proportional, reason) {
    if (WOB_DONE_GLOBAL) return;
    end(reward, false, reason);
    localStorage.setItem('reward', String(WOB_RAW_REWARD_GLOBAL));
    page.setAttribute('data-reward', String(WOB_RAW_REWARD_GLOBAL));
  };
})();
</script>"""
"""Goes behind `core.js`: begins the episode by itself, once, and writes down what came of it.

The browser keeps which page an episode began with, and what came of it. So one that has ended is not played again by
going to it, and neither is another page, or the same with another seed.
"""
CORE = b'<script src="../core/core.js"></script>'


def pages_folder() -> Path:
    """Where the pages lie.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise ConfigError(f"The MiniWoB tasks need the package miniwob. Install it: {GET_PAGES}")
    return Path(spec.origin).with_name("html")


@cache
def miniwob_tasks(split: str) -> Sequence[Mapping[str, Any]]:
    """The tasks of a split, `train` or `test`; they share no page.

    Further keys as for the embedded sites: `id`, `split`, `category`.

    Raises:
        ConfigError: there is no such split.
    """
    if split not in SEEDS:
        raise ConfigError(f"MiniWoB has no split {split!r}. Allowed: {', '.join(SEEDS)}.")
    return [
        task(page, place, seed, split)
        for place, page in enumerate(sorted(PAGES))
        if (page in TEST_PAGES) == (split == "test")
        for seed in SEEDS[split]
    ]


def task(page: str, place: int, seed: int, split: str) -> Mapping[str, Any]:
    """A page with a seed, in WebArena's format."""
    path = f"/miniwob/{page}.html?seed={seed}"
    return {
        "id": f"{page}:{seed}",
        "task_id": FIRST_TASK + place * 10_000 + seed,
        "split": split,
        "category": PAGES[page],
        "sites": [SITE],
        "require_login": False,
        "storage_state": None,
        "start_url": f"__MINIWOB__{path}",
        "geolocation": None,
        "intent_template": INTENT,
        "instantiation_dict": {},
        "intent": INTENT,
        "intent_template_id": FIRST_TASK + place,
        "require_reset": False,
        "eval": {
            "eval_types": ["url_match", "program_html"],
            "reference_answers": None,
            "reference_url": f"__MINIWOB__{path}",
            "url_note": "GOLD in PRED",
            "program_html": [{"url": "last", "locator": LOCATOR, "required_contents": {"exact_match": "1"}}],
        },
    }


def all_pages() -> Iterator[str]:
    """Every page of the package, also those that these actions cannot play."""
    yield from sorted({*PAGES, *(page for pages in LEFT_OUT.values() for page in pages)})


class Pages(ThreadingHTTPServer):
    """Serves the pages on a free port of loopback, in a thread of this process."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, name="miniwob", daemon=True).start()

    @property
    def routes(self) -> dict[str, tuple[str, int]]:
        """Where the host of the tasks' addresses listens."""
        return {f"{urlsplit(URL).hostname}:80": ("127.0.0.1", self.server_address[1])}

    def find(self, path: str) -> bytes | None:
        """What a file holds, a page with the script in it; None if there is no such file."""
        file = (self.folder / unquote(path).lstrip("/")).resolve()
        if not file.is_relative_to(self.folder) or not file.is_file():
            return None
        content = file.read_bytes()
        return content.replace(CORE, CORE + SCRIPT.encode(), 1) if file.parent.name == "miniwob" else content


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server: Pages

    def do_GET(self) -> None:
        """Send a file."""
        path = urlsplit(self.path).path
        content = self.server.find(path)
        self.send_response(HTTPStatus.OK if content is not None else HTTPStatus.NOT_FOUND)
        kind = guess_type(path)[0] or "application/octet-stream"
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@cache
def pages() -> Pages:
    """The server of this process, started at the first call.

    Raises:
        ConfigError: the package is not installed.
    """
    return Pages(pages_folder())
