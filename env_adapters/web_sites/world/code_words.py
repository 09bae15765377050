"""Words of the code host: projects, what breaks in them, and what their developers write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from env_adapters.web_sites.world.words import split


@dataclass(frozen=True, slots=True)
class Theme:
    """Theme of a project: a sentence, its modules, and the nouns in its tickets."""

    about: str
    modules: Sequence[str]
    objects: Sequence[str]


def theme(about: str, modules: str, objects: str) -> Theme:
    """A theme from comma-separated words."""
    return Theme(about, split(modules), split(objects))


THEMES: Mapping[str, Theme] = {
    "tidepool": theme(
        "Reads and writes tide tables.",
        "parser,almanac,export,units",
        "leap years,empty stations,time zones,CSV files,negative heights",
    ),
    "lanternbox": theme(
        "Controls the lamps of a house from one small program.",
        "scheduler,dimmer,bridge,scenes",
        "sunset times,lost connections,colour names,groups of lamps,dark mode",
    ),
    "papermill": theme(
        "Turns plain text into printed booklets.",
        "layout,fonts,preview,hyphenation",
        "long words,page numbers,missing glyphs,footnotes,double columns",
    ),
    "trailmap": theme(
        "Plans walks along marked trails.",
        "router,elevation,tiles,waypoints",
        "steep paths,offline tiles,closed bridges,GPX files,round trips",
    ),
    "seedbank": theme(
        "Keeps a record of seeds, sowings and harvests.",
        "inventory,calendar,labels,import",
        "old seeds,duplicate labels,frost dates,barcodes,shared gardens",
    ),
    "brewlog": theme(
        "Logs coffee and tea, one cup at a time.",
        "recipes,timer,charts,sync",
        "long brews,missing beans,weekly charts,two devices,imported notes",
    ),
    "gearshift": theme(
        "Works out gears and chain lengths of bicycles.",
        "calculator,catalog,wheels,report",
        "hub gears,worn chains,odd wheel sizes,unknown cassettes,metric units",
    ),
    "dicecup": theme(
        "Rolls dice and keeps scores for games at the table.",
        "roller,scores,sessions,themes",
        "exploding dice,tied scores,restored sessions,screen readers,house rules",
    ),
}

LICENSES = ("MIT", "Apache-2.0", "BSD-3-Clause", "MPL-2.0", "ISC")

BUGS = (
    (
        "The {module} module crashes on {thing}",
        "The {module} module stops with a traceback as soon as it meets {thing}.",
    ),
    ("Wrong result for {thing} in {module}", "The {module} module handles {thing}, but what comes out is wrong."),
    ("The {module} module is slow with {thing}", "With {thing} the {module} module takes more than a minute."),
)
FEATURES = (
    ("Support {thing} in {module}", "It would help if the {module} module understood {thing}."),
    ("Let users configure {thing} in {module}", "How the {module} module treats {thing} should be a setting."),
)
DOCS = (
    (
        "Document how the {module} module treats {thing}",
        "The manual does not say what the {module} module does with {thing}.",
    ),
)

COMMITS = (
    "Handle {thing} in {module}",
    "Add tests of {module} for {thing}",
    "Speed up {module} for {thing}",
    "Rename helpers of {module}",
    "Log {thing} in {module}",
    "Refuse {thing} in {module} with a clear message",
)
REMARKS = (
    "I can reproduce this on the current trunk.",
    "Thank you for the report. I will look at it this week.",
    "A small example would help.",
    "Moved to the next milestone.",
    "This came up on the forum as well.",
    "Fixed on a branch, review welcome.",
)
