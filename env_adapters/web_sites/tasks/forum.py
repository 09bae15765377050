"""Tasks of a member of the forum."""

from collections.abc import Iterator, Sequence

from env_adapters.web_sites.tasks.code import TEST_PROJECTS
from env_adapters.web_sites.tasks.templates import (
    TEST,
    TRAIN,
    Evaluation,
    TaskDraft,
    added,
    expect_changes,
    neighbours,
    number,
    question_draft,
    rank,
    side,
    stop,
    template,
    text_part,
    time_of_day,
    visit,
)
from env_adapters.web_sites.world import GeneratedWorld
from env_adapters.web_sites.world.forum import OWN_NAME, Topic

FORUM = "__REDDIT__"
FRONT = f"goto [{FORUM}]"
PUBLISH = 'click [button "Publish"]'
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


def forum_categories(world: GeneratedWorld, split: str) -> Sequence[str]:
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
    return side(products[topic.about[0]].name) if topic.about else side(topic.title)


def open_forum_category(name: str) -> list[str]:
    """Return the script that opens a category from the forum's first page."""
    return ['click [link "All Categories"]', f'click [link "{name}"]']


def open_topic(topic: Topic) -> list[str]:
    """Return the script that opens a topic from the forum's first page."""
    return [*open_forum_category(topic.category), f'click [link "{topic.title}"]']


