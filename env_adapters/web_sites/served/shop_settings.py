"""Django's settings of the shop: django-oscar with its dashboard."""

from pathlib import Path

from django.urls import reverse_lazy
from oscar import INSTALLED_APPS
from oscar.defaults import *  # noqa: F403 - Oscar's own way

from env_adapters.web_sites.served.django_common import COMMON, database, search_index, seed_folder

globals().update(COMMON)
DATABASES = database("shop.sqlite3")
HAYSTACK_CONNECTIONS = search_index("shop_index")
HAYSTACK_SIGNAL_PROCESSOR = COMMON["HAYSTACK_SIGNAL_PROCESSOR"]  # Oscar's processor would write to the shared index
STATIC_ROOT = seed_folder() / "shop_static"
MEDIA_ROOT = seed_folder() / "shop_media"
SESSION_COOKIE_NAME = "shop_session"
CSRF_COOKIE_NAME = "shop_csrf"
INSTALLED_APPS = list(INSTALLED_APPS)
ROOT_URLCONF = "env_adapters.web_sites.served.shop_urls"
LOGIN_REDIRECT_URL = reverse_lazy("customer:summary")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.common.CommonMiddleware",
    "oscar.apps.basket.middleware.BasketMiddleware",
]
AUTHENTICATION_BACKENDS = [
    "oscar.apps.customer.auth_backends.EmailBackend",
    "django.contrib.auth.backends.ModelBackend",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).parent / "templates" / "shop"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.contrib.auth.context_processors.auth",
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.template.context_processors.static",
                "django.contrib.messages.context_processors.messages",
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ],
            "builtins": ["env_adapters.web_sites.served.fixed_clock"],
        },
    }
]

OSCAR_SHOP_NAME = "Fernhill"
OSCAR_DEFAULT_CURRENCY = "USD"
OSCAR_INITIAL_ORDER_STATUS = "Pending"
OSCAR_INITIAL_LINE_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {
    "Pending": ("Processing", "Cancelled"),
    "Processing": ("Shipped", "Cancelled"),
    "Shipped": ("Delivered",),
    "Delivered": (),
    "Cancelled": (),
}
OSCAR_THUMBNAILER = "env_adapters.web_sites.served.shop_thumbnails.Original"
OSCAR_DELETE_IMAGE_FILES = False
