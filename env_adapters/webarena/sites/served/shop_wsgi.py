"""The shop as a WSGI application, each session seeing its own copy."""

import os

from env_adapters.webarena.sites.served.copies import Copies
from env_adapters.webarena.sites.served.django_common import copies_folder, seed_folder

os.environ["DJANGO_SETTINGS_MODULE"] = "env_adapters.webarena.sites.served.shop_settings"

from django.core.wsgi import get_wsgi_application

static = {"/static/": seed_folder() / "shop_static", "/media/": seed_folder() / "shop_media"}
application = Copies(get_wsgi_application(), seed_folder(), copies_folder(), ["shop.sqlite3"], static)
