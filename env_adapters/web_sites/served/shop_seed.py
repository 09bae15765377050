"""Fill the shop's database with the generated data: `python -m env_adapters.web_sites.served.shop_seed SEED`."""

import os
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "env_adapters.web_sites.served.shop_settings"

import django

django.setup()

import oscar  # noqa: E402 - the modules below need what was set up
from django.conf import settings  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.contrib.sites.models import Site  # noqa: E402
from django.db import transaction  # noqa: E402
from oscar.core.loading import get_model  # noqa: E402

from env_adapters.web_sites.served.django_seed import PASSWORD, index, log_in, moment, prepare_database  # noqa: E402
from env_adapters.web_sites.world import world  # noqa: E402
from env_adapters.web_sites.world.people import Resident  # noqa: E402
from env_adapters.web_sites.world.shop import Order, ShopWorld  # noqa: E402

BACKEND = "oscar.apps.customer.auth_backends.EmailBackend"
WISHES_KEY = "birthday"
ADMIN_EMAIL = "admin@fernhill.example.com"


def main(seed: int) -> None:
    """Fill the shop with the data of a seed."""
    prepare_database()
    media = Path(settings.MEDIA_ROOT)
    media.mkdir(exist_ok=True)
    missing = Path(oscar.__file__).parent / "static" / "oscar" / "img" / "image_not_found.jpg"
    shutil.copyfile(missing, media / settings.OSCAR_MISSING_IMAGE_URL)
    shop = world(seed).shop
    with transaction.atomic():
        Site.objects.update_or_create(pk=1, defaults={"domain": "shop.test", "name": "Fernhill"})
        add_people(shop)
        add_catalogue(shop)
        add_reviews(shop)
        add_orders(shop)
        add_wish_list(shop)
    index()


def add_people(shop: ShopWorld) -> None:
    """Add the customers with their addresses, and the administrator."""
    country = get_model("address", "Country").objects.create(
        iso_3166_1_a2="US",
        iso_3166_1_a3="USA",
        iso_3166_1_numeric="840",
        printable_name="United States of America",
        name="United States of America",
        is_shipping_country=True,
    )
    addresses = get_model("address", "UserAddress").objects
    for pk, person in enumerate(shop.customers, start=1):
        user = User(pk=pk, username=person.email, email=person.email, first_name=person.first, last_name=person.last)
        user.set_password(PASSWORD)
        user.date_joined = moment(shop.orders[0].day)
        user.save()
        addresses.create(
            user=user, **address(person), country=country, is_default_for_shipping=True, is_default_for_billing=True
        )
    admin = User(username="admin", email=ADMIN_EMAIL, first_name="Alex", last_name="Admin", is_staff=True)
    admin.is_superuser = True
    admin.date_joined = moment(shop.orders[0].day)
    admin.set_password(PASSWORD)
    admin.save()
    for user, name in ((User.objects.get(email=shop.shopper.email), "shopper"), (admin, "admin")):
        log_in(user, "shop", name, BACKEND)
        basket = get_model("basket", "Basket").objects.create(owner=user)  # or the first page would make one
        type(basket).objects.filter(pk=basket.pk).update(date_created=moment(shop.orders[0].day))


def address(person: Resident) -> dict[str, str]:
    """Return the fields of an address."""
    return {
        "first_name": person.first,
        "last_name": person.last,
        "line1": person.line1,
        "line4": person.city,
        "postcode": person.postcode,
    }


def add_catalogue(shop: ShopWorld) -> None:
    """Add the categories, and the products with their attributes and stock."""
    kind = get_model("catalogue", "ProductClass").objects.create(name="Goods", slug="goods")
    attributes = {
        code: get_model("catalogue", "ProductAttribute").objects.create(
            product_class=kind, name=name, code=code, type="text"
        )
        for code, name in (("brand", "Brand"), ("colour", "Colour"), ("weight", "Weight"), ("warranty", "Warranty"))
    }
    categories: dict[str, Any] = {}
    departments: dict[str, Any] = {}
    for category in shop.categories:
        if category.department:
            made = departments[category.department].add_child(name=category.name)
            departments[category.department].refresh_from_db()
        else:
            made = departments[category.name] = get_model("catalogue", "Category").add_root(name=category.name)
        assert made.pk == category.pk  # addresses of tasks hold it
        categories[category.name] = made
    partner = get_model("partner", "Partner").objects.create(name="Fernhill Warehouse", code="fernhill")
    values = []
    for product in shop.products:
        made = get_model("catalogue", "Product").objects.create(
            pk=product.pk,
            title=product.title,
            slug=product.slug,
            upc=product.upc,
            description=product.description,
            product_class=kind,
            rating=None,
        )
        get_model("catalogue", "ProductCategory").objects.create(product=made, category=categories[product.category])
        texts = {
            "brand": product.brand,
            "colour": product.colour,
            "weight": f"{product.grams} g",
            "warranty": f"{product.warranty} years",
        }
        values += [
            get_model("catalogue", "ProductAttributeValue")(product=made, attribute=attributes[code], value_text=text)
            for code, text in texts.items()
        ]
        get_model("partner", "StockRecord").objects.create(
            pk=product.pk,
            product=made,
            partner=partner,
            partner_sku=product.upc,
            price=Decimal(product.cents) / 100,
            num_in_stock=product.stock,
            low_stock_threshold=5,
        )
    get_model("catalogue", "ProductAttributeValue").objects.bulk_create(values)


