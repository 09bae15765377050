"""Test that the code of the pages runs, and that their commands fit the programs."""

import re
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

import verl_agent as va
from tests import ROOT
from tests.support.composing import grpo_base
from tests.support.episodes import talk
from tests.support.pages import CODE, TARGETS, Block, blocks, commands, fault, toml_fault
from verl_agent.config.checks import check_keys
from verl_agent.trace.record_files import EpisodeWriter

MAX_WORDS = 49_100
README_WORDS = {"README.md": 900, "CONTRIBUTING.md": 1_200}
SCREEN = 300
"""Most words of a README in a folder."""
LISTED = subprocess.check_output(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, text=True
).split()
PAGES = [ROOT / name for name in LISTED if name != "CHANGELOG.md" and (ROOT / name).is_file()]
MEASURED = ROOT / "docs/results/studies"
"""Reports that `docs/publish_studies.py` writes: tables of numbers, which grow with the studies."""
TABLE = re.compile(r"<!-- studies -->.*<!-- end of studies -->", re.DOTALL)
"""Table of claims that it writes into the results."""
RUN = [block for block in blocks(PAGES, "python") if not block.not_run]


def words(page: Path) -> int:
    """Return the number of words of a page; marks of tables and lists, and the written table, do not count."""
    text = TABLE.sub("", page.read_text(encoding="utf-8"))
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with records as the pages name them."""
    root = tmp_path_factory.mktemp("reader")
    for path in (
        "textcraft_quickstart/episodes/1.jsonl",
        "textcraft_eval/episodes.jsonl",
        "eval/oracle/episodes.jsonl",
    ):
        with EpisodeWriter(root / "runs" / path) as writer:
            writer.write(talk("a b", reward=1.0, task="1", purpose="validation"))
            writer.write(talk("a b c", reward=0.0, task="2", purpose="validation"))
    metrics = root / "runs/textcraft_quickstart/metrics/1.jsonl"
    metrics.parent.mkdir()
    metrics.write_text('{"step": 1, "data": {"episode/success_rate": 0.5}}\n')
    return root


@pytest.mark.parametrize("block", RUN, ids=map(str, RUN))
def test_python_block_of_a_page_runs(block: Block, folder):
    with chdir(folder):
        exec(compile(block.text, block.page, "exec"), {"__name__": "page"})


def test_environment_of_the_readme_fulfils_the_contract():
    names: dict[str, type[va.EnvAdapter]] = {}
    exec(next(block.text for block in RUN if block.page == "README.md" and "EnvAdapter" in block.text), names)
    env = names["Parity"]()
    task = env.tasks("train")[3]
    assert va.play_sync(task, env, policy=lambda messages: "Action: odd", max_turns=2).success


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_fit_the_programs(page):
    found = [(words, fault(words)) for block in blocks([page], "bash") for words in commands(block.text)]
    assert [f"{' '.join(words)}: {wrong}" for words, wrong in found if wrong] == []


def test_files_that_the_text_names_exist():
    """A file of an earlier commit is named with that commit."""
    named = re.compile(r"`((?:verl_agent|env_adapters|tests|examples|recipes)/[\w/.-]+)`(?! of commit)")
    found = {(str(page.relative_to(ROOT)), name) for page in PAGES for name in named.findall(page.read_text("utf-8"))}
    assert [one for one in sorted(found) if not (ROOT / one[1]).exists()] == []


def test_make_targets_in_the_text_exist():
    named = {
        (page.name, word)
        for page in PAGES
        for code in CODE.findall(page.read_text("utf-8"))
        for word in code.split()[1:2]
        if code.startswith("make ")
    }
    assert [one for one in sorted(named) if one[1] not in TARGETS and "=" not in one[1]] == []


def test_settings_of_the_pages_are_known():
    for block in blocks(PAGES, "yaml"):
        values = yaml.safe_load(block.text)
        if not block.not_run and not {"rules", "question", "install"} & set(values):
            check_keys(OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(grpo_base())), values), "agent_base")


def test_toml_of_the_pages_is_valid():
    assert [str(block) for block in blocks(PAGES, "toml") if toml_fault(block.text)] == []


def test_pages_stay_short():
    assert sum(words(page) for page in PAGES if MEASURED not in page.parents) <= MAX_WORDS
    ours = [page for page in PAGES if page.parts[len(ROOT.parts)] != "docs"]
    long = {str(page.relative_to(ROOT)): words(page) for page in ours}
    assert {name: count for name, count in long.items() if count > README_WORDS.get(name, SCREEN)} == {}


def test_way_to_an_own_environment_is_short():
    assert words(ROOT / "docs/start/install.md") + words(ROOT / "docs/start/own-environment.md") <= 1_500


def test_unknown_commands_are_detected():
    assert fault(["verl-agent", "fly"]) == "verl-agent has no command 'fly'"
    assert "No such option" in (fault(["verl-agent", "view", "runs", "--explode"]) or "")
    assert fault(["make", "coffee"]) == "make has no target ['coffee']"
    assert "no.such" in (fault(["verl-agent", "train", "recipes/textcraft/grpo_cpu.yaml", "+no.such=1"]) or "")
    assert fault(["pip", "install", "verl-agent[nothing]"]) == "setup.py has no extra {'nothing'}"


def test_readme_names_the_two_commands_of_a_fresh_machine_and_ci_runs_the_tests_by_it():
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("```bash\n")[2].partition("```")[0]
    assert [line.partition("#")[0].strip() for line in first.splitlines()] == ["make quickstart", "make test"]
    assert re.search(r"^[^#\n]*\bmake test\b", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
