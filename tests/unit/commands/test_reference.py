"""Test that REFERENCE.md describes every setting, and that it is up to date."""

import re

from verl_agent.commands.reference import OTHER_KEYS, PAGE, page
from verl_agent.config.keys import reference


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make reference`"


def test_every_key_has_a_meaning():
    rows = re.findall(r"^\| `(.+?)` \|.*\| (.*) \|$", page(), re.MULTILINE)
    assert len(rows) > 100
    assert [key for key, meaning in rows if not meaning.strip()] == []


def test_every_key_without_a_settings_class_exists_in_its_base():
    for _, base, keys in OTHER_KEYS:
        for key, _ in keys:
            node = reference(base)
            for part in key.split("."):
                assert part in node, f"{base} has no {key}"
                node = node[part]
