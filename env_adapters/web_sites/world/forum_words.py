"""Words of the forum: what its members call themselves, ask and answer."""

from collections.abc import Mapping, Sequence

from env_adapters.web_sites.world.words import split

HOBBIES: Mapping[str, str] = {
    "Cooking": "Kitchen",
    "Gardening": "Garden",
    "Woodworking": "Workshop",
    "Camping": "Outdoors",
    "Writing Desk": "Stationery",
    "Tabletop Games": "Games",
    "Interiors": "Home",
    "Cycling": "Cycling",
}
"""Categories about a department of the shop, and which one."""

DESCRIPTIONS: Mapping[str, str] = {
    "Cooking": "Recipes, pans and everything that happens near a stove.",
    "Gardening": "From window boxes to whole orchards.",
    "Woodworking": "Benches, joints and the tools that make them.",
    "Camping": "Where to go, what to carry, how to stay dry.",
    "Writing Desk": "Pens, paper and the pleasure of a letter.",
    "Tabletop Games": "Rules, reviews and finding people to play with.",
    "Interiors": "Rooms, light and the things in them.",
    "Cycling": "Commuting, touring and keeping the chain clean.",
    "Open Source": "The projects that members write, their releases and their tickets.",
    "Meetups": "Dates and places where members meet.",
    "Introductions": "Say hello.",
}

NAME_STARTS = split(
    "quiet, rusty, mossy, amber, clever, lazy, northern, paper, copper, silver, hidden, wandering, velvet, misty"
)
NAME_ENDS = split("harbor, lantern, otter, maple, comet, kettle, sparrow, pebble, willow, anchor, badger, meadow")

QUESTIONS: Sequence[tuple[str, str]] = (
    (
        "Which {thing} would you buy again?",
        "I am looking for a {thing} that lasts. Which one do you own, and would you buy it again?",
    ),
    ("How do you clean a {thing}?", "Mine has seen better days. How do you clean a {thing} without ruining it?"),
    (
        "Is a second {thing} worth it?",
        "I have one and use it daily. Does a second {thing} make sense, or is it clutter?",
    ),
    ("Beginner asks about the {thing}", "I am new to this. What should I look for when I choose a {thing}?"),
    (
        "Repairing an old {thing}",
        "I found an old {thing} in the attic and would like to bring it back to life. Has anybody done that?",
    ),
    (
        "The best gift: a {thing}?",
        "My brother has his birthday soon. Is a {thing} a good gift, and what would you pay?",
    ),
)
PRAISE = (
    "Three months with the {product}",
    "I bought the {product} three months ago and use it almost every day. Ask me anything about it.",
)
DOUBTS = ("Is the {product} any good?", "The {product} keeps coming up when I search. Does anybody here own it?")

REPLIES: Sequence[str] = (
    "I had the same question last year. Buy the best you can afford and look after it.",
    "Go to a shop and hold one in your hand first. ScreenshotFolder tell you nothing about weight.",
    "Mine is ten years old and still works. Warm water, a soft cloth, nothing else.",
    "I would wait for the spring sale; prices drop by a third.",
    "Do not overthink it. The cheap one is fine for a start.",
    "Great topic, I learnt a lot here. Thank you all.",
    "There was a long thread about this some time ago, but the search does not find it.",
    "I disagree. The expensive ones last three times as long.",
    "My neighbour swears by the opposite, and her results are better than mine.",
    "Can you post a picture? It is hard to tell from words.",
    "I tried both. In the end the difference was smaller than I thought.",
    "Second-hand is the way to go. Check local listings before you buy anything new.",
    "It depends on how often you use it. Once a week? Then keep what you have.",
    "I asked the maker, and they answered within a day. Worth a try.",
)

HELLO = ("Hello from {city}", "I am new here and live in {city}. I came for {first} and stayed for {second}.")
MEETUP = (
    "{hobby} meetup in {city}",
    "We meet on {day} at {hour} in the {place} in {city}. Bring something to show. {count} places are left.",
)
PLACES = split("town hall, library, Old Mill, railway cafe, school gym, market square")
MENTION = (
    "{project}: {title}",
    'I opened a ticket about this in the repository {project}: "{title}". What do you think about it?',
)
RELEASE = (
    "{project} {version} is out",
    "Version {version} of {project} was tagged. The wiki has the notes. Please report what breaks.",
)
