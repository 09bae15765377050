"""Tasks of a customer that change the cart, the wish list, orders or addresses."""

from collections.abc import Iterator
from typing import Any

from env_adapters.webarena.sites.world import GeneratedWorld
from env_adapters.webarena.sites.world.people import someone
from env_adapters.webarena.sites.world.shop import Product
from env_adapters.webarena.sites_tasks.shopping import SHOP, find, in_stock, products
from env_adapters.webarena.sites_tasks.templates import (
    TEST,
    TRAIN,
    Draft,
    equals,
    neighbours,
    shows,
    state,
    stop,
    template,
)


@template(TRAIN, "shopping", "Put the {{product}} into my cart.", changes=True)
def add_to_cart(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add a product to the cart."""
    for one, other in neighbours(in_stock(world, split)):
        script = [*find(one), 'click [button "Add to cart"]', stop()]
        wrong = [*find(other), 'click [button "Add to cart"]', stop()]
        yield Draft(one.upc, {"product": one.title}, in_cart(one), script, [[stop()], wrong])


@template(TEST, "shopping", "Put two of the {{product}} into my cart.", changes=True)
def add_two(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add two pieces of a product to the cart."""
    for one in in_stock(world, split):
        quantity = equals(f"{SHOP}/basket/", "document.querySelector('[name=\"form-0-quantity\"]').value", "2")
        evaluation = state(in_cart(one)["program_html"][0], quantity)
        once = [*find(one), 'click [button "Add to cart"]']
        script = [*once, 'click [button "Add to cart"]', stop()]
        yield Draft(one.upc, {"product": one.title}, evaluation, script, [[stop()], [*once, stop()]])


def in_cart(product: Product) -> dict[str, Any]:
    """Return the check that the cart contains a product."""
    return state(shows(f"{SHOP}/basket/", "document.querySelector('#basket_formset').outerText", product.title))


@template(TRAIN, "shopping", 'Add the {{product}} to my wish list "Birthday ideas".', changes=True)
def add_wish(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add a product to the wish list."""
    for one in products(world, split):
        if one not in world.shop.wishes:
            evaluation = state(shows(f"{SHOP}/accounts/wishlists/birthday/", "", one.title))
            script = [
                *find(one),
                'click [link "Add to wish list"]',
                "click [link \"Add to 'Birthday ideas' wish list\"]",
                stop(),
            ]
            yield Draft(one.upc, {"product": one.title}, evaluation, script, [[stop()], [*find(one), stop()]])


@template(TEST, "shopping", "Order one {{product}}, to my default address.", changes=True)
def buy(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to place an order."""
    first = "100001"
    for one in in_stock(world, split):
        evaluation = state(shows(f"{SHOP}/accounts/orders/{first}/", "", one.title))
        cart = [*find(one), 'click [button "Add to cart"]']
        script = [
            *cart,
            f"goto [{SHOP}/basket/]",
            'click [link "Proceed to checkout"]',
            'click [button "Ship to your default shipping address"]',
            'click [link "Continue"]',
            'click [button "Place order"]',
            stop(),
        ]
        yield Draft(one.upc, {"product": one.title}, evaluation, script, [[stop()], [*cart, stop()]])


@template(
    TRAIN,
    "shopping",
    "Add a new address to my address book: {{name}}, {{line}}, {{city}}, {{postcode}}, United States.",
    changes=True,
)
def add_address(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add an address to the address book."""
    random = world.shop.random("addresses")
    for first, last in (
        ("Nils", "Ek"),
        ("Maja", "Strand"),
        ("Ingrid", "Dahl"),
        ("Jonas", "Bergman"),
        ("Siri", "Nyberg"),
    ):
        one = someone(random, first, last)
        fields = {
            "First name *": one.first,
            "Last name *": one.last,
            "First line of address *": one.line1,
            "City *": one.city,
            "Post/Zip-code *": one.postcode,
        }
        script = ['click [link "Account"]', 'click [link "Address Book"]', 'click [link "Add a new address"]']
        script += [f'type [textbox "{label}"] [{text}] [0]' for label, text in fields.items()]
        script += ['type [combobox "Country *"] [United States of America] [0]', 'click [button "Save"]', stop()]
        words = {"name": one.name, "line": one.line1, "city": one.city, "postcode": one.postcode}
        evaluation = state(shows(f"{SHOP}/accounts/addresses/", "", one.name, one.line1, one.postcode))
        yield Draft(one.name, words, evaluation, script, [[stop()], [*script[:-2], stop()]])
