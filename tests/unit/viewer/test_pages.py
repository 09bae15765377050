"""Test the pages of the viewer in a real browser: deep links, a growing run, odd records, no error in the console."""

import base64
import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.support.episodes import STARTED, played
from tests.support.evaluated_games import evaluated
from tests.support.viewing import CUT, at, chromium, viewing
from tests.support.web import needs_chromium
from tests.support.what_if import replies_of
from verl_agent.evaluation.what_if.recorded import find_episode
from verl_agent.evaluation.what_if.results import SampledReply, append_results, results_file
from verl_agent.results.failures_report import analyze_failures, write_failures
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord
from verl_agent.trace.token_files import TokenRow, training_file, write_tokens
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.layout import MOST_LINKS

pytestmark = needs_chromium

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = "<script>document.title='broken'</script> {{ 7*7 }} \u202eright to left\0 \ud800" + "x" * 1_000_000


def record(step: int, sample: int, reward: float, observation: str = "hall") -> EpisodeRecord:
    meta = EpisodeMeta("train", "train", step, f"{step}-0", sample, STARTED, seconds=1.0)
    turns = [("north", observation), ("east" if sample else "west", "kitchen")]
    return played(*turns, reward=reward, meta=meta)


def append(file: Path, *records: EpisodeRecord) -> None:
    with file.open("a") as out:
        out.writelines(json.dumps(entry) + "\n" for entry in records)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    for name in ("metrics", "episodes"):
        (folder / name).mkdir(parents=True)
    append(folder / "episodes" / "a.jsonl", record(1, 0, 0.0), record(1, 1, 1.0), record(2, 0, 1.0, HOSTILE))
    (folder / "metrics" / "a.jsonl").write_text(json.dumps({"step": 1, "data": {"actor/entropy": 0.5}}) + "\n")
    seen = played(("get 2 bamboo", "Got 2 bamboo"), meta=EpisodeMeta("train", "train", 9, "9-0", 0, STARTED, 1.0))
    seen |= {"env": "textcraft", "data": {"goal": "minecraft:stick"}}
    seen["turns"][0]["media"] = [{"path": "a/1.png", "title": "before", "box": [0.25, 0.5, 0.125, 0.1]}]
    seen["turns"][0]["proposed"] = "get 9 gold"
    seen["turns"][0]["review"] = {"decision": "edited", "by": "person", "reason": "", "seconds": 2.0}
    grade = {"criterion": "goal", "weight": 1.0, "score": 0.5, "reason": "<b>half</b> of {{ it }} \u202e"}
    verdict = {"turn": 0, "score": 0.5, "reward": 0.5, "grades": [grade], "replaced": 0.25, "cost_usd": 0.0125}
    seen["judgements"] = [{**verdict, "model": "m-1"}]
    append(folder / "episodes" / "a.jsonl", seen)
    (folder / "media" / "a").mkdir(parents=True)
    (folder / "media" / "a" / "1.png").write_bytes(PIXEL)
    columns = {"advantages": [0.5, -0.5, 9.0], "entropy": [0.25, 0.125, 1.0]}
    loss_mask, turns = [False, True, True, False], [-1, 0, 1, -1]
    tokens = TokenRow("1-0", 1, 0, 1, 1, [4, 5, 6, 7], loss_mask, turns, columns)
    texts = {4: "<img src=x onerror=document.title='broken'>", 5: "north\n", 6: "\u202eeast", 7: "{{ 7*7 }}"}
    write_tokens(training_file(folder, 1), [tokens], texts.__getitem__)
    return folder


