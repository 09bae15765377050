"""Task that is being played: its sites, its browser session, and the last page that the model has seen."""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from env_adapters.webarena.browser.grammar import BrowserAction, PageActionError, parse_action
from env_adapters.webarena.browser.pager import Pager
from env_adapters.webarena.browser.pool import BrowserPool, RefusedStateError, browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.browser.snapshot import Snapshot
from env_adapters.webarena.grading import verified
from env_adapters.webarena.grading.evaluators import evaluate
from env_adapters.webarena.grading.judge import EndpointJudge
from env_adapters.webarena.grading.redundancy import RedundancyTracker
from env_adapters.webarena.grading.strict import FinalState
from env_adapters.webarena.options import MAX_COST, EconomyOptions, ViewOptions
from env_adapters.webarena.tasks.site_urls import SiteEnvironment
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import Box, Media, StepResult, TaskItem


class ScreenshotFolder:
    """Folder with the screenshots of one episode.

    Its name holds the task and the second (UTC) at which the episode began, as `started_at` in the episode's record.
    `actions.txt` has one line for each step, which tells apart episodes of the same task that began together.
    """

    def __init__(self, root: Path, task: str) -> None:
        started_at = datetime.now(UTC)
        name = re.sub(r"[^\w.-]", "_", task)
        self.folder = root.expanduser() / f"{name}-{started_at:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        self.folder.mkdir(parents=True)

    def record_action(self, step: int, action: str) -> None:
        """Append the action of a step to `actions.txt`; the first step is 1."""
        with (self.folder / "actions.txt").open("a", encoding="utf-8") as file:
            file.write(f"{step:03} {' '.join(action.split())}\n")

    def path(self, step: int) -> Path:
        """Return the path of the screenshot taken after a step; step 0 is the start."""
        return self.folder / f"{step:03}.png"

    def media(self, step: int, action: str, box: Box | None) -> list[Media]:
        """Return the screenshots before and after a step that were written.

        Args:
            box: place of the element that the action used, on the screenshot before it.
        """
        earlier = [one for one in range(step) if self.path(one).is_file()]
        pair = [Media(self._name(earlier[-1]), f"before: {action[:100]}", box)] if earlier else []
        return [*pair, Media(self._name(step), "after")] if self.path(step).is_file() else pair

    def _name(self, step: int) -> str:
        return f"{self.folder.name}/{self.path(step).name}"


SAME_PAGE_ACTIONS = ("click", "type", "hover", "press")
"""Actions after which the same segment of a long text is shown if the URL is unchanged, for example in a form."""
MAX_LINE = 400
"""Characters of a line of an observation; longer lines are truncated."""
ENDED = "The task has ended."
GAVE_UP = "The episode ends: too many actions in a row changed nothing."


async def open_task(
    item: TaskItem, sites: SiteEnvironment, view: ViewOptions, economy: EconomyOptions, judge: EndpointJudge | None
) -> "OpenTask":
    """Open the start pages of a task in a fresh browser context; the sites are released after an error.

    Raises:
        ConfigError: the browser rejects the login of the task.
        EnvError: the browser or a site failed.
    """
    async with AsyncExitStack() as resources:
        resources.push_async_callback(lambda: asyncio.shield(asyncio.to_thread(sites.release)))
        log = None
        if verified.KIND in item.data["eval"]["eval_types"]:
            log = Path(resources.enter_context(TemporaryDirectory(prefix="webarena_log_"))) / "network.har"
        session = BrowserSession(_pool(), sites.routes, view.page_view, log)
        resources.push_async_callback(lambda: _pool().run(session.close()))
        try:
            snapshot = await _pool().run(session.start(sites.start_urls(item), sites.storage_state))
        except RefusedStateError as error:
            raise ConfigError(
                f"task {item.id} cannot start with the login {sites.login_file or 'of its site'}: {error}. Create it "
                "again with WebArena's auto_login."
            ) from error
        screenshots = None if view.screenshots is None else ScreenshotFolder(Path(view.screenshots), item.id)
        task = OpenTask(item, sites, session, snapshot, Pager(view.max_chars), economy, judge, screenshots)
        task.show(snapshot)
        task.tracker.start(task.state)
        task.resources = resources.pop_all()
    return task