def add_reviews(shop: ShopWorld) -> None:
    """Add the reviews and update the ratings of the products."""
    model = get_model("reviews", "ProductReview")
    users = {user.email: user for user in User.objects.all()}
    made = [
        model(
            pk=review.pk,
            product_id=review.product.pk,
            user=users[review.customer.email],
            score=review.stars,
            title=review.title,
            body=review.body,
            status=model.FOR_MODERATION if review.pending else model.APPROVED,
            date_created=moment(review.day),
        )
        for review in shop.reviews
    ]
    model.objects.bulk_create(made)
    for review in made:  # `date_created` is set to now when a row is added
        model.objects.filter(pk=review.pk).update(date_created=moment(shop.reviews[review.pk - 1].day))
    for product in get_model("catalogue", "Product").objects.all():
        product.update_rating()


def add_orders(shop: ShopWorld) -> None:
    """Add the orders with their lines."""
    country = get_model("address", "Country").objects.get()
    users = {user.email: user for user in User.objects.all()}
    for order in shop.orders:
        place = {**address(order.customer), "country": country}
        total = Decimal(order.cents) / 100
        made = get_model("order", "Order").objects.create(
            pk=order.pk,
            number=order.number,
            site_id=1,
            user=users[order.customer.email],
            currency="USD",
            total_incl_tax=total,
            total_excl_tax=total,
            shipping_address=get_model("order", "ShippingAddress").objects.create(**place),
            billing_address=get_model("order", "BillingAddress").objects.create(**place),
            shipping_method="Free shipping",
            shipping_code="free-shipping",
            status=order.status,
            date_placed=moment(order.day),
        )
        add_lines(order, made)
    for person in shop.customers:
        bought = [order for order in shop.orders if order.customer is person]
        get_model("analytics", "UserRecord").objects.create(
            user=users[person.email],
            num_orders=len(bought),
            num_order_lines=sum(len(order.lines) for order in bought),
            num_order_items=sum(count for order in bought for _, count in order.lines),
            total_spent=Decimal(sum(order.cents for order in bought)) / 100,
            date_last_order=moment(bought[-1].day) if bought else None,
        )


def add_lines(order: Order, made: object) -> None:
    """Add the lines of an order."""
    partner = get_model("partner", "Partner").objects.get()
    for product, count in order.lines:
        unit, cost = Decimal(product.cents) / 100, Decimal(product.cents * count) / 100
        line = get_model("order", "Line").objects.create(
            order=made,
            partner=partner,
            partner_name=partner.name,
            partner_sku=product.upc,
            stockrecord_id=product.pk,
            product_id=product.pk,
            title=product.title,
            upc=product.upc,
            quantity=count,
            line_price_incl_tax=cost,
            line_price_excl_tax=cost,
            line_price_before_discounts_incl_tax=cost,
            line_price_before_discounts_excl_tax=cost,
            unit_price_incl_tax=unit,
            unit_price_excl_tax=unit,
            status=order.status,
            num_allocated=count,
            allocation_cancelled=False,
        )
        get_model("order", "LinePrice").objects.create(
            order=made, line=line, quantity=count, price_incl_tax=unit, price_excl_tax=unit
        )


def add_wish_list(shop: ShopWorld) -> None:
    """Add the wish list of the shopper with some products."""
    owner = User.objects.get(email=shop.shopper.email)
    wishes = get_model("wishlists", "WishList").objects.create(owner=owner, name="Birthday ideas")
    get_model("wishlists", "WishList").objects.filter(pk=wishes.pk).update(key=WISHES_KEY)  # Oscar draws one
    for product in shop.wishes:
        wishes.lines.create(product_id=product.pk, title=product.title, quantity=1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
