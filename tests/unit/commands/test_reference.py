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
    without = ("|", "<br>", "Allowed:", "Needs:", "Resume:")
    assert [row[0] for row in cells if row[1].startswith(without)] == []


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


@pytest.mark.parametrize("text", ["lora", "LORA", "rollout.n_", "gpu", "e", "actor_rollout_ref.model.lora_"])
def test_a_part_of_a_name_shows_the_keys_that_contain_it_on_one_screen(text):
    head, *lines = explain_setting(text, "agent_base").splitlines()
    assert len(lines) <= 21 and max(map(len, lines)) <= 120 and repr(text) in head
    keys = [line.strip().partition(":")[0] for line in lines if not line.startswith("  and ")]
    assert keys and all(text.lower() in key.lower() for key in keys)
    for key in keys:
        assert explain_setting(key, "agent_base").splitlines()[0] == key, "each of them can be explained"


def test_keys_with_a_meaning_precede_others_and_a_section_stands_for_its_keys():
    found = explain_setting("lora", "agent_base")
    assert "model.lora_rank: " in found and "model.lora: section with 16 keys" in found
    assert "model.lora.alpha" not in found
    first = explain_setting("turns", "agent_base").splitlines()[1]
    assert "agent.context.turns" in first and "Number of last turns" in first


def test_the_names_for_a_text_that_is_in_no_key_are_few():
    with pytest.raises(ConfigError, match=r"Known: .* and \d+ more\.$") as caught:
        explain_setting("zzzqqqxxx", "agent_base")
    assert len(str(caught.value)) < 1200
