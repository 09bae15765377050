"""Test of the pages of episodes in play, in a real browser."""

from tests.support.in_play import episode_in_play
from tests.support.viewing import at, chromium, viewing
from tests.support.web import needs_chromium

pytestmark = needs_chromium


def test_the_transcript_grows_on_the_page_until_the_episode_ends(tmp_path):
    run = tmp_path / "run"
    (run / "episodes").mkdir(parents=True)
    (run / "metrics").mkdir()
    with episode_in_play(run / "episodes") as policy, viewing(run, tmp_path) as url, chromium() as browser:
        page = browser.new_page()
        page.goto(at(url, "/run/run/running"))
        page.get_by_text("1 episode in play").wait_for()
        page.get_by_role("link", name="1", exact=True).click()
        page.get_by_text("1: turn 1 of 3").wait_for()
        page.get_by_text("Begin.").wait_for()
        policy.replies.put("good <b>morning</b>")
        page.get_by_text("good <b>morning</b>").wait_for()
        page.get_by_text("heard 1").wait_for()
        page.get_by_text("1: turn 2 of 3").wait_for()
        for _ in range(2):
            policy.replies.put("so long")
        page.get_by_text("The episode has ended.").wait_for()
        assert page.get_by_text("Begin.").count() == 1
