"""Search for a Chromium, and the message if none is installed. Needs no browser."""

import pytest

from env_adapters.webarena.browser.chromium import find_chromium, installed_chromiums
from verl_agent.errors import ConfigError


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without a browser; returns a function that installs a command."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    monkeypatch.delenv("CHROMIUM", raising=False)

    def install(name):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
        return str(file)

    return install


def test_a_missing_chromium_raises_config_error_with_the_command(machine):
    with pytest.raises(ConfigError, match=r"no Chromium was found.*apt-get install.*playwright install.*CHROMIUM"):
        find_chromium()


def test_the_headless_shell_is_preferred_and_playwrights_download_comes_last(machine):
    downloaded = machine("playwright/chromium_headless_shell-1/chrome-linux/headless_shell")
    assert find_chromium() == downloaded
    chromium = machine("bin/chromium")
    assert find_chromium() == chromium
    assert installed_chromiums() == [chromium, downloaded]
    assert find_chromium() != machine("bin/chromium-headless-shell") == find_chromium()


def test_the_variable_chromium_overrides_the_search(machine, monkeypatch):
    machine("bin/chromium")
    named = machine("elsewhere/my-browser")
    monkeypatch.setenv("CHROMIUM", named)
    assert find_chromium() == named
    monkeypatch.setenv("CHROMIUM", named + "-2")
    with pytest.raises(ConfigError, match=r"CHROMIUM='.*my-browser-2' is not an executable command"):
        find_chromium()
    assert installed_chromiums() == []