@pytest.fixture(scope="module")
def url(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with viewing(run, tmp_path_factory.mktemp("config")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        started.new_context()  # all pages share it, and with it the cache of scripts
        yield started


@pytest.fixture
def pages(url: str, browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page; an error in the browser's console fails the test."""
    opened: list[Page] = []
    errors: list[str] = []

    def open_page(path: str, offline: bool = False) -> Page:
        page = browser.new_page(offline=True) if offline else browser.contexts[0].new_page()
        opened.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.goto(path if ":" in path else at(url, path), timeout=60_000)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert errors == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "took"),
        ("/run/run?x=turns&smooth=5", "running mean"),
        ("/run/run", "No problem was found."),
        ("/run/run/episodes?step=1", "2 episodes"),
        ("/run/run/episodes?step=one", "Allowed: 3, 3..7, 3.. and ..7."),
        ("/run/run/episode/1?turn=2", "The environment ended the task."),
        ("/run/run/episode/4", "Judge: score 0.50, reward 0.5 (m-1, 0.0125 USD)"),
        ("/run/run/episode/4", "<b>half</b> of {{ it }}"),
        ("/run/run/episode/99", "No episode 99"),
        ("/run/run/episode/1" + 23 * "0", "Allowed: whole numbers from 0"),
        ("/run/run/episode/1?turn=" + 4400 * "9", "Allowed: whole numbers from 0"),
        ("/run/run/episodes?text=%00", "0 episodes"),
        ("/run/run/tokens", "Tokens are recorded of 1 episode"),
        ("/run/run/episode/2/tokens?color=entropy&turn=2", "strongest at 0.25"),
        ("/run/run/episode/2/tokens?color=values", "color='values' (value of the critic) is not recorded"),
        ("/run/run/episode/1/tokens", "the tokens of this episode are not recorded."),
        ("/run/run/group?group=1-0&step=1&purpose=train", "First different turn: 2."),
        ("/run/run/group?group=1-0&step=1&purpose=train", "mean advantage of the trained tokens: +0"),
        ("/run/run/group?group=1-0&step=1&purpose=train", "return minus mean of the group: -0.5"),
        ("/run/run/task?env=talk&task=1", "First solved at step 1, solved at 2 of 2 steps."),
        ("/run/run/episodes?wrote_observation=1..&page=2", "wrote_observation=1.."),
        ("/run/run/group", "All returns are equal in 0 of 1 group."),
        ("/run/run/task?show=solved", "first solved at step 1"),
        ("/run/run/horizon", "1..2"),
        ("/compare?a=run&a_step=1&b=run&b_step=2", "1 task on both sides"),
        ("/compare?a=run&a_step=1&b=run&b_step=2&env=talk&task=1", "step 1 sample 1 solved"),
        ("/leaderboard", "No evaluation is open."),
        ("/run/run/scaling", "contains no evaluation.json"),
        ("/run/none", "no run 'none' is open"),
    ],
)
def test_a_deep_link_shows_its_page_without_an_error(pages, path: str, text: str) -> None:
    page = pages(path)
    page.get_by_text(text).first.wait_for(timeout=20_000)


def test_a_header_with_more_runs_than_it_links_leads_to_all(browser, tmp_path):
    for number in range(MOST_LINKS + 1):
        (tmp_path / f"runs/run_{number}/metrics").mkdir(parents=True)
        (tmp_path / f"runs/run_{number}/episodes").mkdir()
        append(tmp_path / f"runs/run_{number}/episodes/a.jsonl", record(1, 0, 1.0))
        (tmp_path / f"runs/run_{number}/metrics/a.jsonl").write_text(json.dumps({"step": 1, "data": {}}) + "\n")
    with viewing(tmp_path / "runs", tmp_path / "config") as url:
        page = browser.contexts[0].new_page()
        page.goto(at(url, "/leaderboard"), timeout=60_000)
        header = page.locator("header")
        header.get_by_text(f"all {MOST_LINKS + 1} runs").wait_for(timeout=20_000)
        assert [link for link in header.get_by_role("link").all_inner_texts() if link.startswith("run_")] == [
            f"run_{number}" for number in range(MOST_LINKS)
        ]
        header.get_by_text(f"all {MOST_LINKS + 1} runs").click()
        page.get_by_text(f"run_{MOST_LINKS}").first.wait_for(timeout=20_000)
        page.close()


def test_the_keyboard_alone_reads_labels_and_filters_episodes(pages, run: Path) -> None:
    page = pages("/run/run/episodes?step=1")
    page.wait_for_function("document.activeElement.closest('tbody tr')")  # the first row gets the focus
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/episode/2?step=1")
    page.get_by_label("tags").wait_for()
    page.keyboard.press("j")
    page.wait_for_url("**turn=1")
    page.get_by_label("tags").focus()
    page.keyboard.type("good")
    page.keyboard.press("Enter")
    page.get_by_text("label saved").wait_for()
    page.get_by_label("tags").blur()
    page.keyboard.press("6")
    page.get_by_text("good (1)").wait_for(timeout=20_000)
    assert json.loads((run / "labels.json").read_text())["episodes"][0]["tags"] == ["good"]
    page.keyboard.press("?")
    page.get_by_text("2: Episodes").wait_for()


