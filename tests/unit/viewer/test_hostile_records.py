"""Pages of records whose every text is hostile: each is served, and nothing in it acts."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.episodes import played
from tests.support.hostile import ACTION
from tests.support.viewing import at, viewing
from verl_agent.trace.turn_record import to_turn_record
from verl_agent.types import Reply, StepResult, Turn
from verl_agent.viewer.access import HEADERS

NAME = "name \x1b[2J\u202e\ud800\n"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200d\u202a-\u202e\u2066\u2067\ud800-\udfff]|\\\\u00[01]")
"""Characters that act on a page, as they are or as JSON writes them; isolates stand around names from the right."""
PAGES = (
    *("/", "/run/run", "/run/run/episodes", "/run/run/episode/1", "/run/run/episode/1?turn=1", "/run/run/tokens"),
    *("/run/run/group", "/run/run/running", "/run/run?metric=actor/%3C%2Fscript%3E"),
    *("/run/run/tasks", "/run/run/labels", "/run/run/failures", "/run/run/horizon", "/compare", "/leaderboard"),
)


def hostile_record(**fields: Any) -> dict[str, Any]:
    record = {**played((ACTION, ACTION), (ACTION, ACTION), first=ACTION), **fields}
    for turn in record["turns"]:
        turn["info"] = {NAME: 1.0, ACTION: 2.0}
        turn["proposed"] = ACTION
        turn["review"] = {"decision": "edited", "by": "person", "reason": ACTION, "seconds": 1.0}
    return record | {"task": NAME, "category": ACTION, "model": ACTION, "error": ACTION}


@pytest.mark.timeout(300)
def test_every_page_shows_hostile_records_as_text(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("episodes", "metrics"):
        (run / name).mkdir(parents=True)
    records = (hostile_record(sample=number, group=f"group {ACTION}") for number in range(2))
    (run / "episodes" / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    names = (f"actor/{NAME}", f"val-core/{ACTION}/reward/mean@1", "actor/grad\u200b_norm", "actor/</script>")
    lines = (json.dumps({"step": step, "data": dict.fromkeys(names, 0.5)}) for step in (1, 2))
    (run / "metrics" / "20260101T000000.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with viewing(run, tmp_path / "config") as url:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(url).close()
        shown = 0
        for page in PAGES:
            try:
                answer = browser.open(at(url, page))
            except urllib.error.HTTPError as error:
                assert error.code == 404, (page, error.code, error.read()[:500])
                continue
            text = answer.read().decode("utf-8", "surrogatepass")
            found = [text[max(0, one.start() - 60) : one.end() + 20] for one in ACTING.finditer(text)]
            assert found == [], page
            shown += "␛[2J" in text
        assert shown >= 2


def test_names_of_measurements_are_recorded_as_visible_text() -> None:
    turn = Turn(Reply("a"), "a", StepResult("seen", info={NAME: 1.0, "x\u200b": 2, "x⟨ZWSP⟩": 3}), 0.0, 0.0)
    assert to_turn_record(turn)["info"] == {"name ␛[2J⟨RLO⟩\ufffd␊": 1.0, "x⟨ZWSP⟩": 5.0}


class Kept(urllib.request.HTTPRedirectHandler):
    """Opener that follows no redirect."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("change", "headers", "code"),
    [
        (lambda url: url, {}, 303),
        (lambda url: url.partition("?")[0], {}, 403),
        (lambda url: url, {"Host": "evil.example"}, 403),
        (lambda url: url, {"Host": "[::1"}, 403),
        (lambda url: url, {"Origin": "http://evil.example"}, 403),
        (lambda url: url.replace("token=", "token=x"), {}, 403),
    ],
)
def test_refusals_and_redirects_have_the_headers_of_every_answer(url: str, change, headers, code) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.build_opener(Kept()).open(urllib.request.Request(change(url), headers=headers))
    assert caught.value.code == code
    assert {name: caught.value.headers[name] for name in HEADERS} == HEADERS


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "episodes.jsonl").write_text(json.dumps(played(("north", "hall"))) + "\n")
    with viewing(folder, folder / "config") as found:
        yield found
