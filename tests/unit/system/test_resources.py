"""Folders that a command writes."""

import pytest

from verl_agent.errors import ConfigError
from verl_agent.system.resources import make_folder


@pytest.mark.parametrize(("name", "reason"), [("file", "a file of this name"), ("file/below", "cannot be created")])
def test_a_folder_that_cannot_be_made_raises_config_error_naming_the_key(tmp_path, name, reason):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"^evaluation.output_dir='.*{name}' is not allowed: .*{reason}"):
        make_folder(tmp_path / name, "evaluation.output_dir")
