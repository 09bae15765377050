"""The shop's products, customers, reviews and orders, made from a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from random import Random

from env_adapters.web_sites.world.people import Resident, people, someone
from env_adapters.web_sites.world.shop_words import BRANDS, COLOURS, DEPARTMENTS, DESCRIPTIONS, REVIEWS, Shelf

PER_SHELF = 10
CUSTOMERS = 60
ORDERS = 300
OWN_ORDERS = 30
"""Orders of the customer that tasks are done as."""
WISHES = 6
FIRST_ORDER = 50_001
"""The shop numbers new orders from 100001 on."""
STATUSES = ("Pending", "Processing", "Shipped", "Delivered", "Cancelled")
LAST_DAY = date(2025, 12, 15)


@dataclass(frozen=True, slots=True)
class Category:
    """A category of the catalogue; departments have no department above them.

    Attributes:
        pk: its key in the database.
        name: unique.
        department: name of the category above it, or "".
    """

    pk: int
    name: str
    department: str = ""


@dataclass(frozen=True, slots=True)
class Product:
    """A product; its title is unique.

    Attributes:
        pk: its key in the database, which is in the URL of its page.
        name: name of its tasks, which also decides their split. No page shows it, because it contains `pk`.
        upc: unique article number, drawn independently of `pk`.
        cents: price in US cents, unique in its category.
        stock: units that can be bought.
    """

    pk: int
    name: str
    title: str
    upc: str
    category: str
    brand: str
    thing: str
    colour: str
    cents: int
    stock: int
    grams: int
    warranty: int
    description: str

    @property
    def price(self) -> str:
        """As the shop prints it: `$1,234.50`."""
        return dollars(self.cents)

    @property
    def slug(self) -> str:
        """The part of its address that has its title."""
        kept = "".join(letter if letter.isalnum() else " " for letter in self.title.lower())
        return "-".join(kept.split())

    @property
    def path(self) -> str:
        """Its address below the shop's."""
        return f"/catalogue/{self.slug}_{self.pk}/"


@dataclass(frozen=True, slots=True)
class ProductReview:
    """Review of a product by a customer: `stars` from 1 to 5; a `pending` review waits for a moderator."""

    pk: int
    product: Product
    customer: Resident
    stars: int
    title: str
    body: str
    day: date
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """An order; `lines` are products and how many of each."""

    pk: int
    number: str
    customer: Resident
    day: date
    status: str
    lines: Sequence[tuple[Product, int]]

    @property
    def cents(self) -> int:
        """Total price in cents; shipping is free."""
        return sum(product.cents * count for product, count in self.lines)

    @property
    def total(self) -> str:
        """As the shop prints it."""
        return dollars(self.cents)