@template(TRAIN, "reddit", 'Who started the topic "{{topic}}"? Answer with the name only.')
def topic_author(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in topics(world, split):
        yield question_draft(f"{one.pk}", {"topic": one.title}, open_topic(one), text_part(one.author))


@template(
    TRAIN,
    "reddit",
    'How many replies, without its first post, does the topic "{{topic}}" have, and who wrote the last '
    "one? Answer as in: 12, name",
)
def reply_count(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    # The forum's lists of topics count the first post too.
    for one in topics(world, split, "count"):
        said = (number(len(one.replies)), text_part(one.replies[-1].member))
        yield question_draft(f"{one.pk}", {"topic": one.title}, open_topic(one), *said)


@template(TEST, "reddit", 'Who was the first to reply in the topic "{{topic}}"? Answer with the name only.')
def first_reply(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in topics(world, split):
        yield question_draft(f"{one.pk}", {"topic": one.title}, open_topic(one), text_part(one.replies[0].member))


@template(TRAIN, "reddit", 'Whose post has the most likes in the topic "{{topic}}"? Answer with the name only.')
def most_liked(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in topics(world, split, "liked"):
        ordered = sorted(one.comments, key=lambda comment: len(comment.likes), reverse=True)
        if len(ordered[0].likes) > len(ordered[1].likes):
            yield question_draft(f"{one.pk}", {"topic": one.title}, open_topic(one), text_part(ordered[0].member))


@template(TEST, "reddit", "Which topic in the category {{category}} was active last? Answer with its title only.")
def last_active(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for name in forum_categories(world, split):
        listed = [topic for topic in world.forum.topics if topic.category == name]
        latest = max(listed, key=lambda topic: topic.comments[-1].moment)
        yield question_draft(name, {"category": name}, open_forum_category(name), text_part(latest.title))


@template(TRAIN, "reddit", 'Open the topic "{{topic}}".')
def show_topic(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in topics(world, split, "show"):
        yield visit(f"{one.pk}", {"topic": one.title}, open_topic(one), FORUM + one.path)


@template(TEST, "reddit", "Show me the topics of the category {{category}}.")
def show_category(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for name in forum_categories(world, split):
        yield visit(name, {"category": name}, open_forum_category(name), FORUM + world.forum.category_path(name))


@template(TRAIN, "reddit", "At what time does the {{topic}} begin? Answer with the time only.")
def meetup_time(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in topics(world, split):
        if one.category == "Meetups":
            yield question_draft(f"{one.pk}", {"topic": one.title}, open_topic(one), time_of_day(one.facts["hour"]))


@template(
    TEST, "reddit", "Where does the {{topic}} take place, and on which day? Answer as in: town hall, Monday 1 May"
)
def meetup_place(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one in topics(world, split):
        if one.category == "Meetups":
            said = (text_part(one.facts["place"]), text_part(one.facts["day"]))
            yield question_draft(f"{one.pk}", {"topic": one.title}, open_topic(one), *said)


@template(TRAIN, "reddit", 'Reply to the topic "{{topic}}" with exactly this text: {{text}}', changes=True)
def reply(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for place, (one, other) in enumerate(neighbours(topics(world, split, "reply"))):
        said = ANSWERS[place % len(ANSWERS)]
        another = ANSWERS[(place + 1) % len(ANSWERS)]
        yield TaskDraft(
            f"{one.pk}",
            {"topic": one.title, "text": said},
            posted(one, said),
            [*open_topic(one), *write_reply(said), stop()],
            {
                "not published": [*open_topic(one), *write_reply(said)[:-1], stop()],
                "another text": [*open_topic(one), *write_reply(another), stop()],
                "a longer text": [*open_topic(one), *write_reply(f"{said} {another}"), stop()],
                "another topic": [*open_topic(other), *write_reply(said), stop()],
                "twice": [*open_topic(one), *write_reply(said), FRONT, *open_topic(one), *write_reply(another), stop()],
            },
            [*open_topic(one), *write_reply(another), FRONT, *open_topic(one), *write_reply(said), stop()],
        )


def write_reply(said: str) -> list[str]:
    """Return the script that replies in the topic on the page."""
    return [f'type [textbox "Write comment..."] [{said}] [0]', PUBLISH]


def posted(topic: Topic, said: str) -> Evaluation:
    """Return the evaluator of one new post in a topic."""
    return expect_changes(added("post", topic=topic.title, member=OWN_NAME, text=said, action=0, removed=0))


@template(
    TEST,
    "reddit",
    'Start a topic "{{title}}" in the category {{category}} with exactly this text: {{text}}',
    changes=True,
)
def new_topic(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    names = forum_categories(world, split)
    for place, ((title, said), (_, another)) in enumerate(neighbours(POSTS)):
        name, other = names[place % len(names)], names[(place + 1) % len(names)]
        script = publish(name, title, said)
        yield TaskDraft(
            f"{place}",
            {"title": title, "category": name, "text": said},
            expect_changes(added("topic", **new_values(name, title, said))),
            [*script, stop()],
            {
                "not published": [*script[:-1], stop()],
                "another text": [*publish(name, title, another), stop()],
                "another title": [*publish(name, f"{title} Now", said), stop()],
                "another category": [*publish(other, title, said), stop()],
                "and another topic": [*script, FRONT, *publish(name, f"{title} Now", another), stop()],
            },
            [*publish(other, title, said), FRONT, *script, stop()],
        )


def publish(category: str, title: str, said: str) -> list[str]:
    """Return the script that creates a topic."""
    opened = [*open_forum_category(category), 'click [link "Create Topic"]', f'type [textbox "Title:"] [{title}] [0]']
    return [*opened, f'type [textbox "Comment:"] [{said}] [0]', PUBLISH]


def new_values(category: str, title: str, said: str, participants: str = "") -> dict[str, object]:
    """Return the values of a new topic."""
    flags = dict.fromkeys(("closed", "removed", "is_pinned", "is_globally_pinned"), 0)
    names = {"category": category, "title": title, "member": OWN_NAME, "text": said, "participants": participants}
    return {**names, **flags}


@template(TRAIN, "reddit", 'Like the first post of the topic "{{topic}}" and no other post.', changes=True)
def like(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    for one, other in neighbours(topics(world, split, "like")):
        opened, (first, second) = open_topic(one), (like_post(one, place) for place in (0, 1))
        taken_back = f'click [link "remove like ({len(one.comments[1].likes) + 1})"]'
        yield TaskDraft(
            f"{one.pk}",
            {"topic": one.title},
            expect_changes(added("like", member=OWN_NAME, post=one.comments[0].pk)),
            [*opened, first, stop()],
            {
                "not liked": [*opened, stop()],
                "the second post": [*opened, second, stop()],
                "and the second post": [*opened, second, first, stop()],
                "another topic": [*open_topic(other), like_post(other, 0), stop()],
            },
            [*opened, second, taken_back, first, stop()],
        )


def like_post(topic: Topic, place: int) -> str:
    """Return the action that likes a post of the topic on the page; `place` is 0 for the first post, else 1."""
    counts = [len(comment.likes) for comment in topic.comments]
    number_of_equal = counts[: place + 1].count(counts[place])
    return f'click [link "like ({counts[place]})" #{number_of_equal}]'


@template(
    TEST,
    "reddit",
    'Send {{member}} and nobody else a private message titled "{{title}}" with exactly this text: {{text}}',
    changes=True,
)
def private_message(world: GeneratedWorld, split: str) -> Iterator[TaskDraft]:
    chosen = [name for name in world.forum.members[1:] if side(name) == split]
    for ((title, said), (_, another)), (member, other) in zip(neighbours(POSTS), neighbours(chosen), strict=False):
        script = send_message(member, title, said)
        participants = ", ".join(sorted((member, OWN_NAME)))
        yield TaskDraft(
            member,
            {"member": member, "title": title, "text": said},
            expect_changes(added("message", **new_values("Private", title, said, participants))),
            [*script, stop()],
            {
                "not sent": [*script[:-1], stop()],
                "another text": [*send_message(member, title, another), stop()],
                "another title": [*send_message(member, f"{title} Now", said), stop()],
                "another member": [*send_message(other, title, said), stop()],
                "two members": [*send_message(f"{member}, {other}", title, said), stop()],
                "and another message": [*script, *send_message(other, f"{title} Now", another), stop()],
            },
            [*send_message(other, title, said), *script, stop()],
        )


def send_message(members: str, title: str, said: str) -> list[str]:
    """Return the script that sends a private message to members, separated by commas."""
    return [
        f"goto [{FORUM}/topic/private/publish/]",
        f'type [textbox "Title:"] [{title}] [0]',
        f'type [textbox "Invite users:"] [{members}] [0]',
        f'type [textbox "Comment:"] [{said}] [0]',
        PUBLISH,
    ]
