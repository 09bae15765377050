"""Forum as a WSGI application in which each session has its own copy."""

import os

from env_adapters.web_sites.served.copies import Copies
from env_adapters.web_sites.served.django_common import answers_folder, copies_folder, seed_folder
from env_adapters.web_sites.served.one_token import OneToken
from env_adapters.web_sites.served.pristine import PristineAnswers

os.environ["DJANGO_SETTINGS_MODULE"] = "env_adapters.web_sites.served.forum_settings"

from django.core.wsgi import get_wsgi_application

static = {"/static/": seed_folder() / "forum_static", "/media/": seed_folder() / "forum_media"}
state = "forum.sqlite3"
application = OneToken(
    Copies(
        get_wsgi_application(),
        seed_folder(),
        copies_folder(),
        [state],
        static,
        PristineAnswers(seed_folder() / state, answers_folder("forum")),
    ),
    "forum_csrf",
)