@dataclass(slots=True)
class OpenTask:
    """Task that is being played.

    Attributes:
        snapshot: last snapshot of the page.
        pager: segment of the page's text that is shown.
        economy, judge: see `WebArena`.
        screenshots: folder for the screenshots; None for none.
    """

    item: TaskItem
    sites: SiteEnvironment
    session: BrowserSession
    snapshot: Snapshot
    pager: Pager
    economy: EconomyOptions
    judge: EndpointJudge | None
    screenshots: ScreenshotFolder | None
    tracker: RedundancyTracker = field(default_factory=RedundancyTracker)
    steps: int = 0
    total_cost: float = 0.0
    previous_action: str = "None"
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def by_log(self) -> bool:
        """True if the network log of the browser decides on the reward."""
        return self.session.network_log is not None

    @property
    def state(self) -> str:
        """Everything that the model sees of a page."""
        return f"{self.snapshot.url}\n{self.snapshot.text}\n{self.pager.start}"

    async def step(self, action: str) -> StepResult:
        """Carry out one action; after a result that terminates, only `close` may follow."""
        self.steps += 1
        if self.screenshots is None:
            return await self._carry_out(action)
        self.screenshots.record_action(self.steps, action)
        box, result = self._box(action), await self._carry_out(action)
        return replace(result, media=self.screenshots.media(self.steps, action, box))

    async def close(self) -> None:
        """Close the session and release the sites."""
        await self.resources.aclose()

    def observation(self, notes: Sequence[str]) -> str:
        lines = [f"NOTE: {note}" for note in notes]
        lines += ["OBSERVATION:", shorten(self.snapshot.tabs, MAX_LINE), "", self.pager.text]
        lines += [f"URL: {shorten(self.snapshot.url, MAX_LINE)}", f"OBJECTIVE: {self.item.data['intent']}"]
        return "\n".join([*lines, f"PREVIOUS ACTION: {self.previous_action}"])

    def show(self, snapshot: Snapshot, same_page: bool = False) -> None:
        """Show a snapshot in the pager; `same_page` keeps the current segment if the URL is unchanged."""
        unchanged = same_page and self.snapshot.url == snapshot.url
        self.pager.show([shorten(line, MAX_LINE) for line in snapshot.page.lines], unchanged)
        self.snapshot = snapshot

    async def take_screenshot(self) -> None:
        """Write a screenshot of the present step, if screenshots are wanted."""
        if self.screenshots is not None:
            await _pool().run(self.session.screenshot(self.screenshots.path(self.steps)))

    async def _carry_out(self, action: str) -> StepResult:
        try:
            parsed = parse_action(action)
        except PageActionError as error:  # the page is unchanged, so it is not read again
            return self._refuse(action, error)
        if parsed.kind == "stop":
            return await self._stop(parsed.text)
        self.previous_action = self._describe(parsed)
        if parsed.kind == "scroll" and self.pager.turn(parsed.text):
            return self._continue((), dict(self.tracker.record(parsed, self.state)))
        try:
            snapshot = await _pool().run(self.session.act(parsed))
        except PageActionError as error:
            self.show(await _pool().run(self.session.observe()))
            return self._refuse(action, error)
        self.show(snapshot, parsed.kind in SAME_PAGE_ACTIONS)
        await self.take_screenshot()
        info = dict(self.tracker.record(parsed, self.state))
        if self.session.network_proxy.traffic.refusals:
            info["refused_requests"] = float(self.session.network_proxy.traffic.take_refusals())
        return self._continue(snapshot.notes, info)

    def _refuse(self, action: str, error: PageActionError) -> StepResult:
        """Return the result of an action that was not carried out."""
        info = {"invalid_action": 1.0, **self.tracker.record_refused(" ".join(action.split()), self.state)}
        return self._continue((str(error),), info)

    def _continue(self, notes: Sequence[str], info: dict[str, float]) -> StepResult:
        """Return the result of an action other than `stop`; too many redundant actions end the episode."""
        cost = self._charge(info)
        if self.economy.end_after is not None and self.tracker.consecutive >= self.economy.end_after:
            return StepResult(GAVE_UP, 0.0 - cost, terminated=True, info=info | {"gave_up": 1.0})
        return StepResult(self.observation(notes), 0.0 - cost, info=info)

    async def _stop(self, answer: str) -> StepResult:
        """Return the result of the action `stop`, with the score of the final state."""
        log = self.session.network_log
        score = await (self._score_state(answer) if log is None else self._score_log(answer, log))
        return StepResult(ENDED, score - self._charge({}), terminated=True)

    async def _score_state(self, answer: str) -> float:
        sites, snapshot = self.sites, self.snapshot
        final = FinalState(
            answer, self.session, self.item.data["intent"], sites.urls_by_placeholder, snapshot.taken_at, sites.changes
        )
        await _pool().run(self.session.ensure_tab())
        return await _pool().run(evaluate(sites.fill_urls(self.item.data["eval"]), final, self.judge))

    async def _score_log(self, answer: str, log: Path) -> float:
        """Close the browser session, which writes its network log, and return the score of WebArena-Verified."""
        self.session.check()
        await _pool().run(self.session.close())
        if not log.is_file():
            raise EnvError("the browser wrote no network log.")
        return await asyncio.to_thread(verified.score, self.item.data["task_id"], answer, log, self.sites.urls)

    def _charge(self, info: Mapping[str, float]) -> float:
        """Return the cost of an action and add it to the total, which is at most `MAX_COST`."""
        cost = self.economy.step_cost + self.economy.redundant_cost * info.get("redundant_action", 0.0)
        cost = min(cost, MAX_COST - self.total_cost)
        self.total_cost += cost
        return cost

    def _describe(self, action: BrowserAction) -> str:
        """Return an action with the description of its element, in WebArena's format."""
        element = self.session.element(action.element_id)
        explanation = f" where [{action.element_id}] is {element.description}" if element else ""
        return shorten(f"{action}{explanation}", MAX_LINE)

    def _box(self, action: str) -> Box | None:
        """Return the place of the element that an action names."""
        with suppress(PageActionError):
            element = self.session.element(parse_action(action).element_id)
            return element.box(self.session.view.size) if element else None
        return None


def _pool() -> BrowserPool:
    return browser_pool(BrowserLimits())
