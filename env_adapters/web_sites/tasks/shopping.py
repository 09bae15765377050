"""Tasks of a customer of the shop."""

from collections.abc import Iterator, Sequence

from env_adapters.web_sites.tasks.templates import (
    TEST,
    TRAIN,
    TaskDraft,
    grams,
    money,
    number,
    question_draft,
    rank,
    side,
    template,
    text_part,
    visit,
)
from env_adapters.web_sites.world import GeneratedWorld
from env_adapters.web_sites.world.shop import Category, Order, Product

SHOP = "__SHOPPING__"
SORTING = ("sort_by",)
"""Parameters of a list that change its order only."""
SEARCHED = (
    "kettle", "helmet", "journal", "puzzle", "tent", "torch", "casserole", "trowel", "pannier", "ruler", "blanket",
    "bag", "knife", "rope",
)  # fmt: skip


def products(world: GeneratedWorld, split: str) -> Sequence[Product]:
    """Return the products of a split, shuffled."""
    chosen = [product for product in world.shop.products if side(product.name) == split]
    return sorted(chosen, key=lambda product: rank(product.name))


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


@template(TRAIN, "shopping", "What is the price of the {{product}}? Answer with the price only.")
def price(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in products(world, split):
        yield question_draft(one.name, {"product": one.title}, find(one), money(one.price))


@template(TRAIN, "shopping", "How many units of the {{product}} are in stock? Answer with the number only.")
def stock(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in in_stock(world, split):
        yield question_draft(one.name, {"product": one.title}, find(one), number(one.stock))


@template(
    TRAIN, "shopping", "How many reviews does the {{product}} have, and what is its price? Answer as in: 3, $12.50"
)
def review_count(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in products(world, split):
        count = number(len(world.shop.reviews_of(one)))
        yield question_draft(one.name, {"product": one.title}, find(one), count, money(one.price))


@template(TEST, "shopping", 'Who wrote the review "{{title}}" of the {{product}}? Answer with the name only.')
def reviewer(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in products(world, split):
        for review in world.shop.reviews_of(one)[:1]:
            words = {"title": review.title, "product": one.title}
            yield question_draft(one.name, words, find(one), text_part(review.customer.name))


@template(TEST, "shopping", "What is the weight of the {{product}} in grams? Answer with the number only.")
def weight(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in products(world, split):
        yield question_draft(one.name, {"product": one.title}, find(one), grams(one.grams))


@template(
    TRAIN,
    "shopping",
    "What colour is the {{product}}, and how many years of warranty does it have? Answer as in: Pink, 7 years",
)
def colour_and_warranty(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in products(world, split):
        said = (text_part(one.colour), text_part(f"{one.warranty} years"))
        yield question_draft(one.name, {"product": one.title}, find(one), *said)


@template(TRAIN, "shopping", "Which product in the category {{category}} is the cheapest? Answer with the name only.")
def cheapest(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    yield from by_price(world, split, 0, "Price low to high")


@template(TEST, "shopping", "Which product in the category {{category}} costs the most? Answer with the name only.")
def dearest(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    yield from by_price(world, split, -1, "Price high to low")


def by_price(world: GeneratedWorld, split: str, place: int, order: str) -> Iterator[TaskDraft]:
    """Yield tasks about the product at one end of a category."""
    for category in categories(world, split):
        steps = [f'click [link "{category.name}"]', f'type [combobox "Sort by"] [{order}] [0]']
        found = of_category(world, category)[place].title
        yield question_draft(category.name, {"category": category.name}, steps, text_part(found))


@template(TRAIN, "shopping", "Show me all products of the category {{category}}.")
def open_category(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in categories(world, split):
        where = SHOP + category_path(world, one)
        yield visit(one.name, {"category": one.name}, [f'click [link "{one.name}"]'], where, ignored=SORTING)


@template(TEST, "shopping", "Open the page of the {{product}}.")
def open_product(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in products(world, split):
        yield visit(one.name, {"product": one.title}, find(one), SHOP + one.path)


@template(TRAIN, "shopping", 'Search the shop for "{{words}}" and open the page of the cheapest product found.')
def search(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    # Yield tasks to open a result of a search; the address of the results could be formed without reading a page.
    for words in SEARCHED:
        listed = [one for one in world.shop.products if words in one.title.lower().split()]
        one = min(listed, key=lambda product: product.cents)
        if side(one.name) == split:
            steps = [f'type [textbox "Search"] [{words}] [1]', 'type [combobox "Sort by"] [Price low to high] [0]']
            yield visit(words, {"words": words}, [*steps, f'click [link "{one.title}"]'], SHOP + one.path)


@template(TRAIN, "shopping", "What is the total of my order {{order}}? Answer with the amount only.")
def order_total(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in orders(world, split):
        yield question_draft(one.number, {"order": one.number}, open_order(one), money(one.total))


@template(TEST, "shopping", "What are the status and the total of my order {{order}}? Answer as in: Refunded, $12.50")
def order_status(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in orders(world, split):
        yield question_draft(
            one.number, {"order": one.number}, open_order(one), text_part(one.status), money(one.total)
        )


@template(TRAIN, "shopping", "What is the number of my order with the {{product}}? Answer with the number only.")
def order_with(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    own = [one for one in world.shop.orders if one.customer is world.shop.shopper]
    for order in own[-20:]:
        for product, _ in order.lines[:1]:
            bought = [one for one in own if any(line[0] is product for line in one.lines)]
            if side(product.name) == split and side(order.number) == split and len(bought) == 1:
                yield question_draft(order.number, {"product": product.title}, open_order(order), number(order.number))
