"""What seeding a Django site takes: its tables, static files, logins that are known, and the search index."""

from datetime import UTC, date, datetime, time
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command

from env_adapters.webarena.sites.logins import session_key
from env_adapters.webarena.sites.served.django_common import SESSION_END

PASSWORD = "Password123"
"""Of every made-up account."""


def prepare() -> None:
    """Make tables and collect static files."""
    call_command("migrate", verbosity=0, interactive=False)
    call_command("collectstatic", verbosity=0, interactive=False)


def index() -> None:
    """Make the search index anew."""
    call_command("rebuild_index", verbosity=0, interactive=False)


def log_in(user: Any, site: str, name: str, backend: str) -> None:
    """Begin a session of `user` that does not end."""
    from django.contrib.sessions.models import Session

    values = {
        SESSION_KEY: str(user.pk),
        BACKEND_SESSION_KEY: backend,
        HASH_SESSION_KEY: user.get_session_auth_hash(),
    }
    Session.objects.create(
        session_key=session_key(site, name),
        session_data=SessionStore().encode(values),
        expire_date=datetime.fromisoformat(SESSION_END),
    )


def moment(day: date, hour: int = 12) -> datetime:
    """A day as a moment in UTC."""
    return datetime.combine(day, time(hour), UTC)
