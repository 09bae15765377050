"""Tasks of a member of the forum."""

from collections.abc import Iterator, Sequence

from env_adapters.webarena.sites.world import GeneratedWorld
from env_adapters.webarena.sites.world.forum import Topic
from env_adapters.webarena.sites_tasks.code import TEST_PROJECTS
from env_adapters.webarena.sites_tasks.templates import (
    TEST,
    TRAIN,
    Draft,
    all_of,
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

FORUM = "__REDDIT__"
TEST_CATEGORIES = ("Camping", "Tabletop Games", "Introductions")
POSTS = (
    ("Where do you buy spare parts?", "The lid of mine broke, and I would like to repair it."),
    ("Looking for a partner for weekends", "I have time on most Sundays. Who joins me?"),
    ("What did you do this autumn?", "Tell us what you tried, and what you would not do again."),
    ("A small victory", "It took three attempts, but now it works."),
    ("Advice for a first project", "I have two free evenings a week and little space."),
    ("Selling my collection", "I am moving and cannot take everything with me."),
    ("Which book should I read first?", "There are so many. Which one helped you?"),
    ("Best time of the year?", "Spring or autumn, what do you prefer and why?"),
)
ANSWERS = (
    "Thank you, that was the hint I needed.",
    "I tried this last week and it worked at once.",
    "Count me in.",
    "I can lend you mine if you live nearby.",
    "Please keep us posted.",
)


def categories(world: GeneratedWorld, split: str) -> Sequence[str]:
    """Return the categories of a split."""
    return [name for name in world.forum.categories if (name in TEST_CATEGORIES) == (split == TEST)]


def topics(world: GeneratedWorld, split: str, salt: str = "") -> Sequence[Topic]:
    """Return the topics of a split, shuffled."""
    chosen = [topic for topic in world.forum.topics if topic_side(world, topic) == split]
    return sorted(chosen, key=lambda topic: rank(salt + topic.title))


def topic_side(world: GeneratedWorld, topic: Topic) -> str:
    """Return the split of a topic, which is that of its product or project."""
    if topic.category == "Open Source":
        return TEST if topic.about[0] in TEST_PROJECTS else TRAIN
    products = {product.title: product for product in world.shop.products}
    return side(products[topic.about[0]].upc) if topic.about else side(topic.title)


def members(topic: Topic) -> Sequence[str]:
    """Return the wrong script whose answer lists all authors in a topic."""
    return all_of(comment.member for comment in topic.comments)


def open_category(name: str) -> list[str]:
    """Return the script that opens a category from the forum's first page."""
    return ['click [link "All Categories"]', f'click [link "{name}"]']


def open_topic(topic: Topic) -> list[str]:
    """Return the script that opens a topic from the forum's first page."""
    return [*open_category(topic.category), f'click [link "{topic.title}"]']


@template(TRAIN, "reddit", 'Who started the topic "{{topic}}"? Answer with the name only.')
def topic_author(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the author of a topic."""
    for one in topics(world, split):
        script = [*open_topic(one), stop(one.author)]
        wrong = [[stop(one.replies[0].member)], members(one)]
        yield Draft(f"{one.pk}", {"topic": one.title}, exactly(one.author), script, wrong)


@template(TRAIN, "reddit", 'How many replies does the topic "{{topic}}" have? Answer with the number only.')
def reply_count(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the number of replies."""
    for one in topics(world, split, "count"):
        count = len(one.replies)
        script = [*open_topic(one), stop(f"{count}")]
        yield Draft(f"{one.pk}", {"topic": one.title}, exactly(f"{count}"), script, [[stop(f"{count + 1}")]])


@template(TEST, "reddit", 'Who was the first to reply in the topic "{{topic}}"? Answer with the name only.')
def first_reply(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the author of the first reply."""
    for one in topics(world, split):
        member = one.replies[0].member
        script = [*open_topic(one), stop(member)]
        wrong = [[stop(one.author)], members(one)]
        yield Draft(f"{one.pk}", {"topic": one.title}, exactly(member), script, wrong)


@template(TRAIN, "reddit", 'Whose post has the most likes in the topic "{{topic}}"? Answer with the name only.')
def most_liked(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the author of the post with the most likes."""
    for one in topics(world, split, "liked"):
        ordered = sorted(one.comments, key=lambda comment: len(comment.likes), reverse=True)
        if len(ordered[0].likes) > len(ordered[1].likes):
            script = [*open_topic(one), stop(ordered[0].member)]
            wrong = [[stop(ordered[1].member)], members(one)]
            yield Draft(f"{one.pk}", {"topic": one.title}, exactly(ordered[0].member), script, wrong)


@template(TEST, "reddit", "Which topic in the category {{category}} was active last? Answer with its title only.")
def last_active(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the topic of a category with the latest post."""
    for name in categories(world, split):
        listed = [topic for topic in world.forum.topics if topic.category == name]
        listed.sort(key=lambda topic: topic.comments[-1].moment, reverse=True)
        script = [*open_category(name), stop(listed[0].title)]
        wrong = [[stop(listed[2].title)], all_of(topic.title for topic in listed)]
        yield Draft(name, {"category": name}, exactly(listed[0].title), script, wrong)


@template(TRAIN, "reddit", 'Open the topic "{{topic}}".')
def show_topic(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the page of a topic."""
    for one, other in neighbours(topics(world, split, "show")):
        where = page(FORUM + one.path)
        yield Draft(
            f"{one.pk}",
            {"topic": one.title},
            where,
            [*open_topic(one), stop()],
            [[stop()], [*open_topic(other), stop()]],
        )


@template(TEST, "reddit", "Show me the topics of the category {{category}}.")
def show_category(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to open the page of a category."""
    for name in categories(world, split):
        where = page(FORUM + world.forum.category_path(name))
        yield Draft(name, {"category": name}, where, [*open_category(name), stop()], [[stop()]])


@template(TRAIN, "reddit", "At what time does the {{topic}} begin? Answer with the time only.")
def meetup_time(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the time of a meetup."""
    meetups = [topic for topic in topics(world, split) if topic.category == "Meetups"]
    for one in meetups:
        script = [*open_topic(one), stop(one.facts["hour"])]
        wrong = [[stop("8:15")], all_of(other.facts["hour"] for other in meetups)]
        yield Draft(f"{one.pk}", {"topic": one.title}, exactly(one.facts["hour"]), script, wrong)


@template(
    TEST,
    "reddit",
    "Where does the {{topic}} take place, and on which day? Answer as in: town hall, Monday 1 May",
)
def meetup_place(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks that ask for the place of a meetup."""
    meetups = [topic for topic in topics(world, split) if topic.category == "Meetups"]
    for one in meetups:
        said = f"{one.facts['place']}, {one.facts['day']}"
        script = [*open_topic(one), stop(said)]
        every = all_of(other.facts[name] for other in meetups for name in ("place", "day"))
        wrong = [[stop(f"harbour, {one.facts['day']}")], every]
        yield Draft(f"{one.pk}", {"topic": one.title}, exactly(said), script, wrong)


@template(TRAIN, "reddit", 'Reply to the topic "{{topic}}" with: {{text}}', changes=True)
def reply(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to reply in a topic."""
    for place, one in enumerate(topics(world, split, "reply")):
        text = ANSWERS[place % len(ANSWERS)]
        opened = open_topic(one)
        script = [*opened, f'type [textbox "Write comment..."] [{text}] [0]', 'click [button "Publish"]', stop()]
        evaluation = state(shows(FORUM + one.path, "document.querySelector('.comments_list').outerText", text))
        yield Draft(f"{one.pk}", {"topic": one.title, "text": text}, evaluation, script, [[stop()], [*opened, stop()]])


@template(
    TEST, "reddit", 'Start a topic "{{title}}" in the category {{category}} with the text: {{text}}', changes=True
)
def new_topic(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to create a topic."""
    for place, (title, text) in enumerate(POSTS):
        names = categories(world, split)
        name, other = names[place % len(names)], names[(place + 1) % len(names)]
        evaluation = state(shows(FORUM + world.forum.category_path(name), "", title))
        words = {"title": title, "category": name, "text": text}
        yield Draft(f"{place}", words, evaluation, publish(name, title, text), [[stop()], publish(other, title, text)])


def publish(category: str, title: str, text: str) -> list[str]:
    """Return the script that creates a topic."""
    return [
        *open_category(category),
        'click [link "Create Topic"]',
        f'type [textbox "Title:"] [{title}] [0]',
        f'type [textbox "Comment:"] [{text}] [0]',
        'click [button "Publish"]',
        stop(),
    ]


@template(TRAIN, "reddit", 'Like the first post of the topic "{{topic}}".', changes=True)
def like(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to like the first post of a topic."""
    for one in topics(world, split, "like"):
        opened, count = open_topic(one), len(one.comments[0].likes)
        script = [*opened, f'click [link "like ({count})"]', stop()]
        locator = "document.querySelector('.comments_list__comment').outerText"
        evaluation = state(shows(FORUM + one.path, locator, f"({count + 1})"))
        yield Draft(f"{one.pk}", {"topic": one.title}, evaluation, script, [[stop()], [*opened, stop()]])


@template(TEST, "reddit", 'Send {{member}} a private message titled "{{title}}" that says: {{text}}', changes=True)
def private_message(world: GeneratedWorld, split: str) -> Iterator[Draft]:
    """Yield tasks to send a private message."""
    chosen = [name for name in world.forum.members[1:] if side(name) == split]
    for (title, text), (member, _) in zip(POSTS, neighbours(chosen), strict=False):
        script = [
            f"goto [{FORUM}/topic/private/publish/]",
            f'type [textbox "Title:"] [{title}] [0]',
            f'type [textbox "Invite users:"] [{member}] [0]',
            f'type [textbox "Comment:"] [{text}] [0]',
            'click [button "Publish"]',
            stop(),
        ]
        sent = Topic(len(world.forum.topics) + 1, title, "", ())
        evaluation = state(shows(FORUM + sent.path.replace("/topic/", "/topic/private/"), "", title, text, member))
        words = {"member": member, "title": title, "text": text}
        yield Draft(member, words, evaluation, script, [[stop()], [*script[:-2], stop()]])