def test_an_exported_page_opens_without_a_network(pages, tmp_path: Path) -> None:
    append(tmp_path / "episodes.jsonl", record(1, 0, 0.0, HOSTILE), record(1, 1, 1.0))
    export_episodes([tmp_path / "episodes.jsonl"], tmp_path / "page.html")
    page = pages((tmp_path / "page.html").as_uri(), offline=True)
    page.get_by_label("search").fill("terminated")
    page.get_by_text("2 of 2 episodes").wait_for()
    page.locator("tbody tr[data-episode]").first.focus()
    page.keyboard.press("Enter")
    page.locator("#shown").get_by_text("<script>document.title='broken'</script> {{ 7*7 }} ⟨RLO⟩").first.wait_for()
    page.keyboard.press("n")
    page.locator("#shown").get_by_text("kitchen").first.wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("1 group.").wait_for()
    assert page.title() == "episodes.jsonl"


def test_hostile_text_is_shown_and_not_executed(pages) -> None:
    page = pages("/run/run/episode/3")
    shown = page.get_by_text("<script>document.title='broken'</script> {{ 7*7 }} ⟨RLO⟩right to left␀ \ufffdx").first
    shown.wait_for(timeout=20_000)
    assert len(shown.inner_text()) < 30_000
    assert "broken" not in page.title()


def test_a_page_follows_a_run_that_grows(pages, run: Path) -> None:
    page = pages("/run/run/episodes?step=7")
    page.get_by_text("0 episodes").wait_for(timeout=20_000)
    append(run / "episodes" / "b.jsonl", record(7, 0, 0.0))
    page.get_by_text("1 episode", exact=True).wait_for(timeout=20_000)


def test_a_torn_line_is_shown_once_it_is_complete(pages, run: Path) -> None:
    line = json.dumps(record(8, 1, 0.0)) + "\n"
    file = run / "episodes" / "c.jsonl"
    file.write_text(json.dumps(record(8, 0, 0.0)) + "\n" + line[:100])
    page = pages("/run/run/episodes?step=8")
    page.get_by_text("1 episode", exact=True).wait_for(timeout=20_000)
    with file.open("a") as out:
        out.write(line[100:])
    page.get_by_text("2 episodes").wait_for(timeout=20_000)
    assert page.get_by_text("left out").count() == 0


def test_an_error_of_the_viewer_is_shown_on_its_page_alone(pages, run: Path) -> None:
    page = pages("/run/run/labels")
    page.get_by_text("No episode is labelled.").or_(page.get_by_text("good (1)")).wait_for(timeout=20_000)
    with closing(sqlite3.connect(run / ".viewer" / "run.sqlite", timeout=20)) as index:
        index.execute("ALTER TABLE labels RENAME TO away")
        append(run / "episodes" / "b.jsonl", record(6, 0, 0.0))
        message = "This page has failed: OperationalError: no such table: labels"
        page.get_by_text(message).first.wait_for(timeout=20_000)
        pages("/run/run/labels").get_by_text(message).wait_for(timeout=20_000)
        pages("/run/run/episodes?step=6").get_by_text("1 episode", exact=True).wait_for(timeout=20_000)
        index.execute("ALTER TABLE away RENAME TO labels")
    pages("/run/run/labels").get_by_text("label").first.wait_for(timeout=20_000)


