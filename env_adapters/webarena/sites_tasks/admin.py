"""Tasks of the shop's administrator."""

from collections.abc import Iterator, Sequence

from env_adapters.webarena.sites.world import GeneratedWorld
from env_adapters.webarena.sites.world.shop import Order, Product, Review
from env_adapters.webarena.sites_tasks.templates import (
    TEST,
    TRAIN,
    Draft,
    Evaluation,
    all_of,
    answer,
    exactly,
    neighbours,
    page,
    rank,
    shows,
    side,
    state,
    stop,
    template,
)

ADMIN, SHOP = "__SHOPPING_ADMIN__", "__SHOPPING__"
ORDERS = ['click [button "Fulfilment"]', 'click [link "Orders"]']
PRODUCTS = ['click [button "Catalog"]', 'click [link "Products"]']
CUSTOMERS = ['click [button "Customers"]', 'click [link "Customers"]']
REVIEWS = ['click [button "Content"]', 'click [link "Reviews"]']


def orders(world: GeneratedWorld, split: str) -> Sequence[Order]:
    """Return the orders of a split without the shopper's, shuffled."""
    chosen = [one for one in world.shop.orders if one.customer is not world.shop.shopper and side(one.number) == split]
    return sorted(chosen, key=lambda order: rank(order.number))


def products(world: GeneratedWorld, split: str) -> Sequence[Product]:
    """Return the products of a split, in another order than for customers."""
    chosen = [product for product in world.shop.products if side(product.upc) == split]
    return sorted(chosen, key=lambda product: rank(f"admin {product.upc}"))


def pending(world: GeneratedWorld, split: str) -> Sequence[Review]:
    """Return the reviews of a split that wait for a moderator, without ambiguous ones."""
    names = [(one.customer, one.title) for one in world.shop.reviews]
    waiting = [one for one in world.shop.reviews if one.pending and side(one.product.upc) == split]
    return [one for one in waiting if names.count((one.customer, one.title)) == 1]


def open_order(order: Order) -> list[str]:
    """Return the script that opens an order from the dashboard."""
    return [*ORDERS, f'type [textbox "Order number:"] [{order.number}] [1]']


def open_review(review: Review) -> list[str]:
    """Return the script that opens a review from the dashboard."""
    name = review.customer.name
    return [*REVIEWS, f'type [textbox "Customer name:"] [{name}] [1]', f'click [link "{review.title}"]']


