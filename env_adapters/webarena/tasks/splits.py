"""Which of WebArena's 812 tasks are trained on and which are held out, as the paper did as far as it can be told.

The paper leaves tasks out that change a site, and has 372 tasks for training and 50 for testing: 15 of shopping, 15 of
CMS, 10 of maps, 10 of GitLab and Reddit. It does not list them. Here the ones that only read are those of templates
whose tasks webarena-verified 1.2.3 all classes as retrieving or navigating; 50 of them, in the paper's proportions, are
drawn by a hash of their ids.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from env_adapters.webarena.tasks.items import CATEGORIES, SEVERAL
from verl_agent.types import TaskItem

PAPER_TEST = {
    CATEGORIES[site]: count for site, count in {"shopping": 15, "shopping_admin": 15, "map": 10, "reddit": 10}.items()
}
READING = frozenset(
    int(number)
    for number in [
        "17",
        "33",
        "35",
        "36",
        "39",
        "41",
        "42",
        "46",
        "47",
        "49",
        "51",
        "52",
        "54",
        "58",
        "59",
        "64",
        "65",
        "66",
        "67",
        "68",
        "69",
        "70",
        "72",
        "73",
        "75",
        "77",
        "78",
        "79",
        "85",
        "94",
        "120",
        "134",
        "135",
        "136",
        "137",
        "138",
        "139",
        "147",
        "151",
        "155",
        "159",
        "160",
        "161",
        "162",
        "169",
        "171",
        "180",
        "182",
        "188",
        "193",
        "197",
        "204",
        "206",
        "207",
        "208",
        "210",
        "211",
        "212",
        "213",
        "214",
        "222",
        "234",
        "244",
        "245",
        "248",
        "249",
        "250",
        "253",
        "255",
        "266",
        "268",
        "270",
        "271",
        "274",
        "276",
        "277",
        "279",
        "285",
        "288",
        "289",
        "290",
        "291",
        "298",
        "299",
        "300",
        "303",
        "310",
        "312",
        "316",
        "320",
        "321",
        "322",
        "323",
        "324",
        "325",
        "329",
        "349",
        "364",
        "366",
        "367",
        "368",
        "370",
        "371",
        "500",
        "501",
        "666",
        "781",
        "782",
        "1001",
        "1002",
        "1355",
        "1356",
    ]
)
"""Ids of the templates whose tasks change nothing."""


def reading(items: Sequence[TaskItem]) -> list[TaskItem]:
    """The tasks that change no site."""
    return [item for item in items if item.data.get("intent_template_id") in READING]


def held_out(items: Sequence[TaskItem]) -> list[TaskItem]:
    """The test tasks."""
    chosen: set[str] = set()
    for category, count in PAPER_TEST.items():
        ids = [item.id for item in reading(items) if item.category == category]
        chosen |= set(sorted(ids, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:count])
    return [item for item in items if item.id in chosen]


def training(items: Sequence[TaskItem]) -> list[TaskItem]:
    """The training tasks: those of one site that change nothing and are not held out."""
    kept = {item.id for item in held_out(items)}
    return [item for item in reading(items) if item.id not in kept and item.category != SEVERAL]


SPLITS: Mapping[str, Callable[[Sequence[TaskItem]], list[TaskItem]]] = {
    "train": training,
    "test": held_out,
    "reading": reading,
    "all": list,
}
"""What chooses the items of each split among the 812."""
