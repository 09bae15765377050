"""Tasks of a customer that change the cart, the wish list, orders or addresses."""

from collections.abc import Iterator, Mapping, Sequence

from env_adapters.web_sites.tasks.shopping import SHOP, find, in_stock, products
from env_adapters.web_sites.tasks.templates import (
    TEST,
    TRAIN,
    Evaluation,
    Script,
    TaskDraft,
    added,
    expect_changes,
    neighbours,
    overwrite,
    stop,
    template,
)
from env_adapters.web_sites.world import GeneratedWorld
from env_adapters.web_sites.world.people import Resident, someone
from env_adapters.web_sites.world.shop import Product

ADD, SAVE = 'click [button "Add to cart"]', 'click [button "Save"]'
FRONT = f"goto [{SHOP}]"
BASKET, WISHES = f"goto [{SHOP}/basket/]", f"goto [{SHOP}/accounts/wishlists/birthday/]"
WISHED = ['click [link "Add to wish list"]', "click [link \"Add to 'Birthday ideas' wish list\"]"]
CHECKOUT = [BASKET, 'click [link "Proceed to checkout"]']
DEFAULT_ADDRESS = 'click [button "Ship to your default shipping address"]'
PLACE = ['click [link "Continue"]', 'click [button "Place order"]']
COUNTRY = 'type [combobox "Country *"] [United States of America] [0]'


def put(product: Product, units: int = 1) -> list[str]:
    """Return the script that adds units of a product to the cart."""
    return [*find(product), *[ADD] * units]


