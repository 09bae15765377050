"""A browser in a few lines: one session on one copy of the sites, with cookies and forms, without scripts."""

import http.client
import re
from urllib.parse import urlencode, urlsplit

HIDDEN = re.compile(r"<input type=['\"]hidden['\"] name=['\"](csrf\w*|name)['\"] value=['\"]([^'\"]+)")
"""What forms hide so that nobody else can send them."""
REDIRECTS = (301, 302, 303)


class Visitor:
    """One session, logged in at all sites."""

    def __init__(self, sites, copy):
        self.sites, self.copy = sites, copy
        self.cookies = {(one["domain"], one["name"]): one["value"] for one in copy.cookies(sites.urls)}
        self.headers = copy.headers

    def get(self, url):
        """Status and text of a page, redirects followed."""
        return self.ask("GET", url)

    def post(self, url, page="", **fields):
        """Send a form; the page that shows it is opened first, for what it hides."""
        return self.ask("POST", url, {**dict(HIDDEN.findall(self.get(page or url)[1])), **fields})

    def ask(self, method, url, fields=None):
        parts = urlsplit(url)
        host, port = self.sites.routes[f"{parts.hostname}:80"]
        connection = http.client.HTTPConnection(host, port, timeout=30)
        mine = "; ".join(
            f"{name}={value}" for (domain, name), value in self.cookies.items() if domain == parts.hostname
        )
        headers = {"Host": parts.hostname, "Cookie": mine, "Referer": url, **self.headers}
        if fields is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        path = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
        connection.request(method, path, urlencode(fields) if fields is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        for cookie in answer.headers.get_all("Set-Cookie") or ():
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[parts.hostname, name] = value
        connection.close()
        if answer.status in REDIRECTS:
            target = answer.headers["Location"]
            return self.get(target if "://" in target else f"http://{parts.hostname}{target}")
        return answer.status, text
