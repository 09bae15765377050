"""WebArena: tasks on real web sites in a real browser, by actions on numbered elements. Needs Chromium."""

import asyncio
import copyreg
import re
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from env_adapters.webarena.browser import BrowserFarm, farm
from env_adapters.webarena.efficiency import Efficiency
from env_adapters.webarena.evaluators import Ending, evaluate
from env_adapters.webarena.grammar import Action, ActionError, parse
from env_adapters.webarena.judge import judge_of
from env_adapters.webarena.options import AccessOptions, EconomyOptions, ViewOptions, group
from env_adapters.webarena.running import BrowserLimits
from env_adapters.webarena.session import BrowserSession
from env_adapters.webarena.sight import Sight, View
from env_adapters.webarena.sources import SourceOptions, TaskSource, source_of
from env_adapters.webarena.tasks import ENV
from env_adapters.webarena.tools import TOOLS
from env_adapters.webarena.worlds import World
from verl_agent.envs.actions import shorten
from verl_agent.envs.base import EnvAdapter, Hosting, Oracle
from verl_agent.envs.forms import FenceForm
from verl_agent.errors import ConfigError
from verl_agent.types import Message, Move, StepResult, TaskItem

PROMPTS = ("full", "short")
MAX_LINE = 400
"""Characters of a line of an observation; longer names are cut."""
ENDED = "The task has ended."
GAVE_UP = "The episode ends: too many actions in a row changed nothing."


class WebArenaClass(ABCMeta):
    """The type of `WebArena` and of the classes that `bound_class` makes of it; those travel as `WebArena`."""


class WebArena(EnvAdapter, metaclass=WebArenaClass):
    """Reward 1 for a task whose ending the evaluators accept, else 0. Terminates when the agent says `stop`."""

    splits = source_of(SourceOptions()).splits
    form = FenceForm(TOOLS, "click [id]")
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
        self.item: TaskItem | None = None
        self.session: BrowserSession | None = None
        self.world: World | None = None
        self.sight: Sight | None = None

    @classmethod
    def with_options(cls, options: Mapping[str, Any]) -> type[EnvAdapter]:
        """The class with the tasks that `options` name, of the sites that they give."""
        return bound_class(cls(**options).source)  # whatever cannot be meant is refused before anything starts

    @classmethod
    def tasks(cls, split: str) -> Sequence[TaskItem]:
        """The items of `split`."""
        return source_of(SourceOptions()).items(split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Open the start page in a browser of its own; shows the task and the page."""
        await self.close()
        self.item, self.watch, self.steps, self.last = item, Efficiency(), 0, "None"
        self.world = await self.source.open(item)
        seen = self.view
        view = View(seen.size, seen.whole_page, seen.settle_s, seen.show_options, seen.browser_numbers)
        self.session = BrowserSession(self._farm(), self.world.routes, view)
        self.sight = sight = await self._farm().run(self.session.start(self.world.start_urls(item), self.world.state))
        self.watch.begin(state_of(sight))
        await self._picture()
        system = Path(__file__).with_name("prompts").joinpath(f"{self.prompt}.txt").read_text(encoding="utf-8").strip()
        return [{"role": "system", "content": system}, {"role": "user", "content": self._text(sight, ())}]

    async def step(self, action: str) -> StepResult:
        """Carry out one action."""
        if self.session is None or self.item is None:
            return StepResult(ENDED, terminated=True)
        self.steps += 1
        try:
            read = parse(action)
        except ActionError as error:  # nothing was done, so nothing is read anew
            return self._refused(error)
        if read.kind == "stop":
            return await self._stop(read)
        self.last = self._described(read)
        try:
            self.sight = sight = await self._farm().run(self.session.act(read))
        except ActionError as error:
            self.sight = await self._farm().run(self.session.look())
            return self._refused(error)
        await self._picture()
        info = dict(self.watch.note(read, state_of(sight)))
        if self.session.fence.traffic.refusals:
            info["fenced_requests"] = float(self.session.fence.traffic.take_refusals())
        cost = self.economy.step_cost + self.economy.redundant_cost * info.get("redundant_action", 0.0)
        if self.economy.end_after is not None and self.watch.in_a_row >= self.economy.end_after:
            await self.close()
            return StepResult(GAVE_UP, -cost, terminated=True, info=info | {"gave_up": 1.0})
        return StepResult(self._text(sight, sight.notes), 0.0 - cost, info=info)

    def _refused(self, error: ActionError) -> StepResult:
        """What is said of an action that was not carried out."""
        assert self.sight is not None
        return StepResult(self._text(self.sight, (str(error),)), -self.economy.step_cost, info={"invalid_action": 1.0})

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
        return None if act is None else lambda seen: Move(act(seen))

    async def _stop(self, action: Action) -> StepResult:
        """Judge how the episode ended."""
        assert self.session is not None and self.world is not None and self.item is not None
        evaluation = self.world.fill(self.item.data["eval"])
        ending = Ending(action.text, self.session, self.item.data["intent"], self.world.base)
        score = await self._farm().run(evaluate(evaluation, ending, self.judge))
        await self.close()
        return StepResult(ENDED, score - self.economy.step_cost, terminated=True)

    def _text(self, sight: Sight, notes: Sequence[str]) -> str:
        """What the model reads."""
        assert self.item is not None
        lines = [f"NOTE: {note}" for note in notes]
        page = "\n".join(shorten(line, MAX_LINE) for line in sight.page.lines)
        if len(page) > self.view.max_chars:
            kept = page[: self.view.max_chars].rpartition("\n")[0] or page[: self.view.max_chars]
            page = f"{kept}\n… {len(page) - len(kept)} more characters are not shown."
        lines += ["OBSERVATION:", shorten(sight.tabs, MAX_LINE), "", page]
        lines += [f"URL: {shorten(sight.url, MAX_LINE)}", f"OBJECTIVE: {self.item.data['intent']}"]
        return "\n".join([*lines, f"PREVIOUS ACTION: {self.last}"])

    def _described(self, action: Action) -> str:
        """An action with what its element is, as WebArena reminds of it."""
        assert self.session is not None
        words = self.session.words_of(action.element) if action.element else ""
        where = f" where [{action.element}] is {words}" if words else ""
        return shorten(f"{action}{where}", MAX_LINE)

    async def _picture(self) -> None:
        if self.view.screenshots is not None and self.session is not None and self.item is not None:
            name = re.sub(r"[^\w.-]", "_", self.item.id)
            folder = Path(self.view.screenshots) / f"{name}-{id(self.session):x}"
            folder.mkdir(parents=True, exist_ok=True)
            await self._farm().run(self.session.screenshot(folder / f"{self.steps:03}.png"))

    @staticmethod
    def _farm() -> BrowserFarm:
        return farm(BrowserLimits())


def state_of(sight: Sight) -> str:
    """All that the model sees of a page."""
    return f"{sight.url}\n{sight.text}"


def bound_class(source: TaskSource) -> type[WebArena]:
    """`WebArena` with the tasks of a source."""

    class BoundWebArena(WebArena):
        """`WebArena` with chosen tasks."""

        splits = tuple(source.splits)

        @classmethod
        def tasks(cls, split: str) -> Sequence[TaskItem]:
            """The items of `split`."""
            return source.items(split)

    return BoundWebArena


def _adapter() -> type[WebArena]:
    return WebArena


def _reduce(adapter: type) -> str | tuple[Any, ...]:
    """A bound class is not found by name; a host process only needs the class that it was made of."""
    return adapter.__qualname__ if adapter is WebArena else (_adapter, ())


copyreg.pickle(WebArenaClass, _reduce)
