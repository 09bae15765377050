"""Who is logged in from the start, and the cookies that say so. The seed data holds the other half."""

from collections.abc import Iterable, Iterator
from hashlib import sha1, sha256

from env_adapters.webarena.sites.world import world

SHOPPER = "shopper"
ADMIN = "admin"


def session_key(site: str, user: str) -> str:
    """Key of the Django session in which `user` is logged in."""
    return sha256(f"{site}:{user}".encode()).hexdigest()[:32]


def project_code(name: str) -> str:
    """Fossil's name of a repository, which its login cookie is named after."""
    return sha1(f"project {name}".encode()).hexdigest()


def login_secret(name: str) -> str:
    """What the login cookie of a repository holds."""
    return sha256(f"login {name}".encode()).hexdigest()[:50]


def cookies(site: str, url: str, seed: int) -> Iterator[dict[str, str]]:
    """The cookies with which a browser is logged in at a site, as Playwright takes them.

    Args:
        site: WebArena's name of it.
        url: its address.
        seed: of the world that it shows.
    """
    if site in ("shopping", "shopping_admin"):
        user = SHOPPER if site == "shopping" else ADMIN
        yield {"name": "shop_session", "value": session_key("shop", user), "url": url}
    elif site == "reddit":
        yield {"name": "forum_session", "value": session_key("forum", world(seed).forum.members[0]), "url": url}
    elif site == "gitlab":
        for project in world(seed).code.projects:
            code = project_code(project.name)[:16]
            login = next(iter(world(seed).code.people))
            yield {"name": f"fossil-{code}", "value": f"{login_secret(project.name)}/{code}/{login}", "url": url}


def all_cookies(urls: Iterable[tuple[str, str]], seed: int) -> list[dict[str, str]]:
    """The cookies of several sites, given by name and address."""
    return [cookie for site, url in urls for cookie in cookies(site, url, seed)]
