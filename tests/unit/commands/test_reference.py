"""Test that the page of settings and `--explain` describe every setting, and that defaults stand in one place."""

import json
import re
from dataclasses import MISSING, fields

import pytest

from verl_agent.commands.reference import explain_setting, page
from verl_agent.config.catalogue import verl_rows
from verl_agent.config.keys import leaves, reference
from verl_agent.errors import ConfigError
from verl_agent.sections import SECTIONS


@pytest.fixture(scope="module")
def text():
    return page()


def test_every_key_has_a_meaning(text):
    cells = [line.split(" | ") for line in re.sub(r"\\\|", "/", text).splitlines() if line.startswith("| `")]
    assert len(cells) > 100
    assert [row[0] for row in cells if not row[-3].strip()] == []


def test_every_key_of_verl_with_a_meaning_is_on_the_page(text):
    assert [key for key, row in verl_rows().items() if row.meaning and f"`{key}`" not in text] == []


def test_a_default_of_a_settings_class_is_that_of_its_base():
    """A class has defaults for programs, the YAML for commands; they must not contradict."""
    for one in SECTIONS:
        defaults = dict(leaves(reference(one.base)))
        for field in fields(one.kind):
            own = getattr(field.default, "default", field.default)
            value = defaults.get(f"{one.key}.{field.name}", MISSING)
            if (
                own is not MISSING
                and value is not MISSING
                and "${" not in str(value)
                and "PydanticUndefined" not in str(own)
            ):
                assert json.loads(json.dumps(own)) == value, f"{one.key}.{field.name}"


def test_the_meaning_of_a_field_stands_under_it_alone():
    assert [one.key for one in SECTIONS if "Attributes:" in (one.kind.__doc__ or "Attributes:")] == []


def test_a_setting_is_explained_by_its_field():
    text = explain_setting("credit.turn_lam", "agent_base").splitlines()
    assert text[:2] == ["credit.turn_lam", "  default: `1.0`"]
    assert "  needs: algorithm.adv_estimator='turn_gae'" in text
    assert "  resume: train, play" in explain_setting("env.hosts.count", "agent_base")
    assert "  allowed: section of horizon.adaptive.success_above," in explain_setting("horizon.adaptive", "agent_base")
    assert "  allowed: section of env.mixture[]." in explain_setting("env.mixture", "agent_base")
    assert "  meaning: learning rate" in explain_setting("optim.lr", "agent_sft")
    with pytest.raises(ConfigError, match=r"--explain 'env.retry' is not a setting of agent_base\. Did you mean"):
        explain_setting("env.retry", "agent_base")
