"""Tasks of a customer of the shop."""

from collections.abc import Iterator, Sequence

from env_adapters.webarena.sites.world import GeneratedWorld
from env_adapters.webarena.sites.world.shop import Category, Order, Product, Review
from env_adapters.webarena.sites_tasks.templates import (
    TEST,
    TRAIN,
    Draft,
    all_of,
    answer,
    exactly,
    neighbours,
    page,
    rank,
    side,
    stop,
    template,
)

SHOP = "__SHOPPING__"
NAME_ONLY = "Answer with the name only."
NUMBER_ONLY = "Answer with the number only."
SEARCHED = (
    "kettle",
    "helmet",
    "lantern",
    "journal",
    "puzzle",
    "saucepan",
    "trowel",
    "pannier",
    "ruler",
    "blanket",
    "teapot",
)


def products(world: GeneratedWorld, split: str) -> Sequence[Product]:
    """Return the products of a split, shuffled."""
    chosen = [product for product in world.shop.products if side(product.upc) == split]
    return sorted(chosen, key=lambda product: rank(product.upc))


def in_stock(world: GeneratedWorld, split: str) -> Sequence[Product]:
    """Return the products that are in stock."""
    return [product for product in products(world, split) if product.stock]


def categories(world: GeneratedWorld, split: str) -> Sequence[Category]:
    """Return the categories of a split that contain products."""
    return [one for one in world.shop.categories if one.department and side(one.name) == split]


def orders(world: GeneratedWorld, split: str) -> Sequence[Order]:
    """Return the shopper's orders of a split, shuffled."""
    own = [one for one in world.shop.orders if one.customer is world.shop.shopper and side(one.number) == split]
    return sorted(own, key=lambda order: rank(order.number))


def find(product: Product) -> list[str]:
    """Return the script that opens a product from any page of the shop."""
    return [f'type [textbox "Search"] [{product.title}] [1]', f'click [link "{product.title}"]']


def open_order(order: Order) -> list[str]:
    """Return the script that opens one of the shopper's orders."""
    return [
        'click [link "Account"]',
        'click [link "Order History"]',
        f'type [textbox "Order number"] [{order.number}] [1]',
    ]


def category_path(world: GeneratedWorld, category: Category) -> str:
    """Return the URL of a category."""
    above = next(one for one in world.shop.categories if one.name == category.department)
    slugs = ["-".join(name.lower().split()) for name in (above.name, category.name)]
    return f"/catalogue/category/{slugs[0]}/{slugs[1]}_{category.pk}/"


def of_category(world: GeneratedWorld, category: Category) -> list[Product]:
    """Return the products of a category, the cheapest first."""
    return sorted(
        (one for one in world.shop.products if one.category == category.name), key=lambda product: product.cents
    )


