"""Tasks in WebArena's format on MiniWoB++: small pages of the package `miniwob`, served on loopback.

A page starts its task when it loads, with the seed in its URL and without a time limit. The instruction is on the page.
The page writes its reward into the attribute `data-reward` of its document. WebArena's evaluators check that the URL is
that of the task and that the attribute is 1.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from env_adapters.webarena.browser.network_proxy import SiteAddress
from env_adapters.webarena.tasks.items import named_item
from env_adapters.webarena.tasks.miniwob_pages import CHECKS, CLICK_ALL_PAGES, PAGES, TEST_PAGES
from env_adapters.webarena.tasks.oracle import OracleError, ScriptOracle, parse_nodes
from env_adapters.webarena.tasks.site_urls import SiteEnvironment
from verl_agent.envs.base import Requirement
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

INSTALL_COMMAND = "pip install --no-deps miniwob==1.1.0"
SITE, URL = "miniwob", "http://miniwob.test"
SEEDS: Mapping[str, range] = {"train": range(10), "test": range(1000, 1006), "click_all": range(10)}
"""Seeds of the tasks of each page."""
FIRST_TASK_ID = 100_000
INTENT = "Do what the page asks for, then stop."
LOCATOR = "document.documentElement.getAttribute('data-reward')"
SCRIPT = """<script>
(function () {
  var begin = core.startEpisode, end = core.endEpisode, page = document.documentElement;
  var here = location.pathname + location.search, first = localStorage.getItem('task') || here;
  var ended = first == here && localStorage.getItem('reward'), owner = localStorage.getItem('owner');
  var begun = ended || owner || first != here, me = String(Math.random());
  localStorage.setItem('task', first);
  ['pointerdown', 'keydown', 'input', 'change'].forEach(function (input) {
    addEventListener(input, function () {
      if (!localStorage.getItem('owner')) localStorage.setItem('owner', me);
    }, true);
  });
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
    if (reward > 0 && !(CHECK && localStorage.getItem('owner') === me)) reward = -1;
    end(reward, false, reason);
    var kept = localStorage.getItem('reward');
    if (kept === null) localStorage.setItem('reward', kept = String(WOB_RAW_REWARD_GLOBAL));
    page.setAttribute('data-reward', kept);
  };
})();
</script>"""
"""Script inserted after `core.js`. It starts the page's task once and writes the reward into the document.

The local storage of the browser keeps the first page of an episode, the document in which the agent acted first, and
its reward. So a page cannot be played again by loading it, and neither can another page or the same page with another
seed. Of several tabs that were opened before, only the one that was acted on first can be solved. `CHECK` stands for
the condition that `miniwob_pages.CHECKS` adds.
"""
FOLDER = "miniwob"
PAGE_HEADER = "X-MiniWoB-Page"
"""Header with the page of a session's task, which its network proxy adds to each request."""
CORE = b'<script src="../core/core.js"></script>'


def pages_folder() -> Path:
    """Return the folder of the pages."""
    spec = find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise ConfigError(f"The MiniWoB tasks need the package miniwob. Install it: {INSTALL_COMMAND}")
    return Path(spec.origin).with_name("html")


@cache
def miniwob_tasks(split: str) -> Sequence[Mapping[str, Any]]:
    """Return the tasks of a split of `SEEDS`; the splits have no page in common.

    The tasks have the further keys `id`, `split` and `category`, as those of the embedded sites.
    """
    if split not in SEEDS:
        raise ConfigError(f"MiniWoB has no split {split!r}. Allowed: {', '.join(SEEDS)}.")
    return [
        make_task(page, index, seed, split)
        for index, page in enumerate(sorted(PAGES))
        if split == ("test" if page in TEST_PAGES else "click_all" if page in CLICK_ALL_PAGES else "train")
        for seed in SEEDS[split]
    ]


def make_task(page: str, page_index: int, seed: int, split: str) -> Mapping[str, Any]:
    """Return the task of a page and a seed in WebArena's format."""
    path = f"/miniwob/{page}.html?seed={seed}"
    return {
        "id": f"{page}:{seed}",
        "task_id": FIRST_TASK_ID + page_index * 10_000 + seed,
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
        "intent_template_id": FIRST_TASK_ID + page_index,
        "require_reset": False,
        "eval": {
            "eval_types": ["url_match", "program_html"],
            "reference_answers": None,
            "reference_url": f"__MINIWOB__{path}",
            "url_note": "GOLD in PRED",
            "program_html": [{"url": "last", "locator": LOCATOR, "required_contents": {"exact_match": "1"}}],
        },
    }


