"""The forum's members, categories, topics and comments, made from a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from random import Random

from env_adapters.web_sites.world.code import CodeWorld
from env_adapters.web_sites.world.forum_words import (
    DESCRIPTIONS,
    DOUBTS,
    HELLO,
    HOBBIES,
    MEETUP,
    MENTION,
    NAME_ENDS,
    NAME_STARTS,
    PLACES,
    PRAISE,
    QUESTIONS,
    RELEASE,
    REPLIES,
)
from env_adapters.web_sites.world.people import CITIES
from env_adapters.web_sites.world.shop import ShopWorld
from env_adapters.web_sites.world.shop_words import DEPARTMENTS

MEMBERS = 48
SLUG = 50
"""Letters of a title that Spirit keeps in an address."""
OWN_NAME = "paperlantern"
"""The member that tasks are done as."""
PER_HOBBY = 17
OTHERS = 16
"""Topics of each category that is no hobby."""
FIRST_CATEGORY = 3
"""Spirit makes two categories of its own: private topics and uncategorized ones."""
LAST_MOMENT = datetime(2025, 12, 15, 20)
DAY = "{day}"
"""Place in a text for the day of a meeting."""


@dataclass(frozen=True, slots=True)
class Comment:
    """Comment of a member.

    pk: its key in the database.
    likes: members who like it.
    """

    pk: int
    member: str
    text: str
    moment: datetime
    likes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; its title is unique. The first comment is its text.

    Attributes:
        pk: its key in the database.
        about: what it names: titles of products, of tickets, of projects.
    """

    pk: int
    title: str
    category: str
    comments: Sequence[Comment]
    about: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def author(self) -> str:
        return self.comments[0].member

    @property
    def replies(self) -> Sequence[Comment]:
        """The comments after the first."""
        return self.comments[1:]

    @property
    def path(self) -> str:
        """Its address below the forum's."""
        kept = "".join(letter if letter.isalnum() or letter in " -" else "" for letter in self.title.lower())
        return f"/topic/{self.pk}/{'-'.join(kept.split())[:SLUG].strip('-')}/"


@dataclass(frozen=True, slots=True)
class TopicDraft:
    """A topic before anybody has answered.

    Attributes:
        meets: weekday of a meeting (0 is Monday), and the least number of days from its announcement to the meeting;
            None for a topic that announces no meeting.
    """

    category: str
    title: str
    text: str
    about: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    meets: tuple[int, int] | None = None

    def announced(self, start: datetime) -> "TopicDraft":
        """Return the draft with the day of its meeting, which is after `start`."""
        if self.meets is None:
            return self
        weekday, days = self.meets
        day = start + timedelta(days=days)
        day += timedelta(days=(weekday - day.weekday()) % 7)
        said = f"{day:%A} {day.day} {day:%B}"
        return replace(self, text=self.text.replace(DAY, said), facts={"day": said, **self.facts})


