"""Random visitor of the embedded sites: follows links and submits forms with ordinary and odd values."""

import random
from html.parser import HTMLParser
from urllib.parse import quote, urljoin, urlsplit

from env_adapters.web_sites.records import record_changes
from env_adapters.webarena.grading.strict import final_page, state_change
from tests.support.visitor import URL_CHARACTERS, Visitor
from tests.support.web_attacks import kind_of, tasks_by_template

STARTS = {
    "shop": ("http://shop.test/", "http://admin.test/dashboard/"),
    "forum": ("http://forum.test/",),
    "code": ("http://code.test/", "http://code.test/papermill/timeline", "http://code.test/papermill/ticket"),
}
"""First pages of each site."""
ODD = (
    "",
    "x",
    "0",
    "-1",
    "3",
    "9" * 30,
    "é\u0000\u202e😀",
    b"\xff\xfe",
    "a'\"<b>--;",
    "word " * 400,
    "../..",
    "2025-06-08",
)
"""Values for fields, some of which a person would hardly type."""
UNTYPED = ("submit", "image", "button", "reset", "file")


class Page(HTMLParser):
    """Links and forms of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.forms, self.select = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "form":
            self.forms.append((given.get("method", "get").upper(), given.get("action", ""), []))
        elif tag == "select":
            self.select = (given.get("name", ""), "select", [])
            self.add(self.select)
        elif tag == "option" and self.select:
            self.select[2].append(given.get("value", ""))
        elif tag in ("input", "textarea", "button"):
            kind = given.get("type", "submit" if tag == "button" else "text")
            self.add((given.get("name", ""), kind, [given.get("value", "")]))

    def add(self, field):
        if self.forms and field[0]:
            self.forms[-1][2].append(field)


class RandomWalk:
    """Walk of one visitor over a site and those that it links to."""

    def __init__(self, visitor: Visitor, site: str, seed: int, forms: bool = True):
        self.visitor, self.forms = visitor, forms
        self.random, self.stays = random.Random(f"{site} {seed}"), seed % 2 == 0
        self.starts, self.url, self.page = STARTS[site], "", Page("")

    def step(self):
        """Visit a start page, follow a link or submit a form; return the request."""
        urls = [url for link in self.page.links if self.allowed(url := self.resolve(link))]
        forms = [form for form in self.page.forms if self.allowed(self.resolve(form[1]))]
        if forms and self.forms and self.random.random() < 0.4:
            method, action, fields = self.random.choice(forms)
            url, fields = self.resolve(action), self.fill(fields)
            if method != "POST":
                url, fields = f"{url.partition('?')[0]}?{self.encoded(fields)}", None
        else:
            again = not urls or self.random.random() < 0.03
            url, fields = self.random.choice(self.starts if again else urls), None
        request = (url, fields)
        _, text = self.visitor.request("POST" if fields is not None else "GET", url, fields, referer=self.url)
        self.url, self.page = url, Page(text)
        return request

    def resolve(self, link):
        """Return the absolute URL of a link in printable ASCII, or "" if it is invalid."""
        try:
            url = urljoin(self.url or self.starts[0], link.strip()).partition("#")[0]
            urlsplit(url)
        except ValueError:
            return ""
        return quote(url, safe=URL_CHARACTERS)

    def allowed(self, url):
        """Return True for a page of the sites."""
        parts = urlsplit(url)
        reached = parts.scheme == "http" and f"{parts.netloc}:80" in self.visitor.sites.routes
        return reached and not (self.stays and any(word in url for word in ("logout", "password", "out=1")))

    def fill(self, fields):
        """Return names and values of a form's fields, with one of its buttons."""
        buttons = [field for field in fields if field[1] == "submit"]
        filled = [(name, value[0]) for name, _, value in [self.random.choice(buttons)]] if buttons else []
        for name, kind, values in fields:
            if kind in UNTYPED or (kind in ("checkbox", "radio") and self.random.random() < 0.5):
                continue
            keep = kind in ("hidden", "checkbox", "radio", "select") or self.random.random() < 0.3
            if keep and self.random.random() < 0.97:
                filled.append((name, self.random.choice(values or [""])))
            else:
                filled.append((name, self.random.choice(ODD)))
        return filled

    @staticmethod
    def encoded(fields):
        """Return fields as the query of a URL."""
        values = ((name, text if isinstance(text, bytes) else text.encode()) for name, text in fields)
        return "&".join(f"{quote(name)}={quote(text)}" for name, text in values)


def walk_under_the_grader(sites, site, seeds, steps, forms=True):
    """Walk over a site and grade the state after each step."""
    graded = [tasks[0]["eval"] for tasks in tasks_by_template().values() if kind_of(tasks[0]) != "single_answer"]
    errors, changed = [], set()
    for seed in seeds:
        copy = sites.acquire()
        walk, requests = RandomWalk(Visitor(sites, copy), site, seed, forms), []
        try:
            for _ in range(steps):
                requests.append(walk.step())
                found = record_changes(sites.home.seed(sites.seed), copy.folder)
                changed |= {change.record for change in found}
                for task in graded:
                    if "state_change" in task:
                        state_change(task["state_change"], found)
                    else:
                        final_page(task["final_page"], walk.url)
        except Exception as error:  # every error of grading or of the request is reported with its walk
            errors.append((seed, requests[-3:], repr(error)))
        finally:
            copy.release()
    return errors, changed
