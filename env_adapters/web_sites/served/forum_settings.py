"""Django's settings of the forum: Spirit."""

from pathlib import Path

from spirit.extra.project_template.project_name.settings.base import (  # noqa: F401 - Spirit's own
    AUTHENTICATION_BACKENDS,
    INSTALLED_APPS,
    LOGIN_REDIRECT_URL,
    LOGIN_URL,
    LOGOUT_REDIRECT_URL,
    MIDDLEWARE,
    STORAGES,
    TEMPLATES,
)

from env_adapters.web_sites.served.django_common import COMMON, database, search_index, seed_folder

globals().update(COMMON)
DATABASES = database("forum.sqlite3")
HAYSTACK_CONNECTIONS = search_index("forum_index")
STATIC_ROOT = seed_folder() / "forum_static"
MEDIA_ROOT = seed_folder() / "forum_media"
SESSION_COOKIE_NAME = "forum_session"
CSRF_COOKIE_NAME = "forum_csrf"
ROOT_URLCONF = "env_adapters.web_sites.served.forum_urls"
TEMPLATES[0]["DIRS"] = [Path(__file__).parent / "templates" / "forum"]
WITHOUT = ("LocaleMiddleware", "SecurityMiddleware", "LastIPMiddleware", "LastSeenMiddleware")
"""Middleware to remove: two without a use here, and two that write to the database when a page is read."""
MIDDLEWARE = [name for name in MIDDLEWARE if not name.endswith(WITHOUT)]
ST_SITE_URL = "http://forum.test/"
ST_RATELIMIT_ENABLE = False
ST_DOUBLE_POST_THRESHOLD_MINUTES = 0  # a corrected topic or message of the same title would be dropped without a notice
ST_UPLOAD_IMAGE_ENABLED = False  # uploads would be stored in a folder that all copies share
ST_TASK_MANAGER = None
