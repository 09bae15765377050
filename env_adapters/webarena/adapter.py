"""WebArena: tasks on web sites in a real browser, played by actions on numbered elements. Needs Chromium."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from env_adapters.webarena.browser.grammar import Action, ActionError, parse_action
from env_adapters.webarena.browser.pager import Pager
from env_adapters.webarena.browser.pool import BrowserPool, RefusedStateError, browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.browser.screenshots import ScreenshotFolder
from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.browser.snapshot import Snapshot
from env_adapters.webarena.browser.targets import describe_action
from env_adapters.webarena.browser.tools import TOOLS
from env_adapters.webarena.grading import verified
from env_adapters.webarena.grading.evaluators import FinalState, evaluate
from env_adapters.webarena.grading.judge import EndpointJudge
from env_adapters.webarena.grading.redundancy import RedundancyTracker
from env_adapters.webarena.options import MAX_COST, AccessOptions, EconomyOptions, ViewOptions
from env_adapters.webarena.tasks import items
from env_adapters.webarena.tasks.site_urls import SiteEnvironment
from env_adapters.webarena.tasks.sources import SourceOptions, TaskSource, make_source, source_requirements
from env_adapters.webarena.tasks.splits import SPLITS
from verl_agent.envs.action_format import FenceFormat
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.base import EnvAdapter, Hosting, Oracle, Requirement
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError
from verl_agent.sections import section
from verl_agent.types import Box, DemoAction, Message, StepResult, TaskItem

PROMPTS = ("full", "short")
SAME_PAGE_ACTIONS = ("click", "type", "hover", "press")
"""Actions after which the same segment of a long text is shown if the URL is unchanged, for example in a form."""
MAX_LINE = 400
"""Characters of a line of an observation; longer lines are truncated."""
ENDED = "The task has ended."
GAVE_UP = "The episode ends: too many actions in a row changed nothing."


class WebArena(EnvAdapter):
    """Tasks on web sites. Reward 1 if the evaluators accept the final state, else 0; the action `stop` terminates.

    If `economy` sets costs, they take at most half of the reward, and a task counts as solved from 0.5.
    """

    splits = tuple(SPLITS)
    names_elements = True
    action_format = FenceFormat(TOOLS, "click [id]")
    # The sessions of a host share its browsers and one event loop, so their calls need only one thread, which waits.
    hosting = Hosting(threads=1, sessions=32, busy=16, episodes=4000, memory_mb=12288)

    def __init__(
        self,
        tasks: str = items.ENV,
        sites: Mapping[str, str] | None = None,
        access: Mapping[str, Any] | None = None,
        view: Mapping[str, Any] | None = None,
        economy: Mapping[str, Any] | None = None,
        judge: Mapping[str, str] | None = None,
        prompt: str = "full",
    ) -> None:
        """Configure the tasks, their sites and the observations.

        Args:
            tasks: name of a task source (`webarena`, `webarena_verified`, `embedded`, `miniwob`), or path of a file
                in WebArena's format.
            sites: URL of each site by its name; tasks that need other sites are left out.
            access: options of `AccessOptions`.
            view: options of `ViewOptions`.
            economy: options of `EconomyOptions`.
            judge: options of `EndpointJudge` for free-text answers; None to use a rule.
            prompt: `full` explains the actions, `short` only lists them, for small models.
        """
        if prompt not in PROMPTS:
            raise ConfigError(f"env.options.prompt={prompt!r} is not allowed. Allowed: {', '.join(PROMPTS)}.")
        self.prompt = prompt
        self.access = section("env.options.access", AccessOptions, access or {})
        self.view = section("env.options.view", ViewOptions, view or {})
        self.economy = section("env.options.economy", EconomyOptions, economy or {})
        self.judge = None if judge is None else section("env.options.judge", EndpointJudge, judge)
        self.source: TaskSource = make_source(SourceOptions(tasks, sites, self.access))
        self.splits, self.success_reward = tuple(self.source.splits), self.economy.success_reward
        self.deterministic = self.source.deterministic
        self.item: TaskItem | None = None
        self.session: BrowserSession | None = None
        self.log_folder: TemporaryDirectory[str] | None = None
        self.site_environment: SiteEnvironment | None = None
        self.snapshot: Snapshot | None = None
        self.pager = Pager(self.view.max_chars)
        self.screenshots: ScreenshotFolder | None = None

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        """Return the browser, the packages of tasks, and the program of the embedded code site."""
        return source_requirements()

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the items of `split`.

        Raises:
            ConfigError: the options do not allow the tasks to be played.
        """
        if split not in EnvAdapter.splits:  # the source explains why it has no tasks for these two
            self.check_split(split)
        self.source.check()
        return self.source.items(split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Open the start pages of a task in a fresh browser context and return the task with the first observation."""
        await self.close()
        self.item, self.tracker, self.steps, self.total_cost = item, RedundancyTracker(), 0, 0.0
        self.previous_action = "None"
        self.site_environment = await self.source.open(item)
        by_log = verified.KIND in item.data["eval"]["eval_types"]
        self.log_folder = TemporaryDirectory(prefix="webarena_log_") if by_log else None
        log = None if self.log_folder is None else Path(self.log_folder.name) / "network.har"
        self.session = BrowserSession(self._browser_pool(), self.site_environment.routes, self.view.page_view, log)
        start = self.session.start(self.site_environment.start_urls(item), self.site_environment.storage_state)
        try:
            snapshot = self._keep(await self._browser_pool().run(start))
        except RefusedStateError as error:
            raise ConfigError(
                f"task {item.id} cannot start with the login {self.site_environment.login_file or 'of its site'}: "
                f"{error}. Create it again with WebArena's auto_login."
            ) from error
        self.tracker.start(self._state())
        folder = self.view.screenshots
        self.screenshots = None if folder is None else ScreenshotFolder(Path(folder), item.id)
        await self._take_screenshot()
        system = [_prompt_text(self.prompt), *([_prompt_text("response")] if by_log else [])]
        return [
            {"role": "system", "content": "\n".join(system)},
            {"role": "user", "content": self._observation(snapshot, self.site_environment.other_sites_note(item))},
        ]

    async def step(self, action: str) -> StepResult:
        """Carry out one action."""
        if self.session is None or self.item is None:
            return StepResult(ENDED, terminated=True)
        self.steps += 1
        if self.screenshots is None:
            return await self._carry_out(action)
        self.screenshots.record_action(self.steps, action)
        box, result = self._box(action), await self._carry_out(action)
        return replace(result, media=self.screenshots.media(self.steps, action, box))

    async def _carry_out(self, action: str) -> StepResult:
        assert self.session is not None
        try:
            parsed = parse_action(action)
        except ActionError as error:  # the page is unchanged, so it is not read again
            return await self._refuse(action, error)
        if parsed.kind == "stop":
            return await self._stop(parsed)
        self.previous_action = self._describe(parsed)
        if parsed.kind == "scroll" and self.pager.turn(parsed.text):
            return await self._continue((), dict(self.tracker.record(parsed, self._state())))
        try:
            snapshot = await self._browser_pool().run(self.session.act(parsed))
        except ActionError as error:
            self._keep(await self._browser_pool().run(self.session.observe()))
            return await self._refuse(action, error)
        self._keep(snapshot, parsed.kind in SAME_PAGE_ACTIONS)
        await self._take_screenshot()
        info = dict(self.tracker.record(parsed, self._state()))
        if self.session.network_proxy.traffic.refusals:
            info["refused_requests"] = float(self.session.network_proxy.traffic.take_refusals())
        return await self._continue(snapshot.notes, info)

    async def close(self) -> None:
        """Close the session and release the sites."""
        session, site_environment, log_folder = self.session, self.site_environment, self.log_folder
        self.session = self.site_environment = self.log_folder = None
        try:
            if session is not None:
                await self._browser_pool().run(session.close())
        finally:
            if log_folder is not None:
                log_folder.cleanup()
            if site_environment is not None:
                await asyncio.shield(asyncio.to_thread(site_environment.release))

    def describe_action(self, action: str, observation: str) -> ActionTarget:
        return describe_action(action, observation)

    def oracle(self, item: TaskItem) -> Oracle | None:
        """Return the oracle of a task; all embedded tasks and the easier pages of MiniWoB have one, others None."""
        act = self.source.oracle(item)
        return None if act is None else lambda observation: DemoAction(act(observation))

    async def _refuse(self, action: str, error: ActionError) -> StepResult:
        """Return the result of an action that was not carried out."""
        info = {"invalid_action": 1.0, **self.tracker.record_refused(" ".join(action.split()), self._state())}
        return await self._continue((str(error),), info)

    async def _continue(self, notes: Sequence[str], info: dict[str, float]) -> StepResult:
        """Return the result of an action other than `stop`; too many redundant actions end the episode."""
        assert self.snapshot is not None
        cost = self._charge(info)
        if self.economy.end_after is not None and self.tracker.consecutive >= self.economy.end_after:
            await self.close()
            return StepResult(GAVE_UP, 0.0 - cost, terminated=True, info=info | {"gave_up": 1.0})
        return StepResult(self._observation(self.snapshot, notes), 0.0 - cost, info=info)

    async def _stop(self, action: Action) -> StepResult:
        """Evaluate the final state and end the episode."""
        assert self.session is not None and self.site_environment is not None
        assert self.item is not None and self.snapshot is not None
        if self.session.network_log is not None:
            return StepResult(ENDED, await self._score_log(action.text) - self._charge({}), terminated=True)
        evaluation = self.site_environment.fill_urls(self.item.data["eval"])
        intent, site_urls = self.item.data["intent"], self.site_environment.urls_by_placeholder
        changes = self.site_environment.changes
        final = FinalState(action.text, self.session, intent, site_urls, self.snapshot.taken_at, changes)
        await self._browser_pool().run(self.session.ensure_tab())
        score = await self._browser_pool().run(evaluate(evaluation, final, self.judge))
        await self.close()
        return StepResult(ENDED, score - self._charge({}), terminated=True)

    async def _score_log(self, answer: str) -> float:
        """Close the browser session, which writes its network log, and return the score of WebArena-Verified."""
        assert self.session is not None and self.site_environment is not None and self.item is not None
        session, log, urls = self.session, self.session.network_log, self.site_environment.urls
        assert log is not None
        session.check()
        try:
            await self._browser_pool().run(session.close())
            if not log.is_file():
                raise EnvError("the browser wrote no network log.")
            return await asyncio.to_thread(verified.score, self.item.data["task_id"], answer, log, urls)
        finally:
            await self.close()

    def _charge(self, info: Mapping[str, float]) -> float:
        """Return the cost of an action and add it to the total, which is at most `MAX_COST`."""
        cost = self.economy.step_cost + self.economy.redundant_cost * info.get("redundant_action", 0.0)
        cost = min(cost, MAX_COST - self.total_cost)
        self.total_cost += cost
        return cost

    def _observation(self, snapshot: Snapshot, notes: Sequence[str]) -> str:
        """Return the observation for the model."""
        assert self.item is not None
        lines = [f"NOTE: {note}" for note in notes]
        lines += ["OBSERVATION:", shorten(snapshot.tabs, MAX_LINE), "", self.pager.text]
        lines += [f"URL: {shorten(snapshot.url, MAX_LINE)}", f"OBJECTIVE: {self.item.data['intent']}"]
        return "\n".join([*lines, f"PREVIOUS ACTION: {self.previous_action}"])

    def _keep(self, snapshot: Snapshot, same_page: bool = False) -> Snapshot:
        """Show a snapshot in the pager; `same_page` keeps the current segment if the URL is unchanged."""
        unchanged = same_page and self.snapshot is not None and self.snapshot.url == snapshot.url
        self.pager.show([shorten(line, MAX_LINE) for line in snapshot.page.lines], unchanged)
        self.snapshot = snapshot
        return snapshot

    def _state(self) -> str:
        """Return everything that the model sees of a page."""
        assert self.snapshot is not None
        return f"{self.snapshot.url}\n{self.snapshot.text}\n{self.pager.start}"

    def _describe(self, action: Action) -> str:
        """Return an action with the description of its element, in WebArena's format."""
        assert self.session is not None
        element = self.session.element(action.element_id)
        explanation = f" where [{action.element_id}] is {element.description}" if element else ""
        return shorten(f"{action}{explanation}", MAX_LINE)

    async def _take_screenshot(self) -> None:
        if self.screenshots is not None and self.session is not None:
            await self._browser_pool().run(self.session.screenshot(self.screenshots.path(self.steps)))

    def _box(self, action: str) -> Box | None:
        """Return the place of the element that an action names."""
        with suppress(ActionError):
            element = self.session.element(parse_action(action).element_id) if self.session else None
            return element.box(self.session.view.size) if self.session and element else None
        return None

    @staticmethod
    def _browser_pool() -> BrowserPool:
        return browser_pool(BrowserLimits())


def _prompt_text(name: str) -> str:
    return Path(__file__).with_name("prompts").joinpath(f"{name}.txt").read_text(encoding="utf-8").strip()
