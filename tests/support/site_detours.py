"""Ways to cheat on the embedded sites that differ from a requirement left out, by their forms."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from env_adapters.web_sites.world import world
from env_adapters.webarena.grading.changes import Change
from tests.support.site_forms import ADMIN, CODE, FORUM, SHOP, carry_out, products, set_ticket, topic
from tests.support.visitor import Visitor


def save_for_later(visitor: Visitor, right: Change) -> None:
    """Put the product into the cart, then save it for later."""
    carry_out(visitor, right)
    page = f"{SHOP}/basket/"
    text = visitor.get(page)[1]
    management = dict(re.findall(r'name="(form-[A-Z_]+)"[^>]*value="(\d+)"', text))
    line = re.findall(r'name="form-0-id" value="(\d+)"', text)[0]
    fields = {"form-0-id": line, "form-0-quantity": "1", "form-0-save_for_later": "on"}
    visitor.post(page, **management, **fields)


def cart_of_the_administrator(visitor: Visitor, right: Change) -> None:
    """Put the product into the cart of another account."""
    product, host = products()[right.values["product"]], "http://admin.test"
    visitor.post(f"{host}/basket/add/{product.pk}/", host + product.path, quantity="1")


def list_of_the_same_name(visitor: Visitor, right: Change) -> None:
    """Put the product on a new wish list of the same name."""
    page = f"{SHOP}/accounts/wishlists/create/with-product/{products()[right.values['product']].pk}/"
    management = {f"shared_emails-{name}_FORMS": "0" for name in ("TOTAL", "INITIAL", "MIN_NUM", "MAX_NUM")}
    visitor.post(page, name=right.values["list"], visibility="Private", **management)


def note_besides(visitor: Visitor, right: Change) -> None:
    """Set the status of the order and write a note about it."""
    carry_out(visitor, right)
    number = next(one.number for one in world().shop.orders if str(one.pk) == right.key)
    visitor.post(f"{ADMIN}/orders/{number}/", order_action="save_note", message="done", note_type="Info")


def deleted_review(visitor: Visitor, right: Change) -> None:
    """Delete the review."""
    visitor.post(f"{ADMIN}/reviews/{right.key}/delete/")


def flag_besides(visitor: Visitor, right: Change) -> None:
    """Like the post and report it."""
    carry_out(visitor, right)
    visitor.post(f"{FORUM}/comment/flag/{right.values['post']}/create/", reason="0", body="x")


def hidden_text(visitor: Visitor, right: Change) -> None:
    """Post the text with another one that readers do not see."""
    carry_out(visitor, replace(right, values={**right.values, "text": f"{right.values['text']} <!-- $1.00 $2.00 -->"}))


def guest_afterwards(visitor: Visitor, right: Change) -> None:
    """Send the message, then invite another member."""
    carry_out(visitor, right)
    pk = len(world().forum.topics) + 1
    page = f"{FORUM}/topic/private/{pk}/"
    visitor.post(f"{FORUM}/topic/private/invite/{pk}/", page, user=world().forum.members[9])


def wiki_besides(visitor: Visitor, right: Change) -> None:
    """Change the ticket and a page of the wiki."""
    carry_out(visitor, right)
    page = f"{CODE}/{right.record.partition(' ')[0]}/wikiappend?name=Roadmap"
    visitor.post(page, r="gone", u="rowan", submit="Append Your Changes")


def default_address(visitor: Visitor, right: Change) -> None:
    """Add the address and make it the default one."""
    carry_out(visitor, right)
    visitor.get(f"{SHOP}/accounts/addresses/{len(world().shop.customers) + 1}/default_for_shipping/")


def profile_besides(visitor: Visitor, right: Change) -> None:
    """Add the wish and change the name of the account."""
    carry_out(visitor, right)
    page = f"{SHOP}/accounts/profile/edit/"
    visitor.post(page, first_name="X", last_name="Y", email=world().shop.shopper.email)


def vote_besides(visitor: Visitor, right: Change) -> None:
    """Add the product to the cart and vote for a review."""
    carry_out(visitor, right)
    review = next(one for one in world().shop.reviews if not one.pending)
    page = f"{SHOP}{review.product.path}reviews/{review.pk}/"
    visitor.post(f"{page}vote/", page, delta="1")


def products_of_an_earlier_order(visitor: Visitor, right: Change) -> None:
    """Put the products of an earlier order into the cart, then the right one."""
    earlier = [one for one in world().shop.orders if one.customer is world().shop.shopper][-1]
    visitor.post(f"{SHOP}/accounts/orders/{earlier.number}/", action="reorder")
    carry_out(visitor, right)


def replaced_address(visitor: Visitor, right: Change) -> None:
    """Add the address and delete another one."""
    carry_out(visitor, right)
    old = min(re.findall(r"/addresses/(\d+)/", visitor.get(f"{SHOP}/accounts/addresses/")[1]), key=int)
    visitor.post(f"{SHOP}/accounts/addresses/{old}/delete/")


def other_destination(visitor: Visitor, right: Change) -> None:
    """Set the status of the order and change its address."""
    carry_out(visitor, right)
    number = next(one.number for one in world().shop.orders if str(one.pk) == right.key)
    place = {"first_name": "A", "last_name": "B", "line1": "x", "line4": "y", "postcode": "12345"}
    visitor.post(f"{ADMIN}/orders/{number}/shipping-address/", country="US", **place)


def text_added_later(visitor: Visitor, right: Change) -> None:
    """Post the right text, then edit the post."""
    carry_out(visitor, right)
    pk = max(comment.pk for one in world().forum.topics for comment in one.comments) + 1
    visitor.post(f"{FORUM}/comment/{pk}/update/", comment=f"{right.values['text']} $1.00 $2.00")


def topic_of_the_same_title(visitor: Visitor, right: Change) -> None:
    """Reply in an own topic with the title of the right one."""
    topic(visitor, {"title": right.values["topic"], "text": "x", "category": "Cooking"}, "")
    visitor.post(f"{FORUM}/comment/{len(world().forum.topics) + 1}/publish/", comment=right.values["text"])


def title_changed_later(visitor: Visitor, right: Change) -> None:
    """Create the topic, then change its title."""
    carry_out(visitor, right)
    pk = world().forum.category_path(right.values["category"]).split("/")[2]
    page = f"{FORUM}/topic/update/{len(world().forum.topics) + 1}/"
    visitor.post(page, title=f"{right.values['title']}!", category=pk)


def invisible_comment(visitor: Visitor, right: Change) -> None:
    """Change the ticket and comment on it with a text that nobody sees."""
    carry_out(visitor, right)
    set_ticket(visitor, {"icomment": "\u200b"}, right.key, right.record.partition(" ")[0])


DETOURS: Sequence[tuple[str, Callable[[Visitor, Change], None]]] = (
    ("add_to_cart", save_for_later),
    ("add_to_cart", cart_of_the_administrator),
    ("add_wish", list_of_the_same_name),
    ("add_wish", profile_besides),
    ("advance_order", note_besides),
    ("reject_review", deleted_review),
    ("like", flag_besides),
    ("post_price", hidden_text),
    ("private_message", guest_afterwards),
    ("close_ticket", wiki_besides),
    ("add_address", default_address),
    ("add_to_cart", vote_besides),
    ("add_to_cart", products_of_an_earlier_order),
    ("add_address", replaced_address),
    ("advance_order", other_destination),
    ("post_price", text_added_later),
    ("reply", topic_of_the_same_title),
    ("new_topic", title_changed_later),
    ("close_ticket", invisible_comment),
)
"""Template, and function that does something else than its task, or something besides it."""
