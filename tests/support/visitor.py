"""Minimal browser without scripts: one session on one copy of the sites, with cookies and forms."""

import http.client
import re
from urllib.parse import quote, urlencode, urljoin, urlsplit

HIDDEN = re.compile(r"<input type=['\"]hidden['\"] name=['\"](csrf\w*|name)['\"] value=['\"]([^'\"]+)")
"""Hidden fields of a form, which protect it from forged requests."""
REDIRECTS = (301, 302, 303)
URL_CHARACTERS = "/:?&=%+,;@!*'()[]~#"
"""Characters of a URL that need no quotes in a request."""


class Visitor:
    """Session that is logged in on all sites."""

    def __init__(self, sites, copy):
        self.sites, self.copy = sites, copy
        self.cookies = {(cookie["domain"], cookie["name"]): cookie["value"] for cookie in copy.cookies(sites.urls)}
        self.headers = copy.headers

    def get(self, url):
        """Return status and text of a page after redirects."""
        return self.request("GET", url)

    def post(self, url, page="", **fields):
        """Submit a form with its hidden fields, which are read from the page that shows it."""
        return self.request("POST", url, {**dict(HIDDEN.findall(self.get(page or url)[1])), **fields})

    def request(self, method, url, fields=None, redirects=10, referer=""):
        """Return status and text of the response after at most `redirects` redirects to pages of the sites."""
        parts = urlsplit(url)
        host, port = self.sites.routes[f"{parts.hostname}:80"]
        connection = http.client.HTTPConnection(host, port, timeout=30)
        cookies = "; ".join(
            f"{name}={value}" for (domain, name), value in self.cookies.items() if domain == parts.hostname
        )
        headers = {"Host": parts.hostname, "Cookie": cookies, **self.headers}
        if referer or fields is not None:
            headers["Referer"] = referer or url  # Fossil accepts forms only from its own pages
        if fields is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        path = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
        connection.request(method, path, urlencode(fields) if fields is not None else None, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        for cookie in response.headers.get_all("Set-Cookie") or ():
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[parts.hostname, name] = value
        connection.close()
        if response.status in REDIRECTS and redirects:
            target = urljoin(url, quote(response.headers["Location"], safe=URL_CHARACTERS))
            if f"{urlsplit(target).hostname}:80" in self.sites.routes:
                return self.request("GET", target, redirects=redirects - 1, referer=referer)
        return response.status, text
