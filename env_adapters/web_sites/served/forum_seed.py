"""Fill the forum's database with the generated data: `python -m env_adapters.web_sites.served.forum_seed SEED`."""

import os
import sys
from datetime import UTC, datetime
from html import escape
from random import Random

os.environ["DJANGO_SETTINGS_MODULE"] = "env_adapters.web_sites.served.forum_settings"

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402 - the modules below need what was set up
from django.db import transaction  # noqa: E402
from djconfig.models import Config  # noqa: E402
from spirit.category.models import Category  # noqa: E402
from spirit.comment.like.models import CommentLike  # noqa: E402
from spirit.comment.models import Comment  # noqa: E402
from spirit.topic.models import Topic  # noqa: E402
from spirit.user.models import UserProfile  # noqa: E402

from env_adapters.web_sites.served.django_seed import PASSWORD, index, log_in, prepare_database  # noqa: E402
from env_adapters.web_sites.world import world  # noqa: E402
from env_adapters.web_sites.world.forum import FIRST_CATEGORY, OWN_NAME, ForumWorld  # noqa: E402
from env_adapters.web_sites.world.forum_words import DESCRIPTIONS  # noqa: E402

JOINED = datetime(2024, 6, 1, 12, tzinfo=UTC)
SEEN = datetime(2025, 12, 16, 9, tzinfo=UTC)
CONFIG = {"site_name": "Commons", "topics_per_page": "40"}
BACKEND = "spirit.user.auth.backends.UsernameAuthBackend"


def main(seed: int) -> None:
    """Fill the forum with the data of a seed."""
    prepare_database()
    forum = world(seed).forum
    with transaction.atomic():
        for key, value in CONFIG.items():
            Config.objects.update_or_create(key=key, defaults={"value": value})
        users = add_members(forum)
        for pk, (name, text) in enumerate(DESCRIPTIONS.items(), start=FIRST_CATEGORY):
            Category.objects.create(pk=pk, title=name, description=text, sort=pk)
        add_topics(forum, users)
        log_in(users[OWN_NAME], "forum", OWN_NAME, BACKEND)
    index()


def add_members(forum: ForumWorld) -> dict[str, User]:
    """Add the members, and a moderator without posts."""
    users: dict[str, User] = {}
    for name in (*forum.members, "moderator"):
        user = User(username=name, email=f"{name}@example.com")
        user.set_password(PASSWORD)
        user.date_joined = JOINED
        user.save()
        users[name] = user
        profile = UserProfile.objects.filter(user=user)
        profile.update(
            is_verified=True, is_moderator=name == "moderator", last_seen=SEEN, location=forum.location(name)
        )
    return users


def add_topics(forum: ForumWorld, users: dict[str, User]) -> None:
    """Add the topics with their comments and likes."""
    categories = {category.title: category for category in Category.objects.all()}
    random = Random(forum.seed)
    likes: list[CommentLike] = []
    for topic in forum.topics:
        first, last = topic.comments[0], topic.comments[-1]
        made = Topic.objects.create(
            pk=topic.pk,
            user=users[topic.author],
            category=categories[topic.category],
            title=topic.title,
            date=first.moment.replace(tzinfo=UTC),
            last_active=last.moment.replace(tzinfo=UTC),
            view_count=len(topic.comments) * random.randint(3, 40),
            comment_count=len(topic.comments),
        )
        for comment in topic.comments:
            Comment.objects.create(
                pk=comment.pk,
                user=users[comment.member],
                topic=made,
                comment=comment.text,
                comment_html=f"<p>{escape(comment.text)}</p>",
                date=comment.moment.replace(tzinfo=UTC),
                likes_count=len(comment.likes),
            )
            likes += [CommentLike(user=users[name], comment_id=comment.pk) for name in comment.likes]
    CommentLike.objects.bulk_create(likes)
    for name, user in users.items():
        topics = sum(topic.author == name for topic in forum.topics)
        comments = sum(comment.member == name for topic in forum.topics for comment in topic.comments)
        UserProfile.objects.filter(user=user).update(topic_count=topics, comment_count=comments)


if __name__ == "__main__":
    main(int(sys.argv[1]))