@template(TRAIN, "shopping", "What is the price of the {{product}}?")
def price(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the price of a product."""
    for one, other in neighbours(products(world, split)):
        yield Draft(
            one.upc, {"product": one.title}, answer(one.price), [*find(one), stop(one.price)], [[stop(other.price)]]
        )


@template(TRAIN, "shopping", f"How many units of the {{{{product}}}} are in stock? {NUMBER_ONLY}")
def stock(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the stock of a product."""
    for one in in_stock(world, split):
        found = str(one.stock)
        yield Draft(
            one.upc, {"product": one.title}, exactly(found), [*find(one), stop(found)], [[stop(f"{one.stock + 1}")]]
        )


@template(TRAIN, "shopping", f"How many reviews does the {{{{product}}}} have? {NUMBER_ONLY}")
def review_count(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the number of reviews of a product."""
    for one in products(world, split):
        count = len(world.shop.reviews_of(one))
        yield Draft(
            one.upc,
            {"product": one.title},
            exactly(f"{count}"),
            [*find(one), stop(f"{count}")],
            [[stop(f"{count + 2}")]],
        )


@template(TEST, "shopping", f'Who wrote the review "{{{{title}}}}" of the {{{{product}}}}? {NAME_ONLY}')
def reviewer(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the author of a review."""
    for one in products(world, split):
        listed = [*world.shop.reviews_of(one), *world.shop.reviews[:2]]
        for review in world.shop.reviews_of(one)[:1]:
            yield Draft(
                one.upc,
                {"title": review.title, "product": one.title},
                exactly(review.customer.name),
                [*find(one), stop(review.customer.name)],
                [[stop(other_reviewer(world, review))], all_of(found.customer.name for found in listed)],
            )


def other_reviewer(world: GeneratedWorld, review: Review) -> str:
    """Return a customer who is not the author."""
    return next(one.customer.name for one in world.shop.reviews if one.customer is not review.customer)


@template(TEST, "shopping", "What is the weight of the {{product}} in grams?")
def weight(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the weight of a product."""
    for one, other in neighbours(products(world, split)):
        if one.grams != other.grams:
            script = [*find(one), stop(f"{one.grams} g")]
            yield Draft(one.upc, {"product": one.title}, answer(f"{one.grams}"), script, [[stop(f"{other.grams} g")]])


@template(
    TRAIN,
    "shopping",
    "What colour is the {{product}}, and how many years of warranty does it have? Answer as in: Pink, 7 years",
)
def colour_and_warranty(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for two facts about a product."""
    for one in products(world, split):
        said = f"{one.colour}, {one.warranty} years"
        wrong = f"{one.colour}, {one.warranty + 1} years"
        every = all_of(word for other in world.shop.products for word in (other.colour, f"{other.warranty} years"))
        yield Draft(one.upc, {"product": one.title}, exactly(said), [*find(one), stop(said)], [[stop(wrong)], every])


@template(TRAIN, "shopping", f"Which product in the category {{{{category}}}} is the cheapest? {NAME_ONLY}")
def cheapest(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the cheapest product of a category."""
    yield from by_price(world, split, 0, "Price low to high")


@template(TEST, "shopping", f"Which product in the category {{{{category}}}} costs the most? {NAME_ONLY}")
def dearest(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the most expensive product of a category."""
    yield from by_price(world, split, -1, "Price high to low")


def by_price(world: GeneratedWorld, split: str, place: int, order: str) -> Iterator[Draft]:
    """Yield tasks about the product at one end of a category."""
    for category in categories(world, split):
        listed = of_category(world, category)
        script = [
            f'click [link "{category.name}"]',
            f'type [combobox "Sort by"] [{order}] [0]',
            stop(listed[place].title),
        ]
        words = {"category": category.name}
        wrong = [[stop(listed[len(listed) // 2].title)], all_of(one.title for one in listed)]
        yield Draft(category.name, words, exactly(listed[place].title), script, wrong)


@template(TRAIN, "shopping", "Show me all products of the category {{category}}.")
def open_category(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the page of a category."""
    for one in categories(world, split):
        script = [f'click [link "{one.name}"]', stop()]
        yield Draft(one.name, {"category": one.name}, page(SHOP + category_path(world, one)), script, [[stop()]])


@template(TEST, "shopping", "Open the page of the {{product}}.")
def open_product(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the page of a product."""
    for one, other in neighbours(products(world, split)):
        yield Draft(
            one.upc,
            {"product": one.title},
            page(SHOP + one.path),
            [*find(one), stop()],
            [[stop()], [*find(other), stop()]],
        )


@template(TRAIN, "shopping", 'Search the shop for "{{words}}".')
def search(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the results of a search."""
    for words in SEARCHED:
        script = [f'type [textbox "Search"] [{words}] [1]', stop()]
        yield Draft(words, {"words": words}, page(f"{SHOP}/search/?q={words}"), script, [[stop()]])


@template(TRAIN, "shopping", "What is the total of my order {{order}}?")
def order_total(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the total of an order."""
    for one, other in neighbours(orders(world, split)):
        yield Draft(
            one.number,
            {"order": one.number},
            answer(one.total),
            [*open_order(one), stop(one.total)],
            [[stop(other.total)]],
        )


@template(TEST, "shopping", "What is the status of my order {{order}}? Answer with the status only.")
def order_status(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the status of an order."""
    for one in orders(world, split):
        wrong = "Delivered" if one.status != "Delivered" else "Pending"
        every = all_of(order.status for order in world.shop.orders)
        script = [*open_order(one), stop(one.status)]
        yield Draft(one.number, {"order": one.number}, exactly(one.status), script, [[stop(wrong)], every])


@template(TRAIN, "shopping", f"What is the number of my order with the {{{{product}}}}? {NUMBER_ONLY}")
def order_with(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the order with a product, among those of one page."""
    own = [one for one in world.shop.orders if one.customer is world.shop.shopper]
    for order in own[-20:]:
        for product, _ in order.lines[:1]:
            bought = [one for one in own if any(line[0] is product for line in one.lines)]
            if side(product.upc) == split and side(order.number) == split and len(bought) == 1:
                script = [*open_order(order), stop(order.number)]
                wrong = [stop(next(one.number for one in own if one is not order))]
                every = all_of(one.number for one in own)
                yield Draft(order.number, {"product": product.title}, exactly(order.number), script, [wrong, every])