def test_tokens_are_text_with_colors_and_their_values_under_the_mouse(pages) -> None:
    page = pages("/run/run/episode/2")
    page.get_by_role("link", name="tokens", exact=True).click()
    page.get_by_text("onerror=document.title").wait_for(timeout=20_000)
    spans = page.locator(".token-text span")
    assert spans.all_inner_texts()[0].startswith("<img") and spans.all_inner_texts()[2] == "⟨RLO⟩east"
    colors = spans.evaluate_all("spans => spans.map(span => span.style.backgroundColor)")
    assert colors == ["", "rgba(0, 114, 178, 0.65)", "rgba(213, 94, 0, 0.65)", ""]
    spans.nth(1).hover()
    shown = page.locator(".token-tip").inner_text()
    assert "advantage: 0.5" in shown and "turn: 1" in shown and "in the loss: True" in shown
    assert "broken" not in page.title()
    page.get_by_text("Means of each turn").click()
    page.locator(".table tr").nth(1).wait_for()
    assert page.locator(".table tr").all_inner_texts()[1].split() == ["1", "1", "1", "0.5", "0.25"]


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve two evaluations, one of them with an error analysis; yield the URL."""
    folder = tmp_path_factory.mktemp("evaluations")
    with ThreadPoolExecutor(1) as threads:  # the browser's event loop runs in this one
        list(threads.map(lambda name: evaluated(folder / name, name, samples=2), ("cheap", "expensive")))
    write_failures(*analyze_failures(folder / "cheap"), folder / "cheap")
    with viewing(folder, tmp_path_factory.mktemp("config")) as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("width", [400, 1400])
def test_no_page_scrolls_sideways_and_no_text_is_cut(pages, url, evaluations, run: Path, tmp_path: Path, width) -> None:
    file = tmp_path / "page.html"
    export_episodes([run], file)
    episode, group = "/run/run/episode/4", "/run/run/group?group=1-0&step=1&purpose=train"
    shown = ["/", "/run/run", "/run/run/episodes", episode, "/run/run/group", group, "/run/run/task", "/compare"]
    shown += ["/run/run/task?env=talk&task=1", "/run/run/horizon", "/run/run/labels", "/run/run/tokens", "/leaderboard"]
    shown += [
        "/run/run/episode/2/tokens",
        "/run/run/control",
        "/run/run/control/1?name=ada",
        "/run/run/running",
        f"file://{file}",
    ]
    shown += ["/compare?a=run&a_step=1&b=run&b_step=2&env=talk&task=1"]
    of_evaluations = ("/", "/leaderboard", "/run/cheap", "/run/cheap/scaling", "/run/cheap/failures", "/compare")
    shown += [at(evaluations, path) for path in of_evaluations]
    page = pages("/")
    page.set_viewport_size({"width": width, "height": 800})
    for path in shown:
        page.goto(path if ":" in path else at(url, path), timeout=120_000)
        page.wait_for_load_state("networkidle", timeout=120_000)
        wide = page.evaluate("document.scrollingElement.scrollWidth")
        assert wide <= width, f"{path} is {wide} pixels wide"
        assert page.evaluate(CUT) == [], path


def test_each_page_has_a_heading_a_title_and_a_name_for_each_control(pages) -> None:
    group = "/run/run/group?group=1-0&step=1&purpose=train"
    shown = ["/", "/run/run", "/run/run/episodes?step=1", "/run/run/episode/4", "/run/run/group", group, "/compare"]
    shown += ["/run/run/task", "/run/run/task?env=talk&task=1", "/run/run/horizon", "/run/run/labels", "/leaderboard"]
    shown += ["/run/run/tokens", "/run/run/episode/2/tokens", "/run/run/control", "/run/run/running"]
    titles = {}
    for path in shown:
        page = pages(path)
        page.locator("h1").wait_for(timeout=20_000)
        titles[path] = page.title()
        assert page.locator("h1").all_inner_texts() == [page.title().removesuffix(" · verl-agent")], path
        assert page.evaluate(UNNAMED) == [], path
        page.close()
    assert len(set(titles.values())) == len(titles), titles


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "No episode and no metric is recorded yet."),
        ("/episodes", "0 episodes"),
        ("/group", "No group is recorded."),
        ("/task", "0 tasks"),
        ("/horizon", "No training episode is recorded yet."),
        ("/tokens", "No tokens are recorded."),
        ("/labels", "No episode is labelled."),
        ("/running", "No episode is in play"),
    ],
)
def test_a_page_of_a_run_without_records_says_so(pages, empty: str, path: str, text: str) -> None:
    pages(at(empty, f"/run/empty{path}")).get_by_text(text).first.wait_for(timeout=20_000)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a run that has recorded nothing yet; yield the URL."""
    folder = tmp_path_factory.mktemp("empty") / "empty"
    (folder / "metrics").mkdir(parents=True)
    with viewing(folder, folder.parent) as found:
        yield found


UNNAMED = """() => [...document.querySelectorAll('button, a, input')].filter(control => {
  if (!control.offsetParent) return false;
  const copy = (control.closest('label') ?? control).cloneNode(true);
  copy.querySelectorAll('[aria-hidden=true], i').forEach(icon => icon.remove());
  return !(control.ariaLabel || control.title || control.labels?.[0]?.textContent.trim() || copy.textContent.trim() ||
    copy.querySelector('img[alt]'));
}).map(control => control.outerHTML.slice(0, 200))"""
"""Script that returns the controls without a name, which a screen reader would not announce."""


def test_a_page_follows_the_colors_of_the_system(pages) -> None:
    page = pages("/run/run")
    page.get_by_text("Success (share of episodes)").wait_for(timeout=20_000)
    look = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    light = page.evaluate(look)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.body.classList.contains('body--dark')")
    assert page.evaluate(look) == ["rgb(20, 23, 27)", "rgb(231, 234, 238)"] != light
    text = page.locator(".nicegui-echart svg text").first
    assert text.evaluate("text => getComputedStyle(text).fill") == "rgb(163, 173, 185)"


