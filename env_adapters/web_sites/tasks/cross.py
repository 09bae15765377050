"""Tasks that need several sites."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from env_adapters.web_sites.tasks import admin, cart, code, forum, shopping, tickets
from env_adapters.web_sites.tasks.templates import (
    TEST,
    TRAIN,
    TaskDraft,
    money,
    neighbours,
    number,
    question_draft,
    rank,
    stop,
    template,
    text_part,
)
from env_adapters.web_sites.world import GeneratedWorld
from env_adapters.web_sites.world.code import Project, Ticket
from env_adapters.web_sites.world.forum import Topic
from env_adapters.web_sites.world.shop import Product

FORUM, SHOP, HOST = "__REDDIT__", "__SHOPPING__", "__GITLAB__"


def praised(world: GeneratedWorld, split: str, salt: str = "") -> Sequence[tuple[Topic, Product]]:
    """Return the topics of a split about a product whose author has no other such topic in the category."""
    by_title = {product.title: product for product in world.shop.products}
    found = [
        (topic, by_title[topic.about[0]]) for topic in world.forum.topics if topic.about and topic.about[0] in by_title
    ]
    places = Counter((topic.author, topic.category) for topic, _ in found)
    kept = [pair for pair in found if places[pair[0].author, pair[0].category] == 1]
    chosen = [pair for pair in kept if forum.topic_side(world, pair[0]) == split]
    return sorted(chosen, key=lambda pair: rank(salt + pair[0].title))


def mentioned(world: GeneratedWorld, split: str, salt: str = "") -> Sequence[tuple[Topic, Project, Ticket]]:
    """Return the topics of a split about a ticket, with the ticket and its project."""
    tickets = {
        (project.name, ticket.title): (project, ticket) for project in world.code.projects for ticket in project.tickets
    }
    found = [(topic, *tickets[topic.about]) for topic in world.forum.topics if topic.about in tickets]
    chosen = [entry for entry in found if forum.topic_side(world, entry[0]) == split]
    return sorted(chosen, key=lambda entry: rank(salt + entry[0].title))


def topic_words(topic: Topic) -> dict[str, str]:
    """Return the values of an intent about a topic, without the name of the product."""
    return {"member": topic.author, "category": topic.category}


def with_reply(topic: Topic) -> dict[str, str]:
    """Return the values of an intent about a topic whose title names its subject, which an intent must not."""
    return {**topic_words(topic), "other": topic.replies[0].member}


def to_shop(product: Product) -> list[str]:
    """Return the script that opens a product in the shop."""
    return [f"goto [{SHOP}]", *shopping.find(product)]


def to_topic(topic: Topic) -> list[str]:
    """Return the script that opens a topic of the forum."""
    return [f"goto [{FORUM}]", *forum.open_topic(topic)]


@template(
    TRAIN,
    "shopping reddit",
    "What does the product cost in the shop that {{member}} started a topic about in the forum's category"
    " {{category}}? Answer with the price only.",
)
def price_of_praised(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for topic, product in praised(world, split):
        steps = [*to_topic(topic), *to_shop(product)]
        yield question_draft(f"{topic.pk}", topic_words(topic), steps, money(product.price))


@template(
    TEST,
    "shopping reddit",
    "How many units are in stock of the product that {{member}} started a topic about in the forum's "
    "category {{category}}? Answer with the number only.",
)
def stock_of_praised(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for topic, product in praised(world, split):
        if product.stock:
            steps = [*to_topic(topic), *to_shop(product)]
            yield question_draft(f"{topic.pk}", topic_words(topic), steps, number(product.stock))


@template(
    TRAIN,
    "shopping reddit",
    "Put one unit of the product that {{member}} started a topic about in the forum's category "
    "{{category}}, and nothing else, into my cart.",
    changes=True,
)
def buy_praised(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    listed = [pair for pair in praised(world, split, "buy") if pair[1].stock]
    for (topic, product), (_, other) in neighbours(listed):
        steps = [*to_topic(topic), f"goto [{SHOP}]"]
        yield cart.cart_draft(world, f"{topic.pk}", topic_words(topic), steps, (product, other))


@template(
    TEST,
    "shopping reddit",
    'Reply to the forum topic "{{topic}}" with the price that the shop asks for the product and nothing '
    "else, as in: $12.50",
    changes=True,
)
def post_price(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    prices = ", ".join(sorted({product.price for product in world.shop.products}))
    for (topic, product), (elsewhere, other) in neighbours(praised(world, split, "post")):
        opened, reopened = [*to_shop(product), *to_topic(topic)], to_topic(topic)
        yield TaskDraft(
            f"{topic.pk}",
            {"topic": topic.title},
            forum.posted(topic, product.price),
            [*opened, *forum.write_reply(product.price), stop()],
            {
                "not published": [*opened, *forum.write_reply(product.price)[:-1], stop()],
                "another price": [*opened, *forum.write_reply(other.price), stop()],
                "all prices": [*opened, *forum.write_reply(prices), stop()],
                "two prices": [*opened, *forum.write_reply(f"{other.price} {product.price}"), stop()],
                "another topic": [*to_topic(elsewhere), *forum.write_reply(product.price), stop()],
                "a price afterwards": [
                    *opened,
                    *forum.write_reply(product.price),
                    *reopened,
                    *forum.write_reply(other.price),
                    stop(),
                ],
            },
            [*opened, *forum.write_reply(other.price), *reopened, *forum.write_reply(product.price), stop()],
        )


@template(
    TRAIN,
    "gitlab reddit",
    "What are the status and the priority of the ticket that {{member}} started a topic about in the "
    "forum's category {{category}}, in which {{other}} replied first, and who reported it? Answer as in: "
    "Paused, Urgent, login",
)
def status_of_mentioned(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for topic, project, ticket in mentioned(world, split):
        said = (text_part(ticket.status), text_part(ticket.priority), text_part(ticket.reporter))
        yield question_draft(f"{topic.pk}", with_reply(topic), to_ticket(topic, project, ticket), *said)


@template(
    TEST,
    "gitlab reddit",
    "Who reported the ticket that {{member}} started a topic about in the forum's category {{category}}, "
    "in which {{other}} replied first? Answer with the login only.",
)
def reporter_of_mentioned(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for topic, project, ticket in mentioned(world, split):
        steps = to_ticket(topic, project, ticket)
        yield question_draft(f"{topic.pk}", with_reply(topic), steps, text_part(ticket.reporter))


def to_ticket(topic: Topic, project: Project, ticket: Ticket) -> list[str]:
    """Return the script that opens a topic of the forum, then the ticket that it is about."""
    return [*to_topic(topic), f"goto [{HOST}]", *code.open_ticket(project, ticket)]


@template(
    TRAIN,
    "gitlab reddit",
    "Comment on the ticket that {{member}} started a topic about in the forum's category {{category}}, in"
    " which {{other}} replied first, with exactly this text: {{text}}",
    changes=True,
)
def comment_on_mentioned(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    said = "There is a topic about this on the forum."
    for (topic, project, ticket), (_, elsewhere, other) in neighbours(mentioned(world, split, "comment")):
        draft = tickets.comment_draft((project, ticket), (elsewhere, other), said, "See the forum.")
        oracle = [*to_topic(topic), f"goto [{HOST}]", *draft.oracle]
        words = {**with_reply(topic), "text": said}
        yield replace(draft, entity=f"{topic.pk}", words=words, oracle=oracle)


@template(
    TRAIN,
    "shopping_admin shopping",
    "Put one unit of the product with the UPC {{upc}} and nothing else into the customer's cart in the shop.",
    changes=True,
)
def buy_by_upc(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one, other in neighbours(shopping.in_stock(world, split)[10:]):
        steps = [*admin.PRODUCTS, f'type [textbox "UPC:"] [{one.upc}] [1]']
        yield cart.cart_draft(world, one.name, {"upc": one.upc}, [*steps, f"goto [{SHOP}]"], (one, other))


@template(
    TEST,
    "shopping_admin shopping",
    "What is the UPC of the most expensive product in the shop's category {{category}}? Answer with the UPC only.",
)
def upc_of_dearest(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for category in shopping.categories(world, split):
        dearest = shopping.of_category(world, category)[-1]
        steps = [
            f"goto [{SHOP}]",
            f'click [link "{category.name}"]',
            'type [combobox "Sort by"] [Price high to low] [0]',
            f'click [link "{dearest.title}"]',
            f"goto [{admin.ADMIN}]",
            *admin.PRODUCTS,
            f'type [textbox "Product title:"] [{dearest.title}] [1]',
        ]
        yield question_draft(category.name, {"category": category.name}, steps, text_part(dearest.upc))
