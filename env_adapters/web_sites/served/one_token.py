"""Shared CSRF token for all visitors without one, so that a page is the same for all of them.

Django creates a token for each visitor, in a cookie, and writes it into every form. Forged requests are impossible
here, because a copy of a site has one visitor who reaches no other site.
"""

from collections.abc import Iterable
from http.cookies import SimpleCookie

from env_adapters.web_sites.served.copies import App, Copies, Environ, StartResponse
from env_adapters.web_sites.served.django_common import answers_folder, copies_folder, seed_folder
from env_adapters.web_sites.served.pristine import PristineAnswers

TOKEN = "0123456789abcdef0123456789abcdef"


class OneToken:
    """WSGI application that adds the shared token to requests without one."""

    def __init__(self, app: App, cookie: str) -> None:
        self.app, self.cookie = app, cookie

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        cookies = environ.get("HTTP_COOKIE", "")
        if self.cookie not in SimpleCookie(cookies):
            both = "; ".join(filter(None, (cookies, f"{self.cookie}={TOKEN}")))
            environ = {**environ, "HTTP_COOKIE": both}
        return self.app(environ, start_response)


def site_application(site: str, app: App) -> OneToken:
    """Return the application of a Django site in which each session has its own copy."""
    seed, state = seed_folder(), f"{site}.sqlite3"
    static = {"/static/": seed / f"{site}_static", "/media/": seed / f"{site}_media"}
    answers = PristineAnswers(seed / state, answers_folder(site))
    return OneToken(Copies(app, seed, copies_folder(), [state], static, answers), f"{site}_csrf")
