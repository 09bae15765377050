"""Tasks that need several sites."""

from collections.abc import Iterator, Sequence

from env_adapters.webarena.sites.world import GeneratedWorld
from env_adapters.webarena.sites.world.code import Project, Ticket
from env_adapters.webarena.sites.world.forum import Topic
from env_adapters.webarena.sites.world.shop import Product
from env_adapters.webarena.sites_tasks import cart, code, forum, shopping
from env_adapters.webarena.sites_tasks.templates import (
    TEST,
    TRAIN,
    Draft,
    all_of,
    answer,
    exactly,
    rank,
    shows,
    state,
    stop,
    template,
)

FORUM, SHOP, HOST = "__REDDIT__", "__SHOPPING__", "__GITLAB__"


def praised(world: GeneratedWorld, split: str, salt: str = "") -> Sequence[tuple[Topic, Product]]:
    """Return the topics of a split about a product whose author has no other such topic in the category."""
    by_title = {product.title: product for product in world.shop.products}
    found = [
        (topic, by_title[topic.about[0]]) for topic in world.forum.topics if topic.about and topic.about[0] in by_title
    ]
    kept = [pair for pair in found if sum(same_place(pair[0], topic) for topic, _ in found) == 1]
    chosen = [pair for pair in kept if forum.topic_side(world, pair[0]) == split]
    return sorted(chosen, key=lambda pair: rank(salt + pair[0].title))


def same_place(one: Topic, other: Topic) -> bool:
    """Return True if two topics have the same author and category."""
    return (one.author, one.category) == (other.author, other.category)


def mentioned(world: GeneratedWorld, split: str, salt: str = "") -> Sequence[tuple[Topic, Project, Ticket]]:
    """Return the topics of a split about a ticket, with the ticket and its project."""
    tickets = {
        (project.name, ticket.title): (project, ticket) for project in world.code.projects for ticket in project.tickets
    }
    found = [(topic, *tickets[topic.about]) for topic in world.forum.topics if topic.about in tickets]
    chosen = [entry for entry in found if forum.topic_side(world, entry[0]) == split]
    return sorted(chosen, key=lambda entry: rank(salt + entry[0].title))


def words_of(topic: Topic) -> dict[str, str]:
    """Return the values of an intent about a topic, without the name of the product."""
    return {"member": topic.author, "category": topic.category}


def to_shop(product: Product) -> list[str]:
    """Return the script that opens a product in the shop."""
    return [f"goto [{SHOP}]", *shopping.find(product)]


def to_topic(topic: Topic) -> list[str]:
    """Return the script that opens a topic of the forum."""
    return [f"goto [{FORUM}]", *forum.open_topic(topic)]


