"""Tests that the sites show the generated data of their seed and that copies isolate the sessions."""

import asyncio
import os
import re
import signal
import time

import pytest

from env_adapters.web_sites import control
from env_adapters.web_sites.folders import Home
from env_adapters.web_sites.source import EmbeddedTasks
from env_adapters.web_sites.world import world
from tests.support.visitor import Visitor

TOKEN = re.compile('(?:value=|csrfToken: )"[A-Za-z0-9]{64}"')
"""Matches the random token that protects a form; each page has another one."""
AGE = re.compile(r"[\d.]+ (?:seconds|minutes|hours|days|years)\b")
SHOP, ADMIN, FORUM, CODE = "http://shop.test", "http://admin.test/dashboard", "http://forum.test", "http://code.test"


@pytest.fixture
def pair(sites):
    """Return visitors of three copies: two that change something, and one that does not."""
    copies = [sites.acquire() for _ in range(3)]
    yield [Visitor(sites, copy) for copy in copies]
    for copy in copies:
        copy.release()


def test_shop_shows_its_products(pair):
    for product in world().shop.products[::40]:
        status, text = pair[0].get(SHOP + product.path)
        assert status == 200
        assert product.price in text and f"{product.grams} g" in text


def test_shop_does_not_record_viewed_products(pair):
    """A cookie that changes from page to page would prevent visitors from sharing cached responses."""
    first, *others = world().shop.products[::60]
    pair[0].get(SHOP + first.path)
    cookies = dict(pair[0].cookies)
    for product in others:
        pair[0].get(SHOP + product.path)
    assert pair[0].cookies == cookies


def test_shop_shows_customers_their_own_orders_and_the_administrator_all(pair):
    shop = world().shop
    own = next(order for order in shop.orders if order.customer is shop.shopper)
    other = next(order for order in shop.orders if order.customer is not shop.shopper)
    assert own.total in pair[0].get(f"{SHOP}/accounts/orders/{own.number}/")[1]
    assert pair[0].get(f"{SHOP}/accounts/orders/{other.number}/")[0] == 404
    assert other.customer.email in pair[0].get(f"{ADMIN}/orders/{other.number}/")[1]


def test_dashboard_shows_the_status_of_a_review_that_waits_for_a_moderator(pair):
    """Oscar's form has no such status and would select `Approved`."""
    pending = next(review for review in world().shop.reviews if review.pending)
    for review, name in ((pending, "Requires moderation"), (world().shop.reviews[0], "Approved")):
        text = pair[0].get(f"{ADMIN}/reviews/{review.pk}/")[1]
        choices = text.partition('name="status"')[2].partition("</select>")[0]
        assert re.findall(r"<option[^>]* selected[^>]*>([^<]+)</option>", choices) == [name]


def test_forum_shows_its_topics_at_the_urls_of_the_tasks(pair):
    for topic in world().forum.topics[::30]:
        status, text = pair[0].get(FORUM + topic.path)
        assert status == 200
        assert topic.author in text and topic.replies[-1].member in text
    for name in world().forum.categories:
        assert pair[0].get(FORUM + world().forum.category_path(name))[0] == 200


def test_code_host_shows_projects_with_generated_dates_and_authors(pair):
    for project in world().code.projects:
        timeline = pair[0].get(f"{CODE}/{project.name}/timeline?n=50")[1]
        assert all(one.message in timeline for one in project.checkins)
        assert f"{project.checkins[-1].moment:%Y-%m-%d}" in timeline
        ticket = project.tickets[0]
        shown = pair[0].get(f"{CODE}/{project.name}{ticket.path}")[1]
        assert ticket.title in shown and ticket.status in shown
        assert project.facts["python"] in pair[0].get(f"{CODE}/{project.name}/wiki?name=Installation")[1]


def test_code_host_shows_dates_instead_of_ages(pair):
    project = world().code.projects[0]
    pages = ("wcontent", "brlist", "stat", "whistory?name=Installation")
    texts = [pair[0].get(f"{CODE}/")[1], *(pair[0].get(f"{CODE}/{project.name}/{page}")[1] for page in pages)]
    assert not [age for text in texts for age in AGE.findall(text)]


def test_dashboard_does_not_depend_on_the_clock(pair):
    """Oscar's own dashboard reloads every five minutes and charts the latest 24 hours with their times."""
    text = pair[0].get(ADMIN + "/")[1]
    assert 'id="order_graph"' in text and "#order_graph { display: none }" in text
    assert 'http-equiv="refresh"' not in text


def test_pages_of_the_shop_do_not_name_the_minute_in_which_they_were_made(pair):
    assert '<meta name="created" content="15th Dec 2025 08:00" />' in pair[0].get(f"{SHOP}/basket/")[1]


