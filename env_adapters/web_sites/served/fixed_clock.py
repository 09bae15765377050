"""Django's template tag `now` without the clock: a page is the same at any time.

Oscar's pages have the minute in which they were made in `<meta name="created">`.
"""

from django.template import Library
from django.utils.dateformat import format as formatted

from env_adapters.web_sites.world.forum import LAST_MOMENT

register = Library()


@register.simple_tag
def now(date_format: str) -> str:
    """Return the last moment of the sites' world in a format of Django."""
    return str(formatted(LAST_MOMENT, date_format))