@template(TRAIN, "shopping", "Put one {{product}} and nothing else into my cart.", changes=True)
def add_to_cart(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one, other in neighbours(in_stock(world, split)):
        yield cart_draft(world, one.name, {"product": one.title}, [], (one, other))


@template(TEST, "shopping", "Put two of the {{product}} and nothing else into my cart.", changes=True)
def add_two(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one, other in neighbours(in_stock(world, split)):
        if one.stock > 2:
            yield cart_draft(world, one.name, {"product": one.title}, [], (one, other), units=2)


def cart_draft(
    world: GeneratedWorld,
    entity: str,
    words: Mapping[str, str],
    steps: Script,
    pair: tuple[Product, Product],
    units: int = 1,
) -> TaskDraft:
    """Return the draft of a task that adds a product to the cart.

    Args:
        steps: script that finds out which product it is.
        pair: the product, and another one that is in stock.
    """
    one, other = pair
    taken_out = [BASKET, f'click [link "Remove" after "{other.title}"]']
    return TaskDraft(
        entity,
        words,
        in_cart(world, one, units),
        [*steps, *put(one, units), stop()],
        {
            "not added": [*steps, *find(one), stop()],
            "another product": [*steps, *put(other, units), stop()],
            "and another product": [*steps, *put(other), *put(one, units), stop()],
            "one unit more": [*steps, *put(one, units + 1), stop()],
        }
        | ({"one unit less": [*put(one, units - 1), stop()]} if units > 1 else {}),
        [*steps, *put(other), *taken_out, *put(one, units), stop()],
    )


def in_cart(world: GeneratedWorld, product: Product, units: int = 1) -> Evaluation:
    """Return the evaluator of a cart with nothing but units of a product."""
    customer = world.shop.shopper.email
    return expect_changes(added("cart line", customer=customer, product=product.title, quantity=units, status="Open"))


@template(TRAIN, "shopping", 'Add the {{product}} to my wish list "Birthday ideas".', changes=True)
def add_wish(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    listed = [one for one in products(world, split) if one not in world.shop.wishes]
    for one, other in neighbours(listed):
        values = {"customer": world.shop.shopper.email, "list": "Birthday ideas", "product": one.title, "quantity": 1}
        wish, another = [*find(one), *WISHED], [*find(other), *WISHED]
        units = overwrite(f'spinbutton "" after "{one.title}"', "2")
        twice = [WISHES, *units, 'click [button "Update quantities"]']
        removed = [WISHES, f'click [button "" after "{other.title}"]', 'click [link "Remove"]', CONFIRM]
        yield TaskDraft(
            one.name,
            {"product": one.title},
            expect_changes(added("wish", **values)),
            [*wish, stop()],
            {
                "not added": [*find(one), stop()],
                "another product": [*another, stop()],
                "and another product": [*another, *wish, stop()],
                "two units": [*wish, *twice, stop()],
            },
            [*another, *removed, *wish, stop()],
        )


CONFIRM = 'click [button "Remove"]'


@template(TEST, "shopping", "Order one {{product}} and nothing else, to my default address.", changes=True)
def buy(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    place = world.shop.random("other address")
    for one, other in neighbours(in_stock(world, split)):
        stranger = someone(place, "Greta", "Moss")
        elsewhere = [*put(one), *CHECKOUT, *fill_in(fields(stranger))[:-1], 'click [button "Continue"]', *PLACE, stop()]
        yield TaskDraft(
            one.name,
            {"product": one.title},
            ordered(world.shop.shopper, one),
            [*order(one), stop()],
            {
                "not placed": [*order(one)[:-1], stop()],
                "two units": [*order(one, 2), stop()],
                "another product": [*order(other), stop()],
                "and another product": [*put(other), *order(one), stop()],
                "another address": elsewhere,
                "two orders": [*order(one), FRONT, *order(one), stop()],
            },
            [*order(one, 2), FRONT, *order(one), stop()],
        )


def order(product: Product, units: int = 1) -> list[str]:
    """Return the script that orders what is in the cart and units of a product, to the default address."""
    return [*put(product, units), *CHECKOUT, DEFAULT_ADDRESS, *PLACE]


def ordered(customer: Resident, product: Product) -> Evaluation:
    """Return the evaluator of one order of one unit to the address of the customer."""
    return expect_changes(
        added(
            "order",
            customer=customer.email,
            status="Pending",
            shipping="free-shipping",
            guest_email="",
            lines=f"1 x {product.title} (Pending)",
            ship_to=f"{customer.first}, {customer.last}, {customer.line1}, {customer.city}, {customer.postcode}, US",
            bill_to="",
        )
    )


@template(
    TRAIN,
    "shopping",
    "Add a new address to my address book: {{name}}, {{line}}, {{city}}, {{postcode}}, United States. "
    "Leave the other fields empty.",
    changes=True,
)
def add_address(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    random = world.shop.random("addresses")
    names = (("Nils", "Ek"), ("Maja", "Strand"), ("Ingrid", "Dahl"), ("Jonas", "Bergman"), ("Siri", "Nyberg"))
    for first, last in names:
        one = someone(random, first, last)
        opened = ['click [link "Account"]', 'click [link "Address Book"]', 'click [link "Add a new address"]']
        script = [*opened, *fill_in(fields(one)), SAVE]
        wrong: dict[str, Sequence[str]] = {"not saved": [*script[:-1], stop()]}
        for label in fields(one):
            said = "10001" if label.startswith("Post") else "Elsewhere"
            filled = fill_in({**fields(one), label: said})
            wrong[f"wrong {label.lower().rstrip(' *')}"] = [*opened, *filled, SAVE, stop()]
        phone = 'type [textbox "Phone number"] [+1 212 555 0100] [0]'
        wrong["with a phone number"] = [*script[:-1], phone, SAVE, stop()]
        elsewhere = fill_in({**fields(one), "City *": "Elsewhere"})
        edited = ['click [link "Edit" #2]', *overwrite('textbox "City *"', one.city), SAVE, stop()]
        yield TaskDraft(
            one.name,
            {"name": one.name, "line": one.line1, "city": one.city, "postcode": one.postcode},
            in_address_book(world.shop.shopper, one),
            [*script, stop()],
            wrong,
            [*opened, *elsewhere, SAVE, *edited],
        )


def fields(person: Resident) -> Mapping[str, str]:
    """Return the text of each field of an address form, by its label."""
    return {
        "First name *": person.first,
        "Last name *": person.last,
        "First line of address *": person.line1,
        "City *": person.city,
        "Post/Zip-code *": person.postcode,
    }


def fill_in(texts: Mapping[str, str]) -> list[str]:
    """Return the script that fills in an address form."""
    return [*(f'type [textbox "{label}"] [{said}] [0]' for label, said in texts.items()), COUNTRY]


def in_address_book(customer: Resident, person: Resident) -> Evaluation:
    """Return the evaluator of one new address in the address book of a customer."""
    empty = dict.fromkeys(("title", "line2", "line3", "state", "phone", "notes"), "")
    return expect_changes(
        added(
            "address",
            **empty,
            customer=customer.email,
            first_name=person.first,
            last_name=person.last,
            line1=person.line1,
            line4=person.city,
            postcode=person.postcode,
            country="US",
            default_shipping=0,
            default_billing=0,
        )
    )
