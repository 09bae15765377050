"""Settings that shop and forum share. Environment variables of the process set the folders."""

import os
from pathlib import Path
from typing import Any

SEED_VARIABLE = "SITES_SEED_FOLDER"
COPIES_VARIABLE = "SITES_COPIES_FOLDER"
SECRET = "made-up-data-on-loopback-needs-no-secret"
SESSION_END = "2099-01-01T00:00:00+00:00"


def seed_folder() -> Path:
    """Return the folder with the initial state of copies."""
    return Path(os.environ[SEED_VARIABLE])


def copies_folder() -> Path:
    """Return the folder of the copies."""
    return Path(os.environ[COPIES_VARIABLE])


def answers_folder(site: str) -> Path:
    """Return the folder of a site's response cache."""
    return copies_folder().parent / "answers" / site


def database(name: str) -> dict[str, Any]:
    """Return the settings of a SQLite file that trades durability for speed."""
    return {
        "default": {
            "ENGINE": "env_adapters.web_sites.served.sqlite_copy",
            "NAME": seed_folder() / name,
            "CONN_MAX_AGE": 0,
            "ATOMIC_REQUESTS": False,
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA synchronous=OFF;PRAGMA journal_mode=MEMORY;",
            },
        }
    }


def search_index(name: str) -> dict[str, Any]:
    """Return the settings of a Whoosh index, which is written only when the site is filled."""
    return {
        "default": {
            "ENGINE": "haystack.backends.whoosh_backend.WhooshEngine",
            "PATH": str(seed_folder() / name),
            "INCLUDE_SPELLING": False,
        }
    }


COMMON: dict[str, Any] = {
    "ALLOWED_HOSTS": [".test", "127.0.0.1", "localhost"],
    "CACHES": {
        "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
        "st_rate_limit": {"BACKEND": "django.core.cache.backends.dummy.DummyCache", "TIMEOUT": None},
    },
    "DEBUG": False,
    "DEFAULT_AUTO_FIELD": "django.db.models.AutoField",
    "EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend",
    "HAYSTACK_SIGNAL_PROCESSOR": "haystack.signals.BaseSignalProcessor",
    "LANGUAGES": [("en-us", "English")],
    "LANGUAGE_CODE": "en-us",
    "MEDIA_URL": "/media/",
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
    "SECRET_KEY": SECRET,
    "SITE_ID": 1,
    "STATIC_URL": "/static/",
    "TIME_ZONE": "UTC",
    "USE_I18N": True,
    "USE_TZ": True,
    "LOGGING": {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"stderr": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
    },
}
