"""One token against forged forms for all visitors who have none, so that a page is the same for all of them.

Django draws one for each visitor, in a cookie, and writes it into every form. Nobody can forge a request here: a copy
of a site has one visitor, and no other site is reached.
"""

from collections.abc import Iterable
from http.cookies import SimpleCookie

from env_adapters.webarena.sites.served.copies import App, Environ, StartResponse

TOKEN = "0123456789abcdef0123456789abcdef"


class OneToken:
    """A WSGI application that gives a request the token where its cookies have none.

    Attributes:
        app: Django's.
        cookie: name of its cookie.
    """

    def __init__(self, app: App, cookie: str) -> None:
        self.app, self.cookie = app, cookie

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        cookies = environ.get("HTTP_COOKIE", "")
        if self.cookie not in SimpleCookie(cookies):
            both = "; ".join(filter(None, (cookies, f"{self.cookie}={TOKEN}")))
            environ = {**environ, "HTTP_COOKIE": both}
        return self.app(environ, start_response)
