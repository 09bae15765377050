"""WebArena: tasks on real web sites in a real browser, by actions on numbered elements. Needs Chromium."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from env_adapters.webarena.browser.chromium import chromium_requirement
from env_adapters.webarena.browser.grammar import Action, ActionError, parse
from env_adapters.webarena.browser.pager import Pager
from env_adapters.webarena.browser.pool import BrowserPool, RefusedError, browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.browser.screenshots import Pictures
from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.browser.snapshot import Snapshot, View
from env_adapters.webarena.browser.tools import TOOLS
from env_adapters.webarena.grading.evaluators import Ending, evaluate
from env_adapters.webarena.grading.judge import judge_of
from env_adapters.webarena.grading.redundancy import Efficiency
from env_adapters.webarena.options import MAX_COST, AccessOptions, EconomyOptions, ViewOptions, group
from env_adapters.webarena.sites.install import GET_FOSSIL
from env_adapters.webarena.tasks.items import ENV, GET_TASKS
from env_adapters.webarena.tasks.miniwob import GET_PAGES
from env_adapters.webarena.tasks.site_urls import SiteEnvironment
from env_adapters.webarena.tasks.sources import SourceOptions, TaskSource, source_of
from env_adapters.webarena.tasks.splits import SPLITS
from verl_agent.envs.action_format import FenceFormat
from verl_agent.envs.base import EnvAdapter, Hosting, Oracle, Requirement
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

PROMPTS = ("full", "short")
STAYING = ("click", "type", "hover", "press")
"""Actions after which the same part of a long text is shown, as long as the address stays: the fields of a form."""
MAX_LINE = 400
"""Characters of a line of an observation; longer names are cut."""
ENDED = "The task has ended."
GAVE_UP = "The episode ends: too many actions in a row changed nothing."


class WebArena(EnvAdapter):
    """Reward 1 for a task whose ending the evaluators accept, else 0. Terminates when the agent says `stop`.

    Where `economy` sets costs, they take at most half of it, and a task counts as solved from 0.5.
    """

    splits = tuple(SPLITS)
    action_format = FenceFormat(TOOLS, "click [id]")
    # All sessions of a host share its browsers, and those one event loop: its calls only wait.
    hosting = Hosting(threads=1, sessions=32, busy=16, episodes=4000, memory_mb=8192)

    def __init__(
        self,
        tasks: str = ENV,
        sites: Mapping[str, str] | None = None,
        access: Mapping[str, Any] | None = None,
        view: Mapping[str, Any] | None = None,
        economy: Mapping[str, Any] | None = None,
        judge: Mapping[str, str] | None = None,
        prompt: str = "full",
    ) -> None:
        """Say what is played, where, and what the model sees.

        Args:
            tasks: a source of tasks, see `SOURCES`, or a file in WebArena's format.
            sites: URL of each site by its name; tasks of other sites are left out.
            access: see `AccessOptions`.
            view: see `ViewOptions`.
            economy: see `EconomyOptions`.
            judge: `url` and `model` of an endpoint for answers in free words; null for a rule.
            prompt: `full` explains the actions; `short` names them, for small models.
        """
        if prompt not in PROMPTS:
            raise ConfigError(f"env.options.prompt={prompt!r} is unknown. Allowed: {', '.join(PROMPTS)}.")
        self.prompt = prompt
        self.access = group(AccessOptions, "access", access)
        self.view = group(ViewOptions, "view", view)
        self.economy = group(EconomyOptions, "economy", economy)
        self.judge = judge_of(dict(judge) if judge is not None else None)
        self.source: TaskSource = source_of(SourceOptions(tasks, sites, self.access))
        self.splits, self.success_reward = tuple(self.source.splits), self.economy.success_reward
        self.item: TaskItem | None = None
        self.session: BrowserSession | None = None
        self.world: SiteEnvironment | None = None
        self.sight: Snapshot | None = None
        self.parts = Pager(self.view.max_chars)
        self.pictures: Pictures | None = None

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        """Return the browser, the packages of tasks, and the program of the embedded code site."""
        fossil = shutil.which("fossil")
        return [
            Requirement.package("playwright", "pip install 'verl-agent[webarena]'", "drives the browser"),
            chromium_requirement(),
            Requirement.package("libwebarena", GET_TASKS, "WebArena's 812 tasks"),
            Requirement.package("miniwob", GET_PAGES, "tasks of env.options.tasks=miniwob"),
            Requirement(
                "fossil", fossil is not None, GET_FOSSIL, fossil or "`verl-agent sites up` downloads it where apt is"
            ),
        ]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the items of `split`.

        Raises:
            ConfigError: the options do not allow the tasks to be played.
        """
        self.source.check()
        return self.source.items(split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Open the start page in a browser of its own; shows the task and the page."""
        await self.close()
        self.item, self.watch, self.steps, self.spent, self.last = item, Efficiency(), 0, 0.0, "None"
        self.world = await self.source.open(item)
        seen = self.view
        view = View(seen.size, seen.whole_page, seen.settle_s, seen.show_options, seen.browser_numbers)
        self.session = BrowserSession(self._farm(), self.world.routes, view)
        start = self.session.start(self.world.start_urls(item), self.world.state)
        try:
            sight = self._seen(await self._farm().run(start))
        except RefusedError as error:
            raise ConfigError(
                f"task {item.id} cannot begin with the login {self.world.login or 'of its site'}: {error}. "
                "Make it anew with WebArena's auto_login."
            ) from error
        self.watch.begin(self._state())
        self.pictures = None if seen.screenshots is None else Pictures(Path(seen.screenshots), item.id)
        await self._picture()
        system = Path(__file__).with_name("prompts").joinpath(f"{self.prompt}.txt").read_text(encoding="utf-8").strip()
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": self._text(sight, self.world.others(item))},
        ]

    async def step(self, action: str) -> StepResult:
        """Carry out one action."""
        if self.session is None or self.item is None:
            return StepResult(ENDED, terminated=True)
        self.steps += 1
        if self.pictures is not None:
            self.pictures.note(self.steps, action)
        try:
            read = parse(action)
        except ActionError as error:  # nothing was done, so nothing is read anew
            return await self._refused(action, error)
        if read.kind == "stop":
            return await self._stop(read)
        self.last = self._described(read)
        if read.kind == "scroll" and self.parts.turn(read.text):
            return await self._went_on((), dict(self.watch.note(read, self._state())))
        try:
            sight = self._seen(await self._farm().run(self.session.act(read)), read.kind in STAYING)
        except ActionError as error:
            self._seen(await self._farm().run(self.session.look()))
            return await self._refused(action, error)
        await self._picture()
        info = dict(self.watch.note(read, self._state()))
        if self.session.fence.traffic.refusals:
            info["fenced_requests"] = float(self.session.fence.traffic.take_refusals())
        return await self._went_on(sight.notes, info)

    async def _refused(self, action: str, error: ActionError) -> StepResult:
        """What is said of an action that was not carried out."""
        info = {"invalid_action": 1.0, **self.watch.refuse(action.strip(), self._state())}
        return await self._went_on((str(error),), info)

    async def _went_on(self, notes: Sequence[str], info: dict[str, float]) -> StepResult:
        """What is seen after an action that ended nothing, unless there were too many redundant ones."""
        assert self.sight is not None
        cost = self._cost(info)
        if self.economy.end_after is not None and self.watch.in_a_row >= self.economy.end_after:
            await self.close()
            return StepResult(GAVE_UP, 0.0 - cost, terminated=True, info=info | {"gave_up": 1.0})
        return StepResult(self._text(self.sight, notes), 0.0 - cost, info=info)

    def _cost(self, info: Mapping[str, float]) -> float:
        """What an action takes off the return; all of an episode together leave a solved task solved."""
        wanted = self.economy.step_cost + self.economy.redundant_cost * info.get("redundant_action", 0.0)
        cost = min(wanted, MAX_COST - self.spent)
        self.spent += cost
        return cost

    async def close(self) -> None:
        """Give the browser and the sites back."""
        session, world = self.session, self.world
        self.session = self.world = None
        try:
            if session is not None:
                await self._farm().run(session.close())
        finally:
            if world is not None:
                await asyncio.shield(asyncio.to_thread(world.release))

    def oracle(self, item: TaskItem) -> Oracle | None:
        """See `EnvAdapter.oracle`: WebArena's own tasks have none, the embedded sites' all, of MiniWoB's the easier."""
        act = self.source.oracle(item)
        return None if act is None else lambda seen: DemoAction(act(seen))

    async def _stop(self, action: Action) -> StepResult:
        """Judge how the episode ended."""
        assert self.session is not None and self.world is not None and self.item is not None
        evaluation = self.world.fill(self.item.data["eval"])
        ending = Ending(action.text, self.session, self.item.data["intent"], self.world.base)
        await self._farm().run(self.session.keep_tab())
        score = await self._farm().run(evaluate(evaluation, ending, self.judge))
        await self.close()
        return StepResult(ENDED, score - self._cost({}), terminated=True)

    def _text(self, sight: Snapshot, notes: Sequence[str]) -> str:
        """What the model reads."""
        assert self.item is not None
        lines = [f"NOTE: {note}" for note in notes]
        lines += ["OBSERVATION:", shorten(sight.tabs, MAX_LINE), "", self.parts.text]
        lines += [f"URL: {shorten(sight.url, MAX_LINE)}", f"OBJECTIVE: {self.item.data['intent']}"]
        return "\n".join([*lines, f"PREVIOUS ACTION: {self.last}"])

    def _seen(self, sight: Snapshot, stays: bool = False) -> Snapshot:
        """Keep what is seen, after an action that leaves the page where it is unless it leads to another."""
        same = stays and self.sight is not None and self.sight.url == sight.url
        self.parts.show([shorten(line, MAX_LINE) for line in sight.page.lines], same)
        self.sight = sight
        return sight

    def _state(self) -> str:
        """All that the model sees of a page."""
        assert self.sight is not None
        return f"{self.sight.url}\n{self.sight.text}\n{self.parts.start}"

    def _described(self, action: Action) -> str:
        """An action with what its element is, as WebArena reminds of it."""
        assert self.session is not None
        words = self.session.words_of(action.element) if action.element else ""
        where = f" where [{action.element}] is {words}" if words else ""
        return shorten(f"{action}{where}", MAX_LINE)

    async def _picture(self) -> None:
        if self.pictures is not None and self.session is not None:
            await self._farm().run(self.session.screenshot(self.pictures.path(self.steps)))

    @staticmethod
    def _farm() -> BrowserPool:
        return browser_pool(BrowserLimits())
