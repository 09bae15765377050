"""Users that are logged in from the start, and their cookies. The initial state has the matching sessions."""

from collections.abc import Iterator
from hashlib import sha1, sha256
from urllib.parse import urlsplit

from env_adapters.web_sites.world import world
from env_adapters.web_sites.world.code import OWN_LOGIN
from env_adapters.web_sites.world.forum import OWN_NAME

SHOPPER = "shopper"
ADMIN = "admin"


def session_key(site: str, user: str) -> str:
    """Return the key of the Django session in which `user` is logged in."""
    return sha256(f"{site}:{user}".encode()).hexdigest()[:32]


def project_code(name: str) -> str:
    """Return Fossil's project code of a repository, which is part of the name of its login cookie."""
    return sha1(f"project {name}".encode()).hexdigest()


def login_secret(name: str) -> str:
    """Return the secret in the login cookie of a repository."""
    return sha256(f"login {name}".encode()).hexdigest()[:50]


def cookies(site: str, url: str, seed: int) -> Iterator[dict[str, object]]:
    """Yield the cookies that log a browser in on a site, in Playwright's format."""
    for name, value in session_cookies(site, seed):
        yield {
            "name": name,
            "value": value,
            "domain": urlsplit(url).hostname or "",
            "path": "/",
            "expires": -1,
            "httpOnly": True,
            "secure": False,
            "sameSite": "Lax",
        }


def session_cookies(site: str, seed: int) -> Iterator[tuple[str, str]]:
    """Yield name and value of each cookie."""
    if site in ("shopping", "shopping_admin"):
        yield "shop_session", session_key("shop", SHOPPER if site == "shopping" else ADMIN)
    elif site == "reddit":
        yield "forum_session", session_key("forum", OWN_NAME)
    elif site == "gitlab":
        for project in world(seed).code.projects:
            code = project_code(project.name)[:16]
            yield f"fossil-{code}", f"{login_secret(project.name)}/{code}/{OWN_LOGIN}"
