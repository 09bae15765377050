"""Tasks of the shop's administrator."""

from collections.abc import Iterator, Sequence
from urllib.parse import quote_plus

from env_adapters.web_sites.tasks.templates import (
    TEST,
    TRAIN,
    Script,
    TaskDraft,
    changed,
    expect_changes,
    money,
    neighbours,
    number,
    question_draft,
    rank,
    side,
    stop,
    template,
    text_part,
    visit,
)
from env_adapters.web_sites.world import GeneratedWorld
from env_adapters.web_sites.world.shop import Order, Product, ProductReview

ADMIN = "__SHOPPING_ADMIN__"
FILTERS = ("upc", "title", "page", "sort")
"""Parameters of the list of products that the links to a product keep."""
NEXT_STATUS = {"Pending": "Processing", "Processing": "Shipped", "Shipped": "Delivered"}
ORDERS = ['click [button "Fulfilment"]', 'click [link "Orders"]']
PRODUCTS = ['click [button "Catalog"]', 'click [link "Products"]']
CUSTOMERS = ['click [button "Customers"]', 'click [link "Customers"]']
SAVE_STATUS = 'click [button "Change status"]'
REVIEWS = ['click [button "Content"]', 'click [link "Reviews"]']


def customer_orders(world: GeneratedWorld, split: str) -> Sequence[Order]:
    """Return the orders of a split without the shopper's, shuffled."""
    chosen = [one for one in world.shop.orders if one.customer is not world.shop.shopper and side(one.number) == split]
    return sorted(chosen, key=lambda order: rank(order.number))


def shuffled_products(world: GeneratedWorld, split: str) -> Sequence[Product]:
    """Return the products of a split, in another order than for customers."""
    chosen = [product for product in world.shop.products if side(product.name) == split]
    return sorted(chosen, key=lambda product: rank(f"admin {product.name}"))


def pending(world: GeneratedWorld, split: str) -> Sequence[ProductReview]:
    """Return the reviews of a split that wait for a moderator, without ambiguous ones."""
    names = [(one.customer, one.title) for one in world.shop.reviews]
    waiting = [one for one in world.shop.reviews if one.pending and side(one.product.name) == split]
    return [one for one in waiting if names.count((one.customer, one.title)) == 1]


def open_order_in_dashboard(order: Order) -> list[str]:
    """Return the script that opens an order from the dashboard."""
    return [*ORDERS, f'type [textbox "Order number:"] [{order.number}] [1]']


def open_review(review: ProductReview) -> list[str]:
    """Return the script that opens a review from the dashboard."""
    name = review.customer.name
    return [*REVIEWS, f'type [textbox "Customer name:"] [{name}] [1]', f'click [link "{review.title}"]']


