"""Words of the shop: departments, what they sell, and what customers say about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from env_adapters.web_sites.world.words import split


@dataclass(frozen=True, slots=True)
class Shelf:
    """A category and what stands in it.

    Attributes:
        name: of the category.
        makes: material or kind, the middle word of a title.
        things: the nouns, the last word of a title.
        dollars: about the least and the most that one costs.
        grams: about the least and the most that one weighs.
    """

    name: str
    makes: Sequence[str]
    things: Sequence[str]
    dollars: tuple[int, int]
    grams: tuple[int, int]


def shelf(name: str, makes: str, things: str, dollars: tuple[int, int], grams: tuple[int, int]) -> Shelf:
    """Return a shelf whose materials and nouns are lists separated by commas."""
    return Shelf(name, split(makes), split(things), dollars, grams)


# fmt: off
DEPARTMENTS: Mapping[str, Sequence[Shelf]] = {
    "Kitchen": [
        shelf("Cookware", "Cast Iron,Stainless Steel,Copper,Enamelled",
              "Frying Pan,Saucepan,Stockpot,Casserole Dish,Griddle Pan", (18, 140), (600, 4200)),
        shelf("Kitchen Knives", "Forged,Damascus,Ceramic,Olivewood",
              "Chef Knife,Paring Knife,Bread Knife,Boning Knife,Cleaver", (12, 120), (80, 480)),
        shelf("Tea and Coffee", "Porcelain,Glass,Brushed Steel,Stoneware",
              "Teapot,French Press,Coffee Grinder,Milk Jug,Kettle", (9, 85), (200, 1600)),
    ],
    "Garden": [
        shelf("Hand Tools", "Ash Handle,Carbon Steel,Bronze,Compact",
              "Trowel,Hand Fork,Dibber,Weeder,Bulb Planter", (6, 45), (120, 700)),
        shelf("Planters", "Terracotta,Zinc,Cedar,Glazed",
              "Window Box,Flower Pot,Raised Planter,Hanging Basket,Herb Trough", (8, 95), (500, 7800)),
        shelf("Watering", "Galvanised,Brass,Recycled,Heavy Duty",
              "Watering Can,Garden Hose,Sprinkler,Spray Nozzle,Rain Gauge", (5, 70), (90, 3600)),
    ],
    "Workshop": [
        shelf("Hammers and Mallets", "Hickory,Fibreglass,Rubber,Beech",
              "Claw Hammer,Mallet,Sledgehammer,Tack Hammer,Ball Hammer", (8, 60), (250, 3900)),
        shelf("Measuring", "Folding,Aluminium,Digital,Boxwood",
              "Ruler,Tape Measure,Spirit Level,Caliper,Square", (4, 75), (40, 900)),
        shelf("Tool Storage", "Canvas,Steel,Waxed,Modular",
              "Tool Box,Tool Roll,Parts Cabinet,Tool Bag,Saw Rack", (15, 160), (400, 8900)),
    ],
    "Outdoors": [
        shelf("Tents and Shelters", "Two Person,Four Person,Ultralight,Winter",
              "Dome Tent,Tunnel Tent,Tarp Shelter,Bivouac,Cabin Tent", (45, 420), (700, 9000)),
        shelf("Backpacks", "Rolltop,Waterproof,Trail,Weekend",
              "Daypack,Rucksack,Hip Pack,Duffel,Hydration Pack", (25, 190), (300, 2400)),
        shelf("Camp Lighting", "Solar,Rechargeable,Folding,Storm",
              "Lantern,Headlamp,Torch,Tent Light,Beacon", (9, 80), (60, 900)),
    ],
    "Stationery": [
        shelf("Notebooks", "Dotted,Ruled,Linen,Leather",
              "Notebook,Pocket Journal,Sketchbook,Planner,Logbook", (4, 42), (80, 620)),
        shelf("Pens and Pencils", "Lacquered,Brass,Walnut,Classic",
              "Fountain Pen,Ballpoint Pen,Mechanical Pencil,Rollerball,Brush Pen", (3, 88), (12, 60)),
        shelf("Desk Organisers", "Bamboo,Mesh,Felt,Oak",
              "Pen Tray,Letter Rack,Monitor Stand,Cable Box,Magazine File", (7, 64), (150, 2100)),
    ],
    "Games": [
        shelf("Board Games", "Harbour,Castle,Railway,Jungle",
              "Building Game,Quest Game,Trading Game,Dice Game,Strategy Game", (15, 75), (500, 2600)),
        shelf("Jigsaw Puzzles", "Alpine,Botanical,City,Vintage",
              "Map Puzzle,Panorama Puzzle,Wooden Puzzle,Round Puzzle,Poster Puzzle", (8, 45), (300, 1400)),
        shelf("Card Games", "Pocket,Deluxe,Family,Travel",
              "Rummy Set,Poker Deck,Memory Cards,Trivia Cards,Bridge Set", (4, 30), (90, 600)),
    ],
    "Home": [
        shelf("Blankets and Throws", "Merino,Cotton,Fleece,Alpaca",
              "Throw,Picnic Blanket,Bedspread,Lap Blanket,Weighted Blanket", (14, 180), (400, 6800)),
        shelf("Lamps", "Arched,Rattan,Industrial,Marble",
              "Table Lamp,Floor Lamp,Clip Lamp,Reading Lamp,Bedside Lamp", (16, 210), (500, 7400)),
        shelf("Storage Baskets", "Seagrass,Wicker,Rope,Jute",
              "Laundry Basket,Storage Cube,Log Basket,Shelf Basket,Toy Hamper", (9, 78), (300, 2900)),
    ],
    "Cycling": [
        shelf("Bike Helmets", "Road,Urban,Mountain,Junior",
              "Vented Helmet,Aero Helmet,Commuter Helmet,Visor Helmet,Folding Helmet", (24, 175), (210, 480)),
        shelf("Bike Lights", "Clip On,Dynamo,Compact,Bright",
              "Front Light,Rear Light,Light Set,Helmet Light,Spoke Light", (7, 90), (25, 330)),
        shelf("Bike Bags", "Waxed,Reflective,Quick Release,Touring",
              "Pannier,Handlebar Bag,Saddle Bag,Frame Bag,Rack Bag", (12, 130), (120, 1500)),
    ],
}
# fmt: on

BRANDS = split(
    "Harrow, Tideway, Oakline, Fenwick, Northmark, Brightwell, Copperfield, Sable, Larkhill, Westbrook, "
    "Juniper, Alderton"
)
COLOURS = split("Black, White, Forest Green, Navy, Slate Grey, Rust Red, Mustard, Cream, Teal, Charcoal")

DESCRIPTIONS = (
    "A {thing} that is made to be used every day. Comes in {colour}, weighs {grams} g and carries a warranty of "
    "{years} years.",
    "Our buyers tried eleven of its kind and kept this {thing}. Colour {colour}, {grams} g, {years} years of warranty.",
    "{brand} has made this {thing} for a long time, and it shows. In {colour}; {grams} g; warranty {years} years.",
)

REVIEWS: Mapping[int, Sequence[tuple[str, str]]] = {
    5: (
        ("Better than I hoped", "I have used this {thing} for a month and would buy it again at once."),
        ("Worth every cent", "Solid, well finished, and it arrived a day early. A great {thing}."),
        ("My new favourite", "I gave my old one away. This {thing} is a joy to use."),
        ("A gift that pleased", "Bought it for my sister and she has talked of nothing else since."),
    ),
    4: (
        ("Very good", "A good {thing} for the price. The packaging could be simpler."),
        ("Nearly perfect", "Does all I need. One star less because the colour is darker than in the shop."),
        ("Happy with it", "The {thing} does its work well. Instructions would have helped."),
    ),
    3: (
        ("It is fine", "Neither good nor bad. The {thing} does what it says and no more."),
        ("Average", "I expected more of {brand}, but it works."),
        ("Smaller than expected", "A decent {thing}, but check the size before you order."),
    ),
    2: (
        ("Not for me", "The {thing} feels cheaper than it looks, and mine had a scratch."),
        ("Disappointed", "It worked for two weeks. The shop exchanged it without fuss."),
        ("Heavier than I thought", "Too heavy for daily use, so the {thing} stays in the cupboard."),
    ),
    1: (
        ("Broke within a week", "I cannot recommend this {thing}. It broke on the third day."),
        ("Sent it back", "The finish came off at once. Returned it the same week."),
        ("Wrong item in the box", "I ordered a {thing} and found something else in the box."),
    ),
}
