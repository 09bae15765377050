"""Shop as a WSGI application in which each session has its own copy."""

import os

from env_adapters.web_sites.served.one_token import site_application

os.environ["DJANGO_SETTINGS_MODULE"] = "env_adapters.web_sites.served.shop_settings"

from django.core.wsgi import get_wsgi_application

django_application = get_wsgi_application()

from oscar.apps.analytics import receivers  # noqa: E402 - needs the application
from oscar.apps.catalogue.signals import product_viewed  # noqa: E402
from oscar.apps.customer.receivers import receive_product_view  # noqa: E402
from oscar.apps.dashboard.reviews.forms import DashboardProductReviewForm  # noqa: E402
from oscar.apps.search.signals import user_search  # noqa: E402

# Without these statistics, reading a page writes nothing.
product_viewed.disconnect(receivers.receive_product_view)
product_viewed.disconnect(receive_product_view)  # sets a cookie of viewed products, which differs between visitors
user_search.disconnect(receivers.receive_product_search)

# Without the status of a review that waits for a moderator, the form shows such a review as approved.
DashboardProductReviewForm.base_fields["status"].choices = DashboardProductReviewForm.Meta.model.STATUS_CHOICES

application = site_application("shop", django_application)