@template(TRAIN, "shopping_admin", "Which customer placed order {{order}}? Answer with the full name only.")
def order_customer(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in customer_orders(world, split):
        yield question_draft(
            one.number, {"order": one.number}, open_order_in_dashboard(one), text_part(one.customer.name)
        )


@template(
    TEST,
    "shopping_admin",
    "What is the email address of the customer who placed order {{order}}? Answer with the address only.",
)
def order_email(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in customer_orders(world, split):
        yield question_draft(
            one.number, {"order": one.number}, open_order_in_dashboard(one), text_part(one.customer.email)
        )


@template(TRAIN, "shopping_admin", "What is the total of order {{order}}? Answer with the amount only.")
def any_order_total(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in customer_orders(world, split)[::-1]:
        yield question_draft(one.number, {"order": one.number}, open_order_in_dashboard(one), money(one.total))


@template(TRAIN, "shopping_admin", "Which product has the UPC {{upc}}? Answer with its title only.")
def product_by_upc(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in shuffled_products(world, split):
        steps = [*PRODUCTS, f'type [textbox "UPC:"] [{one.upc}] [1]']
        yield question_draft(one.name, {"upc": one.upc}, steps, text_part(one.title))


@template(TEST, "shopping_admin", "What is the UPC of the {{product}}? Answer with the UPC only.")
def upc_of(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in shuffled_products(world, split):
        steps = [*PRODUCTS, f'type [textbox "Product title:"] [{one.title}] [1]']
        yield question_draft(one.name, {"product": one.title}, steps, text_part(one.upc))


@template(TRAIN, "shopping_admin", "How many orders has the customer {{name}} placed? Answer with the number only.")
def orders_of(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in world.shop.customers[1:]:
        if side(one.email) == split:
            steps = [*CUSTOMERS, f'type [textbox "Email:"] [{one.email}] [1]']
            count = sum(order.customer is one for order in world.shop.orders)
            yield question_draft(one.email, {"name": one.name}, steps, number(count))


@template(
    TEST,
    "shopping_admin",
    "How many stars did {{name}} give to the {{product}}, and what is the title of the review? Answer as "
    "in: 3, Loud and slow",
)
def stars(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    chosen = [one for one in world.shop.reviews if not one.pending and side(one.product.name) == split]
    for one in sorted(chosen, key=lambda review: rank(f"stars {review.pk}")):
        words = {"name": one.customer.name, "product": one.product.title}
        steps = [*REVIEWS, f'type [textbox "Customer name:"] [{one.customer.name}] [1]']
        yield question_draft(f"{one.pk}", words, steps, number(one.stars), text_part(one.title))


@template(TEST, "shopping_admin", "Open the details of the latest order that contains the {{product}}.")
def show_order(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    # Yield tasks to open the page of an order, whose number is in its address and so not in the question.
    for product in shuffled_products(world, split):
        containing = [one for one in world.shop.orders if any(line[0] is product for line in one.lines)]
        *_, before, one = [None, None, *sorted(containing, key=lambda order: order.day)]
        if before and one and before.day < one.day and one in customer_orders(world, split):
            search = f"goto [{ADMIN}/orders/?product_title={quote_plus(product.title)}]"  # its form opens in a dialog
            steps = [search, f'click [link "{one.number}"]']
            yield visit(one.number, {"product": product.title}, steps, f"{ADMIN}/orders/{one.number}/")


@template(TRAIN, "shopping_admin", "Open the page on which the {{product}} can be edited.")
def show_product(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in shuffled_products(world, split)[10:]:
        steps = [*PRODUCTS, f'type [textbox "UPC:"] [{one.upc}] [1]', f'click [link "{one.title}"]']
        yield visit(one.name, {"product": one.title}, steps, f"{ADMIN}/catalogue/products/{one.pk}/", ignored=FILTERS)


@template(TRAIN, "shopping_admin", "Change the status of order {{order}} to {{status}}.", changes=True)
def advance_order(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    listed = [one for one in customer_orders(world, split) if one.status in NEXT_STATUS]
    for one, other in neighbours(listed):
        yield status_change(one, NEXT_STATUS[one.status], other)


@template(TEST, "shopping_admin", "Cancel order {{order}}.", changes=True)
def cancel_order(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    listed = [one for one in customer_orders(world, split) if one.status in ("Pending", "Processing")]
    for one, other in neighbours(listed):
        yield status_change(one, "Cancelled", other)


def set_status(order: Order, status: str) -> list[str]:
    """Return the script that opens an order and sets its status."""
    chosen = [] if status == NEXT_STATUS[order.status] else choose_option(NEXT_STATUS[order.status], status)
    return [*open_order_in_dashboard(order), *chosen, SAVE_STATUS]


def choose_option(current: str, other: str) -> list[str]:
    """Return the script that chooses another option in a closed list."""
    return [f'click [combobox "{current}"]', f'click [option "{other}"]']


def status_change(order: Order, status: str, other: Order) -> TaskDraft:
    """Return the draft of a task that sets the status of an order; `other` is another order that can be changed."""
    script = set_status(order, status)
    further = {
        "Processing": [SAVE_STATUS],
        "Shipped": [SAVE_STATUS],
        "Delivered": set_status(other, NEXT_STATUS[other.status]),
    }
    wrong: dict[str, Script] = {
        "not saved": [*script[:-1], stop()],
        "another order": [*set_status(other, NEXT_STATUS[other.status]), stop()],
        "and another order": [*set_status(other, NEXT_STATUS[other.status]), *script, stop()],
    }
    if status == "Cancelled":
        wrong["another status"] = [*open_order_in_dashboard(order), SAVE_STATUS, stop()]
    else:
        wrong["beyond the status"] = [*script, *further[status], stop()]
    return TaskDraft(
        order.number,
        {"order": order.number, "status": status},
        expect_changes(changed("order", order.pk, status=status)),
        [*script, stop()],
        wrong,
        [*open_order_in_dashboard(other), f"goto [{ADMIN}]", *script, stop()],
    )


@template(TRAIN, "shopping_admin", 'Approve the review "{{title}}" that {{name}} wrote.', changes=True)
def approve_review(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one, other in neighbours(pending(world, split)):
        yield moderation(one, "Approved", "Rejected", other)


@template(TEST, "shopping_admin", 'Reject the review "{{title}}" that {{name}} wrote.', changes=True)
def reject_review(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one, other in neighbours(pending(world, split)):
        yield moderation(one, "Rejected", "Approved", other)


def moderation(review: ProductReview, status: str, opposite: str, other: ProductReview) -> TaskDraft:
    """Return the draft of a task that sets the status of a review."""

    def judge(one: ProductReview, verdict: str) -> list[str]:
        return [*open_review(one), *choose_option("Requires moderation", verdict), 'click [button "Save"]']

    script = judge(review, status)
    again = [*open_review(review), *choose_option(opposite, status), 'click [button "Save"]', stop()]
    return TaskDraft(
        f"{review.pk}",
        {"title": review.title, "name": review.customer.name},
        expect_changes(changed("review", review.pk, status=status)),
        [*script, stop()],
        {
            "not saved": [*script[:-1], stop()],
            "the opposite": [*judge(review, opposite), stop()],
            "another review": [*judge(other, status), stop()],
            "and another review": [*script, *judge(other, status), stop()],
            "and another title": [*script[:-1], 'type [textbox "Title:"] [Fine] [0]', 'click [button "Save"]', stop()],
        },
        [*judge(review, opposite), *again],
    )
