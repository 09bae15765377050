"""Common steps of filling a Django site: tables, static files, logged-in sessions, and the search index."""

from datetime import UTC, date, datetime, time
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command

from env_adapters.web_sites.logins import session_key
from env_adapters.web_sites.served.django_common import SESSION_END

PASSWORD = "Password123"
"""Password of every generated account."""


def prepare_database() -> None:
    """Create the tables and collect the static files."""
    call_command("migrate", verbosity=0, interactive=False)
    call_command("collectstatic", verbosity=0, interactive=False)


def index() -> None:
    """Rebuild the search index."""
    call_command("rebuild_index", verbosity=0, interactive=False)


def log_in(user: Any, site: str, name: str, backend: str) -> None:
    """Create a session of `user` that does not expire."""
    from django.contrib.sessions.models import Session

    values = {SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: backend, HASH_SESSION_KEY: user.get_session_auth_hash()}
    Session.objects.create(
        session_key=session_key(site, name),
        session_data=SessionStore().encode(values),
        expire_date=datetime.fromisoformat(SESSION_END),
    )


def moment(day: date, hour: int = 12) -> datetime:
    """Return a time of a day in UTC."""
    return datetime.combine(day, time(hour), UTC)