class PageServer(ThreadingHTTPServer):
    """Server of the pages on a free port of loopback, in a thread of this process."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        super().__init__(("127.0.0.1", 0), PageHandler)
        threading.Thread(target=self.serve_forever, name="miniwob", daemon=True).start()

    @property
    def routes(self) -> dict[str, tuple[str, int]]:
        """Host and port of this server by the authority in the tasks' URLs."""
        return {f"{urlsplit(URL).hostname}:80": ("127.0.0.1", self.server_address[1])}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, with `SCRIPT` if it is a page, or None if the file does not exist."""
        file = (self.folder / unquote(path).lstrip("/")).resolve()
        if not file.is_relative_to(self.folder) or not file.is_file():
            return None
        content = file.read_bytes()
        if not is_page(path):
            return content
        script = SCRIPT.replace("CHECK", f"({CHECKS.get(file.stem, 'true')})")
        return content.replace(CORE, CORE + script.encode(), 1)


class PageHandler(BaseHTTPRequestHandler):
    """Handler of a request to the `PageServer`."""

    protocol_version = "HTTP/1.1"
    server: PageServer

    def do_GET(self) -> None:
        """Send a file, but no other page than that of the session's task."""
        path = urlsplit(self.path).path
        is_own = path in ("", f"/{FOLDER}/{self.headers.get(PAGE_HEADER)}.html") or not is_page(path)
        content = self.server.read(path) if is_own else None
        self.send_response(HTTPStatus.OK if content is not None else HTTPStatus.NOT_FOUND)
        kind = guess_type(path)[0] or "application/octet-stream"
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def is_page(path: str) -> bool:
    """Return True for the path of a page, and False for that of a script, a style or an image."""
    return Path(unquote(path)).parent.name == FOLDER


@cache
def page_server() -> PageServer:
    """Return the server of this process; the first call starts it."""
    return PageServer(pages_folder())


class MiniWobTasks:
    """Tasks on MiniWoB's pages, in the splits `train`, `test` and `click_all`."""

    splits = tuple(SEEDS)
    deterministic = True

    @staticmethod
    def requirements() -> list[Requirement]:
        return [Requirement.package("miniwob", INSTALL_COMMAND, "tasks of env.options.tasks=miniwob")]

    def items(self, split: str) -> Sequence[TaskItem]:
        pages_folder()  # raises ConfigError if the package is not installed
        return [named_item(task) for task in miniwob_tasks(split)]

    def check(self) -> None:
        """Checks nothing, because `items` checks that the pages are installed."""

    async def open(self, item: TaskItem) -> SiteEnvironment:
        header = {PAGE_HEADER: item.id.split(":")[1]}
        routes = {name: SiteAddress(host, port, header) for name, (host, port) in page_server().routes.items()}
        return SiteEnvironment({SITE: URL}, routes)

    def oracle(self, item: TaskItem) -> Callable[[str], str] | None:
        """Only pages with a complete instruction have an oracle."""
        return page_oracle() if item.id.split(":")[1] in SOLVED else None


SUBMIT = 'click [button "Submit"]'
RULES: Mapping[str, Sequence[str]] = {
    r"Click the button\.": ['click [button "Click Me!"]'],
    r"Click button (\w+)\.": ['click [button "{0}"]'],
    r"Click button (\w+), then click button (\w+)\.": ['click [button "{0}"]', 'click [button "{1}"]'],
    r'Click on the "(.+?)" button\.': ['click [button "{0}"]'],
    r"Click on (Tab #\d)\.": ['click [link "{0}"]'],
    r'Close the dialog box by clicking the "x"\.': ['click [button "Close"]'],
    r'Click the button in the dialog box labeled "x"\.': ['click [button "Close"]'],
    r'Click the button in the dialog box labeled "(.+?)"\.': ['click [button "{0}"]'],
    r"Focus into the textbox\.": ['click [textbox ""]'],
    r"Focus into the (\d)\w\w input textbox\.": ['click [textbox "" #{0}]'],
    r"Select (\w+) and click Submit\.": ['click [radio "{0}"]', SUBMIT],
    r'Enter "\s*(.+?)\s*" into the text field and press Submit\.': ['type [textbox ""] [{0}] [0]', SUBMIT],
    r'Enter the password "\s*(.+?)\s*" into both text fields and press submit\.': [
        'type [textbox "" #1] [{0}] [0]',
        'type [textbox "" #2] [{0}] [0]',
        SUBMIT,
    ],
    r'Enter the username "(.+?)" and the password "(.+?)" into the text fields and press login\.': [
        'type [textbox "" #1] [{0}] [0]',
        'type [textbox "" #2] [{1}] [0]',
        'click [button "Login"]',
    ],
}
"""Script for each instruction; braces are replaced by the groups of the pattern."""
_SOLVED = (
    "click-button click-button-sequence click-dialog click-dialog-2 click-option click-tab click-test "
    "click-test-2 click-test-transfer enter-password enter-text enter-text-dynamic focus-text focus-text-2 "
    "login-user"
)
SOLVED = frozenset(_SOLVED.split())
"""Pages that these rules solve."""


def script_for(observation: str) -> list[str]:
    """Return the script for the first observation of a page."""
    instruction = " ".join(node.name for node in parse_nodes(observation) if node.role == "StaticText")
    for pattern, lines in RULES.items():
        match = re.match(pattern, instruction)
        if match:
            return [*(line.format(*match.groups()) for line in lines), "stop []"]
    raise OracleError(f"no rule matches the page's instruction {instruction[:200]!r}.")


def page_oracle() -> Callable[[str], str]:
    """Return an oracle for one episode on any solvable page."""
    oracle: ScriptOracle | None = None

    def act(observation: str) -> str:
        nonlocal oracle
        if oracle is None:
            oracle = ScriptOracle(script_for(observation), {})
        return oracle.act(observation)

    return act