@template(TRAIN, "shopping_admin", "Which customer placed order {{order}}? Answer with the full name only.")
def order_customer(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the customer of an order."""
    for one, other in neighbours(orders(world, split)):
        if one.customer is not other.customer:
            script = [*open_order(one), stop(one.customer.name)]
            wrong = [[stop(other.customer.name)], all_of(customer.name for customer in world.shop.customers)]
            yield Draft(one.number, {"order": one.number}, exactly(one.customer.name), script, wrong)


@template(TEST, "shopping_admin", "What is the email address of the customer who placed order {{order}}?")
def order_email(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the e-mail address of the customer of an order."""
    for one, other in neighbours(orders(world, split)):
        if one.customer is not other.customer:
            script = [*open_order(one), stop(one.customer.email)]
            yield Draft(
                one.number, {"order": one.number}, answer(one.customer.email), script, [[stop(other.customer.email)]]
            )


@template(TRAIN, "shopping_admin", "What is the total of order {{order}}?")
def any_order_total(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the total of an order."""
    for one, other in neighbours(orders(world, split)[::-1]):
        yield Draft(
            one.number,
            {"order": one.number},
            answer(one.total),
            [*open_order(one), stop(one.total)],
            [[stop(other.total)]],
        )


@template(TRAIN, "shopping_admin", "Which product has the UPC {{upc}}? Answer with its title only.")
def product_by_upc(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the product with a UPC."""
    for one, other in neighbours(products(world, split)):
        script = [*PRODUCTS, f'type [textbox "UPC:"] [{one.upc}] [1]', stop(one.title)]
        wrong = [[stop(other.title)], all_of([one.title, other.title])]
        yield Draft(one.upc, {"upc": one.upc}, exactly(one.title), script, wrong)


@template(TEST, "shopping_admin", "What is the UPC of the {{product}}?")
def upc_of(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the UPC of a product."""
    for one, other in neighbours(products(world, split)):
        script = [*PRODUCTS, f'type [textbox "Product title:"] [{one.title}] [1]', stop(one.upc)]
        yield Draft(one.upc, {"product": one.title}, answer(one.upc), script, [[stop(other.upc)]])


@template(TRAIN, "shopping_admin", "How many orders has the customer {{name}} placed? Answer with the number only.")
def orders_of(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the number of orders of a customer."""
    for one in world.shop.customers[1:]:
        if side(one.email) == split:
            count = sum(order.customer is one for order in world.shop.orders)
            script = [*CUSTOMERS, f'type [textbox "Email:"] [{one.email}] [1]', stop(f"{count}")]
            yield Draft(one.email, {"name": one.name}, exactly(f"{count}"), script, [[stop(f"{count + 1}")]])


@template(TEST, "shopping_admin", "How many stars did {{name}} give to the {{product}}? Answer with the number only.")
def stars(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for a customer's rating of a product."""
    chosen = [one for one in world.shop.reviews if not one.pending and side(one.product.upc) == split]
    for one in sorted(chosen, key=lambda review: rank(f"stars {review.pk}")):
        words = {"name": one.customer.name, "product": one.product.title}
        script = [*REVIEWS, f'type [textbox "Customer name:"] [{one.customer.name}] [1]', stop(f"{one.stars}")]
        yield Draft(f"{one.pk}", words, exactly(f"{one.stars}"), script, [[stop(f"{one.stars % 5 + 1}")]])


@template(TEST, "shopping_admin", "Open the details of order {{order}}.")
def show_order(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the page of an order."""
    for one in orders(world, split)[6:]:
        where = page(f"{ADMIN}/orders/{one.number}/")
        yield Draft(one.number, {"order": one.number}, where, [*open_order(one), stop()], [[stop()]])


@template(TRAIN, "shopping_admin", "Open the page on which the {{product}} can be edited.")
def show_product(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the page of a product in the dashboard."""
    for one in products(world, split)[10:]:
        script = [*PRODUCTS, f'type [textbox "UPC:"] [{one.upc}] [1]', f'click [link "{one.title}"]', stop()]
        where = page(f"{ADMIN}/catalogue/products/{one.pk}/")
        yield Draft(one.upc, {"product": one.title}, where, script, [[stop()], [*script[:-2], stop()]])


@template(TRAIN, "shopping_admin", "Change the status of order {{order}} to {{status}}.", changes=True)
def advance_order(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to set the next status of an order."""
    following = {"Pending": "Processing", "Processing": "Shipped", "Shipped": "Delivered"}
    for one in orders(world, split):
        if one.status in following:
            yield status_change(one, following[one.status])


@template(TEST, "shopping_admin", "Cancel order {{order}}.", changes=True)
def cancel_order(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to cancel an order."""
    for one in orders(world, split):
        if one.status in ("Pending", "Processing"):
            yield status_change(one, "Cancelled")


def status_change(order: Order, status: str) -> Draft:
    """Return the draft of a task that sets the status of an order."""
    opened = open_order(order)
    first = {"Pending": "Processing", "Processing": "Shipped", "Shipped": "Delivered"}[order.status]
    chosen = [] if first == status else [f'click [combobox "{first}"]', f'click [option "{status}"]']
    change = f"{order.status}\t{status}"  # a row of the table of changes
    evaluation = state(shows(f"{ADMIN}/orders/{order.number}/", "document.body.outerText", change))
    script = [*opened, *chosen, 'click [button "Change status"]', stop()]
    return Draft(
        order.number, {"order": order.number, "status": status}, evaluation, script, [[stop()], [*opened, stop()]]
    )


@template(TRAIN, "shopping_admin", 'Approve the review "{{title}}" that {{name}} wrote.', changes=True)
def approve_review(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to approve a review, so that it is shown among those of its product."""
    for one in pending(world, split):
        seen = shows(f"{SHOP}{one.product.path}reviews/", "", one.customer.name)
        yield moderation(one, "Approved", state(seen))


@template(TEST, "shopping_admin", 'Reject the review "{{title}}" that {{name}} wrote.', changes=True)
def reject_review(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to reject a review, so that it is in the list of rejected ones."""
    for one in pending(world, split):
        seen = shows(f"{ADMIN}/reviews/?status=2", "document.querySelector('table').outerText", one.product.title)
        yield moderation(one, "Rejected", state(seen))


def moderation(review: Review, status: str, evaluation: Evaluation) -> Draft:
    """Return the draft of a task that sets the status of a review."""
    opened = open_review(review)
    choice = ['click [combobox "Requires moderation"]', f'click [option "{status}"]']
    script = [*opened, *choice, 'click [button "Save"]', stop()]
    words = {"title": review.title, "name": review.customer.name}
    return Draft(f"{review.pk}", words, evaluation, script, [[stop()], [*opened, stop()]])