class ShopWorld:
    """Everything in the shop. The same seed gives the same shop."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def random(self, part: str) -> Random:
        """The generator of one part, which no other part disturbs."""
        return Random(f"{self.seed}:shop:{part}")

    @cached_property
    def categories(self) -> Sequence[Category]:
        """Departments and their categories, in the order in which they are shown."""
        found: list[Category] = []
        for department, shelves in DEPARTMENTS.items():
            found.append(Category(len(found) + 1, department))
            found += [
                Category(len(found) + place, shelf.name, department) for place, shelf in enumerate(shelves, start=1)
            ]
        return found

    @cached_property
    def products(self) -> Sequence[Product]:
        """All products, by category."""
        shelves = [shelf for department in DEPARTMENTS.values() for shelf in department]
        numbers = iter(self.random("UPCs").sample(range(10**6, 10**7), PER_SHELF * len(shelves)))
        found: list[Product] = []
        for shelf in shelves:
            found += stock_shelf(self.random(shelf.name), shelf, len(found) + 1, numbers)
        return found

    @cached_property
    def shopper(self) -> Resident:
        """The customer that tasks are done as."""
        return someone(self.random("shopper"), "Emma", "Lindqvist")

    @cached_property
    def customers(self) -> Sequence[Resident]:
        """All customers, the shopper first."""
        return [self.shopper, *people(self.random("customers"), CUSTOMERS - 1, [self.shopper])]

    @cached_property
    def reviews(self) -> Sequence[ProductReview]:
        """All reviews; a customer reviews a product at most once, and no two of a product have one title."""
        random = self.random("reviews")
        found: list[ProductReview] = []
        for product in self.products:
            count = random.choices((0, 1, 2, 3, 4, 5), (1, 2, 3, 3, 2, 1))[0]
            texts = [(stars, *text) for stars, listed in REVIEWS.items() for text in listed]
            weights = [{5: 6, 4: 6, 3: 3, 2: 2, 1: 2}[stars] for stars, _, _ in texts]
            for customer in random.sample(self.customers[1:], count):
                stars, title, body = texts[place := random.choices(range(len(texts)), weights)[0]]
                del texts[place], weights[place]
                text = body.format(thing=product.thing.lower(), brand=product.brand)
                day = LAST_DAY - timedelta(days=random.randrange(330))
                pending = random.random() < 0.08
                found.append(ProductReview(len(found) + 1, product, customer, stars, title, text, day, pending))
        return found

    def reviews_of(self, product: Product) -> Sequence[ProductReview]:
        """The reviews of a product that visitors can read."""
        return [review for review in self.reviews if review.product is product and not review.pending]

    @cached_property
    def wishes(self) -> Sequence[Product]:
        return self.random("wishes").sample([product for product in self.products if product.stock], WISHES)

    @cached_property
    def orders(self) -> Sequence[Order]:
        """All orders, the oldest first; no two have one total."""
        random = self.random("orders")
        buyers = [self.shopper] * OWN_ORDERS + random.choices(self.customers[1:], k=ORDERS - OWN_ORDERS)
        random.shuffle(buyers)
        days = sorted(LAST_DAY - timedelta(days=random.randrange(340)) for _ in buyers)
        found: list[Order] = []
        totals: set[int] = set()
        for place, (buyer, day) in enumerate(zip(buyers, days, strict=True)):
            while True:
                bought = random.sample(self.products, random.choices((1, 2, 3, 4), (4, 4, 2, 1))[0])
                lines = [(product, random.choices((1, 2, 3), (6, 2, 1))[0]) for product in bought]
                age = (LAST_DAY - day).days
                weights = (1, 2, 4, 12, 1) if age > 30 else (6, 5, 4, 2, 1)
                status = random.choices(STATUSES, weights)[0]
                order = Order(place + 1, str(FIRST_ORDER + place), buyer, day, status, lines)
                if order.cents not in totals:
                    break
            totals.add(order.cents)
            found.append(order)
        return found


def stock_shelf(random: Random, shelf: Shelf, first_pk: int, numbers: Iterator[int]) -> list[Product]:
    """The products of a category, no two of one price or title; `numbers` has those of their UPCs."""
    pairs = [(make, thing) for make in shelf.makes for thing in shelf.things]
    found: list[Product] = []
    prices: set[int] = set()
    for pk, (make, thing) in enumerate(random.sample(pairs, PER_SHELF), start=first_pk):
        while True:
            low, high = shelf.dollars
            cents = int(low * (high / low) ** random.random()) * 100 + random.choice((0, 25, 49, 50, 75, 95, 99))
            if cents not in prices:
                break
        prices.add(cents)
        brand, colour, years = random.choice(BRANDS), random.choice(COLOURS), random.choice((2, 3, 5, 8, 10))
        low, high = shelf.grams
        grams = int(low * (high / low) ** random.random() / 5) * 5 + 5
        text = random.choice(DESCRIPTIONS).format(
            thing=thing.lower(), colour=colour.lower(), grams=grams, years=years, brand=brand
        )
        stock = random.choice((0, *range(3, 120)))
        name, upc = f"FH{pk:04d}{random.randint(100, 999)}", f"FH{next(numbers)}"
        title = f"{brand} {make} {thing}"
        found.append(Product(pk, name, title, upc, shelf.name, brand, thing, colour, cents, stock, grams, years, text))
    return found


def dollars(cents: int) -> str:
    """An amount as the shop prints it."""
    return f"${cents / 100:,.2f}"