class ForumWorld:
    """Everything in the forum. The same seed gives the same forum."""

    def __init__(self, seed: int, shop: ShopWorld, code: CodeWorld) -> None:
        self.seed, self.shop, self.code = seed, shop, code

    def random(self, part: str) -> Random:
        """The generator of one part, which no other part disturbs."""
        return Random(f"{self.seed}:forum:{part}")

    @cached_property
    def members(self) -> Sequence[str]:
        """Names of all members, the own one first."""
        names = [start + end for start in NAME_STARTS for end in NAME_ENDS if start + end != OWN_NAME]
        return [OWN_NAME, *self.random("members").sample(names, MEMBERS - 1)]

    def location(self, name: str) -> str:
        """Return the town in a member's profile."""
        return self.random(name).choice(CITIES)

    @property
    def categories(self) -> Sequence[str]:
        """Names of the categories, in the order of their keys."""
        return list(DESCRIPTIONS)

    def category_path(self, name: str) -> str:
        """Address of a category below the forum's."""
        pk = FIRST_CATEGORY + self.categories.index(name)
        return f"/category/{pk}/{'-'.join(name.lower().split())}/"

    @cached_property
    def topics(self) -> Sequence[Topic]:
        """All topics, the oldest first."""
        random = self.random("topics")
        drafts = [*self.hobby_drafts(), *self.other_drafts()]
        random.shuffle(drafts)
        starts = sorted(LAST_MOMENT - timedelta(minutes=random.randrange(20_000, 480_000)) for _ in drafts)
        found: list[Topic] = []
        keys = iter(range(1, 1_000_000))
        for pk, (draft, start) in enumerate(zip(drafts, starts, strict=True), start=1):
            draft = draft.announced(start)
            comments = list(self.conversation(random, draft, start, keys))
            found.append(Topic(pk, draft.title, draft.category, comments, draft.about, draft.facts))
        return found

    def conversation(
        self, random: Random, draft: TopicDraft, start: datetime, keys: Iterator[int]
    ) -> Iterator[Comment]:
        """The first comment of a topic and the answers, nobody answering twice."""
        count = random.choices(range(1, 10), (1, 3, 4, 5, 4, 3, 2, 2, 1))[0]
        texts = [draft.text, *random.sample(REPLIES, count)]
        moment = start
        for member, text in zip(random.sample(self.members[1:], len(texts)), texts, strict=True):
            fans = [name for name in self.members[1:] if name != member]
            likes = random.sample(fans, random.choices((0, 1, 2, 3, 5, 8), (8, 4, 3, 2, 1, 1))[0])
            yield Comment(next(keys), member, text, moment, likes)
            moment += timedelta(minutes=random.randrange(7, 1900))

    def hobby_drafts(self) -> Iterator[TopicDraft]:
        """Topics about the things that the shop sells."""
        for hobby, department in HOBBIES.items():
            random = self.random(hobby)
            shelves = DEPARTMENTS[department]
            names = {shelf.name for shelf in shelves}
            products = random.sample([item for item in self.shop.products if item.category in names], 6)
            for place, product in enumerate(products):
                title, text = (PRAISE, DOUBTS)[place % 2]
                yield TopicDraft(
                    hobby, title.format(product=product.title), text.format(product=product.title), (product.title,)
                )
            things = [thing.lower() for shelf in shelves for thing in shelf.things]
            pairs = [(question, thing) for question in QUESTIONS for thing in things]
            for (title, text), thing in random.sample(pairs, PER_HOBBY - len(products)):
                yield TopicDraft(hobby, title.format(thing=thing), text.format(thing=thing))

    def other_drafts(self) -> Iterator[TopicDraft]:
        """Introductions, meetups, and topics about the repositories of the code host."""
        random = self.random("others")
        for city in CITIES:
            first, second = random.sample(list(HOBBIES), 2)
            words = {"city": city, "first": first.lower(), "second": second.lower()}
            yield TopicDraft("Introductions", HELLO[0].format(**words), HELLO[1].format(**words))
        pairs = [(hobby, city) for hobby in HOBBIES for city in CITIES]
        for hobby, city in random.sample(pairs, OTHERS):
            meets = random.choice((5, 6, 4)), random.randint(2, 28)
            facts = {"hour": f"{random.randint(9, 20)}:{random.choice(('00', '30'))}"}
            facts |= {"place": random.choice(PLACES), "count": str(random.randint(3, 25))}
            words = {"hobby": hobby, "city": city, "day": DAY, **facts}
            yield TopicDraft("Meetups", MEETUP[0].format(**words), MEETUP[1].format(**words), (), facts, meets)
        for project in self.code.projects:
            version = project.tags[-1].name
            words = {"project": project.name, "version": version}
            yield TopicDraft("Open Source", RELEASE[0].format(**words), RELEASE[1].format(**words), (project.name,))
            for ticket in random.sample(project.tickets, 2):
                words = {"project": project.name, "title": ticket.title}
                yield TopicDraft(
                    "Open Source", MENTION[0].format(**words), MENTION[1].format(**words), (project.name, ticket.title)
                )