def test_episode_reaches_only_the_sites_of_its_task(sites):
    source = EmbeddedTasks(sites.home.folder)
    hosts = {}
    for item in source.items("train_all"):
        kind = item.id.split(":")[1]
        if kind not in ("price", "approve_review") or kind in hosts:
            continue
        environment = asyncio.run(source.open(item))
        environment.release()
        hosts[kind] = set(environment.routes)
    assert hosts == {"price": {"shop.test:80"}, "approve_review": {"admin.test:80"}}


def test_page_is_the_same_in_every_copy(pair):
    """Unchanged copies share one cached response, so the test changes each copy to make it respond itself."""
    product = next(product for product in world().shop.products if product.stock)
    for visitor in pair:
        visitor.post(f"{SHOP}/basket/add/{product.pk}/", SHOP + product.path, quantity="1")
        visitor.post(f"{FORUM}/comment/like/1/create/")
    for url in (f"{SHOP}/catalogue/", f"{SHOP}/catalogue/?page=2", f"{FORUM}/", f"{CODE}/"):
        texts = [TOKEN.sub("", visitor.get(url)[1]) for visitor in pair]
        assert texts[0] == texts[1] == texts[2]
    assert product.title in pair[0].get(f"{SHOP}/basket/")[1]


def test_copies_isolate_carts(pair):
    first, second = [product for product in world().shop.products if product.stock][:2]
    for visitor, product in zip(pair, (first, second), strict=False):
        page = SHOP + product.path
        visitor.post(f"{SHOP}/basket/add/{product.pk}/", page, quantity="1")
    carts = [visitor.get(f"{SHOP}/basket/")[1] for visitor in pair]
    assert [first.title in cart for cart in carts] == [True, False, False]
    assert [second.title in cart for cart in carts] == [False, True, False]


def test_copies_isolate_orders(pair):
    order = next(order for order in world().shop.orders if order.status == "Pending")
    page = f"{ADMIN}/orders/{order.number}/"
    for visitor, status in zip(pair, ("Processing", "Cancelled"), strict=False):
        visitor.post(page, order_action="change_order_status", new_status=status)
    shown = [visitor.get(page)[1] for visitor in pair]
    changed = [["<td>Processing</td>" in text, "<td>Cancelled</td>" in text] for text in shown]
    assert changed == [[True, False], [False, True], [False, False]]


def test_copies_isolate_tickets(pair):
    project = world().code.projects[0]
    ticket = next(ticket for ticket in project.tickets if ticket.status == "Open")
    page = f"{CODE}/{project.name}/tktedit/{ticket.uuid[:10]}"
    for visitor, status in zip(pair, ("Closed", "In Progress"), strict=False):
        visitor.post(page, title=ticket.title, status=status, submit="Save changes")
    shown = [visitor.get(f"{CODE}/{project.name}{ticket.path}")[1] for visitor in pair]
    statuses = [text.partition('id="tkt-status">')[2].partition("<")[0].strip() for text in shown]
    assert statuses == ["Closed", "In Progress", "Open"]


def test_copies_isolate_topics(pair):
    topic = world().forum.topics[0]
    page = f"{FORUM}/comment/{topic.pk}/publish/"
    for visitor, text in zip(pair, ("the first was here", "the second was here"), strict=False):
        visitor.post(page, comment=text)
    shown = [visitor.get(FORUM + topic.path)[1] for visitor in pair]
    assert ["the first was here" in text for text in shown] == [True, False, False]
    assert ["the second was here" in text for text in shown] == [False, True, False]


def test_killed_site_restarts_and_keeps_its_copies(sites, pair):
    product = next(product for product in world().shop.products if product.stock)
    pair[0].post(f"{SHOP}/basket/add/{product.pk}/", SHOP + product.path, quantity="1")
    before = {one.name: one for one in control.health_of_sites(sites.home)}
    killed = control.processes_of(sites, "shop")
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        after = {one.name: one for one in control.health_of_sites(sites.home)}
        if after["shop"].answer_ms is not None and after["shop"].processes == before["shop"].processes:
            break
        assert time.monotonic() < deadline, after
        time.sleep(0.2)
    assert product.title in pair[0].get(f"{SHOP}/basket/")[1]
    assert pair[0].get(f"{FORUM}/")[0] == 200


def test_up_keeps_running_sites(sites):
    again = control.start_sites(sites.home, sites.seed, 0, print)
    assert (again.pid, again.ports) == (sites.pid, sites.ports)


def test_sites_can_be_restarted_immediately(sites, tmp_path):
    home = Home(tmp_path)
    home.venv.symlink_to(sites.home.venv)
    home.seed(sites.seed).symlink_to(sites.home.seed(sites.seed))
    for _ in range(4):
        control.start_sites(home, sites.seed, 0, print)
        assert control.stop_sites(home)