@template(
    TRAIN,
    "shopping reddit",
    "What does the product cost in the shop that {{member}} started a topic about in the forum's category "
    "{{category}}?",
)
def price_of_praised(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the price of a product from a topic of the forum."""
    for topic, product in praised(world, split):
        script = [*to_topic(topic), *to_shop(product), stop(product.price)]
        yield Draft(f"{topic.pk}", words_of(topic), answer(product.price), script, [[stop("$1.00")]])


@template(
    TEST,
    "shopping reddit",
    "How many units are in stock of the product that {{member}} started a topic about in the forum's category "
    "{{category}}? Answer with the number only.",
)
def stock_of_praised(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the stock of a product from a topic of the forum."""
    for topic, product in praised(world, split):
        if product.stock:
            script = [*to_topic(topic), *to_shop(product), stop(f"{product.stock}")]
            yield Draft(f"{topic.pk}", words_of(topic), exactly(f"{product.stock}"), script, [[stop("1")]])


@template(
    TRAIN,
    "shopping reddit",
    "Put the product that {{member}} started a topic about in the forum's category {{category}} into my cart.",
    changes=True,
)
def buy_praised(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add a product from a topic of the forum to the cart."""
    for topic, product in praised(world, split, "buy"):
        if product.stock:
            looked = [*to_topic(topic), *to_shop(product)]
            script = [*looked, 'click [button "Add to cart"]', stop()]
            yield Draft(f"{topic.pk}", words_of(topic), cart.in_cart(product), script, [[stop()], [*looked, stop()]])


@template(
    TEST,
    "shopping reddit",
    'Reply to the forum topic "{{topic}}" with the price that the shop asks for the product.',
    changes=True,
)
def post_price(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to post the price of a product in the forum."""
    for topic, product in praised(world, split, "post"):
        locator = "document.querySelector('.comments_list').outerText"
        evaluation = state(shows(FORUM + topic.path, locator, product.price))
        opened = [*to_shop(product), *to_topic(topic)]
        script = [
            *opened,
            f'type [textbox "Write comment..."] [It costs {product.price}.] [0]',
            'click [button "Publish"]',
        ]
        yield Draft(f"{topic.pk}", {"topic": topic.title}, evaluation, [*script, stop()], [[stop()], [*opened, stop()]])


@template(
    TRAIN,
    "gitlab reddit",
    'What is the status of the ticket that the forum topic "{{topic}}" is about? Answer with the status only.',
)
def status_of_mentioned(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the status of a ticket from a topic of the forum."""
    for topic, project, ticket in mentioned(world, split):
        script = [*to_topic(topic), f"goto [{HOST}]", *code.open_ticket(project, ticket), stop(ticket.status)]
        wrong = "Open" if ticket.status != "Open" else "Closed"
        every = all_of(other.status for other in project.tickets)
        yield Draft(f"{topic.pk}", {"topic": topic.title}, exactly(ticket.status), script, [[stop(wrong)], every])


@template(
    TEST,
    "gitlab reddit",
    'Who reported the ticket that the forum topic "{{topic}}" is about? Answer with the login only.',
)
def reporter_of_mentioned(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the reporter of a ticket from a topic of the forum."""
    for topic, project, ticket in mentioned(world, split):
        script = [*to_topic(topic), f"goto [{HOST}]", *code.open_ticket(project, ticket), stop(ticket.reporter)]
        other = next(login for login in project.team if login not in (ticket.reporter, ticket.assignee))
        wrong = [[stop(other)], all_of(project.team)]
        yield Draft(f"{topic.pk}", {"topic": topic.title}, exactly(ticket.reporter), script, wrong)


@template(
    TRAIN,
    "gitlab reddit",
    'Comment "{{text}}" on the ticket that the forum topic "{{topic}}" is about.',
    changes=True,
)
def comment_on_mentioned(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add a remark to a ticket from a topic of the forum."""
    text = "There is a topic about this on the forum."
    for topic, project, ticket in mentioned(world, split, "comment"):
        edited = code.edit(project, ticket, [f'type [textbox "Comment:"] [{text}] [0]'], {"comments": text}, {})
        script = [*to_topic(topic), f"goto [{HOST}]", *edited.oracle]
        words = {"topic": topic.title, "text": text}
        yield Draft(f"{topic.pk}", words, edited.evaluation, script, [[stop()], [*script[:-2], stop()]])


@template(
    TRAIN,
    "shopping_admin shopping",
    "Put the product with the UPC {{upc}} into the customer's cart in the shop.",
    changes=True,
)
def buy_by_upc(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to add a product to the cart whose UPC only the dashboard shows."""
    for product in shopping.in_stock(world, split)[10:]:
        looked = ['click [button "Catalog"]', 'click [link "Products"]', f'type [textbox "UPC:"] [{product.upc}] [1]']
        looked += to_shop(product)
        script = [*looked, 'click [button "Add to cart"]', stop()]
        yield Draft(product.upc, {"upc": product.upc}, cart.in_cart(product), script, [[stop()], [*looked, stop()]])


@template(
    TEST,
    "shopping_admin shopping",
    "What is the UPC of the most expensive product in the shop's category {{category}}?",
)
def upc_of_dearest(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the UPC of the most expensive product of a category."""
    for category in shopping.categories(world, split):
        listed = shopping.of_category(world, category)
        script = [
            f"goto [{SHOP}]",
            f'click [link "{category.name}"]',
            'type [combobox "Sort by"] [Price high to low] [0]',
            f'click [link "{listed[-1].title}"]',
            stop(listed[-1].upc),
        ]
        yield Draft(category.name, {"category": category.name}, answer(listed[-1].upc), script, [[stop(listed[0].upc)]])
