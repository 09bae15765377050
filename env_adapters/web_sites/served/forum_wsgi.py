"""Forum as a WSGI application in which each session has its own copy."""

import os

from env_adapters.web_sites.served.one_token import site_application

os.environ["DJANGO_SETTINGS_MODULE"] = "env_adapters.web_sites.served.forum_settings"

from django.core.wsgi import get_wsgi_application

application = site_application("forum", get_wsgi_application())
