"""Changes of the embedded sites by their forms, without a browser."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from env_adapters.web_sites.world import world
from env_adapters.web_sites.world.code import PRIORITIES, STATUSES
from env_adapters.webarena.grading.changes import Change
from tests.support.visitor import Visitor

SHOP, ADMIN, FORUM, CODE = "http://shop.test", "http://admin.test/dashboard", "http://forum.test", "http://code.test"
Values = Mapping[str, str]
NEXT_STATUSES = {
    "Pending": ("Processing", "Cancelled"),
    "Processing": ("Shipped", "Cancelled"),
    "Shipped": ("Delivered", ""),
}
STATUS_CODES = {"Approved": "1", "Rejected": "2"}


def products():
    """Return the products by their title."""
    return {product.title: product for product in world().shop.products}


def put_into_cart(visitor: Visitor, title: str, quantity: str) -> None:
    """Add units of a product to the cart."""
    product = products()[title]
    visitor.post(f"{SHOP}/basket/add/{product.pk}/", SHOP + product.path, quantity=quantity)


def cart_line(visitor: Visitor, values: Values, key: str) -> None:
    """Add a line to the cart."""
    put_into_cart(visitor, values["product"], values["quantity"])


def wish(visitor: Visitor, values: Values, key: str) -> None:
    """Add a product to the wish list."""
    visitor.get(f"{SHOP}/accounts/wishlists/birthday/add/{products()[values['product']].pk}/")


def order(visitor: Visitor, values: Values, key: str) -> None:
    """Place an order to the default address, or to a new one if the values name another address."""
    for line in values["lines"].split("; "):
        quantity, _, title = line.removesuffix(" (Pending)").partition(" x ")
        put_into_cart(visitor, title, quantity)
    page = f"{SHOP}/checkout/shipping-address/"
    first, last, line1, city, postcode, country = values["ship_to"].split(", ")
    own = world().shop.shopper
    if (first, last, line1, city, postcode) == (own.first, own.last, own.line1, own.city, own.postcode):
        visitor.post(page, action="ship_to", address_id="1")
    else:
        place = {"first_name": first, "last_name": last, "line1": line1, "line4": city, "postcode": postcode}
        visitor.post(page, country=country, **place)
    for step in ("shipping-method", "payment-method", "preview"):
        visitor.get(f"{SHOP}/checkout/{step}/")
    visitor.post(f"{SHOP}/checkout/preview/", action="place_order")


def address(visitor: Visitor, values: Values, key: str) -> None:
    """Add an address to the address book."""
    names = ("title", "first_name", "last_name", "line1", "line2", "line3", "line4", "state", "postcode", "notes")
    fields = {name: values[name] for name in names if name != "title"}
    visitor.post(f"{SHOP}/accounts/addresses/add/", phone_number=values["phone"], country="US", **fields)


def set_order(visitor: Visitor, values: Values, key: str) -> None:
    """Set the status of an order."""
    page = f"{ADMIN}/orders/{next(one.number for one in world().shop.orders if str(one.pk) == key)}/"
    visitor.post(page, order_action="change_order_status", new_status=values["status"])


def set_review(visitor: Visitor, values: Values, key: str) -> None:
    """Set the status of a review."""
    one = next(one for one in world().shop.reviews if str(one.pk) == key)
    fields = {"title": one.title, "body": one.body, "score": str(one.stars)}
    fields |= {name: text for name, text in values.items() if name in fields}
    visitor.post(f"{ADMIN}/reviews/{key}/", **fields, status=STATUS_CODES[values["status"]])


def topic(visitor: Visitor, values: Values, key: str) -> None:
    """Create a topic, or send a private message."""
    fields = {"title": values["title"], "comment": values["text"]}
    if values["category"] == "Private":
        others = ", ".join(name for name in values["participants"].split(", ") if name != values["member"])
        visitor.post(f"{FORUM}/topic/private/publish/", users=others, **fields)
    else:
        pk = world().forum.category_path(values["category"]).split("/")[2]
        visitor.post(f"{FORUM}/topic/publish/{pk}/", category=pk, **fields)


def post(visitor: Visitor, values: Values, key: str) -> None:
    """Reply in a topic."""
    pk = next(one.pk for one in world().forum.topics if one.title == values["topic"])
    visitor.post(f"{FORUM}/comment/{pk}/publish/", comment=values["text"])


def like(visitor: Visitor, values: Values, key: str) -> None:
    """Like a post."""
    visitor.post(f"{FORUM}/comment/like/{values['post']}/create/")


def new_ticket(visitor: Visitor, values: Values, key: str, project: str) -> None:
    """Create a ticket."""
    fields = {name: values[name] for name in ("title", "type", "priority", "assignee")}
    visitor.post(f"{CODE}/{project}/tktnew", **fields, comment=values["text"], submit="Create ticket")


def set_ticket(visitor: Visitor, values: Values, key: str, project: str) -> None:
    """Set fields of a ticket."""
    visitor.post(f"{CODE}/{project}/tktedit/{key}", **dict(values), submit="Save changes")


def comment(visitor: Visitor, values: Values, key: str, project: str) -> None:
    """Comment on a ticket."""
    set_ticket(visitor, {"icomment": values["text"]}, values["ticket"], project)


FORMS: Mapping[tuple[str, str], Callable[..., None]] = {
    ("added", "cart line"): cart_line,
    ("added", "wish"): wish,
    ("added", "order"): order,
    ("added", "address"): address,
    ("changed", "order"): set_order,
    ("changed", "review"): set_review,
    ("added", "topic"): topic,
    ("added", "message"): topic,
    ("added", "post"): post,
    ("added", "like"): like,
    ("added", "ticket"): new_ticket,
    ("changed", "ticket"): set_ticket,
    ("added", "comment"): comment,
}
PROJECT_FORMS = ("ticket", "comment")


def carry_out(visitor: Visitor, change: Change) -> None:
    """Carry out a change by the form that the site has for it."""
    project, _, kind = change.record.rpartition(" ")
    if kind in PROJECT_FORMS:
        FORMS[change.change, kind](visitor, change.values, change.key, project)
    else:
        FORMS[change.change, change.record](visitor, change.values, change.key)


def wrong_values(change: Change) -> Mapping[str, Change]:
    """Return the change with one value wrong or left out, for each value that a form can set, by its name."""
    now, kind = change.values, change.record.rpartition(" ")[2]
    another = next(title for title, product in products().items() if product.stock > 3 and title not in str(now))
    members = {*now.get("participants", "").split(", "), world().forum.members[1]}
    mine, elsewhere = sorted(world().code.projects, key=lambda one: one.name != change.record.partition(" ")[0])[:2]
    ticket = next(one for one in mine.tickets if one.uuid != now.get("ticket"))
    own = next((one for one in mine.tickets if one.uuid == change.key), ticket)
    order_now = next((one.status for one in world().shop.orders if str(one.pk) == change.key), "Pending")
    wrong = {
        "line": {"product": another, "quantity": "3"},
        "wish": {"product": another},
        "order": {
            "lines": now.get("lines", "").replace("1 x", "2 x"),
            "ship_to": "Greta, Moss, 1 Mill Lane, Denton, 12345, US",
            "status": next((one for one in NEXT_STATUSES.get(order_now, "") if one != now.get("status")), ""),
        },
        "address": {**dict.fromkeys(("first_name", "last_name", "line1", "line3", "line4"), "x"), "postcode": "10001"},
        "review": {"status": "Approved" if now.get("status") == "Rejected" else "Rejected"},
        "topic": {"title": "Another", "text": "Another", "category": "Meetups"},
        "message": {"title": "Another", "text": "Another", "participants": ", ".join(members)},
        "post": {"text": "Another", "topic": world().forum.topics[0].title},
        "like": {"post": "1"},
        "ticket": {
            **{
                "title": "Another",
                "type": "Bug" if now.get("type") == "Feature" else "Feature",
                "assignee": "ida, otto, rowan",
                "text": "",
            },
            "priority": next(one for one in PRIORITIES if one not in (now.get("priority"), own.priority)),
            "status": next(one for one in STATUSES if one not in (now.get("status"), own.status)),
        },
        "comment": {"text": "Another", "ticket": ticket.uuid},
    }[kind]
    fixed = ("status",) if change.change == "added" else ()
    fixed += ("status",) if (kind, order_now) == ("order", "Shipped") else ()  # such an order has one next status only
    names = [name for name in wrong if name in now and now[name] != wrong[name] and name not in fixed]
    found = {name: replace(change, values={**now, name: wrong[name]}) for name in names}
    if change.change == "added" and kind in PROJECT_FORMS:
        values = {**now, "ticket": elsewhere.tickets[0].uuid} if kind == "comment" else now
        found["project"] = replace(change, record=f"{elsewhere.name} {kind}", values=values)
    return found