def test_the_color_of_tokens_is_part_of_the_url(pages) -> None:
    page = pages("/run/run/episode/2/tokens")
    page.get_by_label("color").click()
    page.get_by_role("option", name="entropy").click()
    page.get_by_text("strongest at 0.25").wait_for(timeout=20_000)
    page.wait_for_url("**/tokens?color=entropy")
    colors = page.locator(".token-text span").evaluate_all("spans => spans.map(span => span.style.backgroundColor)")
    assert colors[1:] == ["rgba(0, 114, 178, 0.65)", "rgba(0, 114, 178, 0.325)", ""]


def test_a_turn_shows_the_commands_that_ask_it_and_their_answers_when_they_come(pages, run: Path) -> None:
    page = pages("/run/run/episode/3?turn=2")
    panel = page.locator("#turn-2")
    panel.get_by_text("Why this action?").click()
    panel.get_by_text(f"verl-agent what-if {run}/episodes/a.jsonl:3 --turn 2 --oracle").wait_for(timeout=20_000)
    recorded = find_episode(f"{run}/episodes/a.jsonl:3")
    replies = [SampledReply(text="<b>Go</b>", action=action, tokens=1) for action in ("west", "<i>up</i>")]
    append_results(results_file(recorded.file), [replies_of(recorded, 2, replies)])
    panel.get_by_text("Why this action? (2 replies)").wait_for(timeout=20_000)
    panel.get_by_text("2 replies of m, temperature 1").wait_for(timeout=20_000)
    answers = panel.get_by_text("2 replies of m, temperature 1").inner_text()
    assert "west (recorded)" in answers and "<i>up</i>" in answers
    assert answers.count("0.500 [0.095, 0.905]") == 2


def test_a_command_is_copied(url: str, browser: Browser, run: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(at(url, "/run/run/episode/1?turn=1"))
    panel = page.locator("#turn-1")
    panel.get_by_text("Why this action?").click()
    panel.get_by_label("copy the command").nth(2).click()
    command = f"verl-agent what-if {run}/episodes/a.jsonl:1 --turn 1 --oracle"
    page.wait_for_function("command => navigator.clipboard.readText().then(text => text === command)", arg=command)
    context.close()


def test_a_replay_shows_turn_after_turn_until_the_last(pages) -> None:
    page = pages("/run/run/episode/1")
    page.get_by_label("speed of the replay").click()
    page.get_by_role("option", name="0.5 s a turn").click()
    button = page.get_by_role("button", name="replay")
    button.click()
    for turn in (1, 2):
        page.wait_for_url(f"**/episode/1?turn={turn}")
    button.get_by_text("play_arrow").wait_for()  # it has stopped at the last turn


def test_a_run_with_a_critic_compares_its_values_with_the_returns(pages, run: Path) -> None:
    sections = {"env": {"name": "talk"}, "horizon": {"max_turns": [4]}, "episode": {"max_tokens_per_turn": 8}}
    (run / "run.json").write_text(json.dumps({"version": 2, "agent": {"name": "act"}, **sections}))
    values = TokenRow("1-0", 1, 0, 1, 1, [5, 6, 7], [True] * 3, [-1, 0, 1], {"values": [0.5, 0.75]})
    write_tokens(training_file(run, 1), [values], str)
    page = pages("/run/run?critic=1")
    text = "2 turns of 1 task: all returns are equal; predictions are 0.375 below the return on average."
    page.get_by_text(text).wait_for(timeout=20_000)
    page = pages("/run/run?critic=7")
    page.get_by_text("critic='7' is not a step with values. Allowed: 1.").wait_for(timeout=20_000)


def test_an_episode_shows_the_drawings_and_images_of_its_environment(pages) -> None:
    page = pages("/run/run/episode/4")
    page.get_by_text("✓ 2 bamboo").wait_for(timeout=20_000)
    image = page.locator("img[src='/run/run/media/a/1.png']")
    image.wait_for()
    assert image.evaluate("image => image.naturalWidth") == 1, "the file was served"
    mark = page.locator("#turn-1 .marked")
    assert mark.evaluate("mark => [mark.style.left, mark.style.height]") == ["25%", "10%"]
    page.locator("#turn-1").get_by_text("edited by the person (2.0 s)").wait_for()
    page.locator("#turn-1").get_by_text("get 9 gold").wait_for()
    page.close()
