"""WebArena: tasks on web sites in a real browser, played by actions on numbered elements. Needs Chromium."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from env_adapters.webarena.browser.grammar import TOOLS, describe_action
from env_adapters.webarena.grading.judge import EndpointJudge
from env_adapters.webarena.open_task import ENDED, OpenTask, open_task
from env_adapters.webarena.options import AccessOptions, EconomyOptions, ViewOptions
from env_adapters.webarena.tasks import items
from env_adapters.webarena.tasks.sources import SourceOptions, TaskSource, make_source, source_requirements
from env_adapters.webarena.tasks.splits import SPLITS
from verl_agent.envs.action_format import FenceFormat
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.base import EnvAdapter, Hosting, Oracle, Requirement
from verl_agent.envs.options import checked_options
from verl_agent.sections import section
from verl_agent.types import DemoAction, Message, StepResult, TaskItem


class WebArena(EnvAdapter):
    """Tasks on web sites. Reward 1 if the evaluators accept the final state, else 0; the action `stop` terminates.

    If `economy` sets costs, they take at most half of the reward, and a task counts as solved from 0.5.
    """

    splits = tuple(SPLITS)
    names_elements = True
    action_format = FenceFormat(TOOLS, "click [id]")
    # The sessions of a host share its browsers and one event loop, so their calls need only one thread, which waits.
    hosting = Hosting(threads=1, sessions=32, busy=16, episodes=4000, memory_mb=12288)

    @checked_options
    def __init__(
        self,
        tasks: str = items.ENV,
        sites: Mapping[str, str] | None = None,
        access: Mapping[str, Any] | None = None,
        view: Mapping[str, Any] | None = None,
        economy: Mapping[str, Any] | None = None,
        judge: Mapping[str, str] | None = None,
        prompt: Literal["full", "short"] = "full",
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
        self.prompt = prompt
        self.access = section("env.options.access", AccessOptions, access or {})
        self.view = section("env.options.view", ViewOptions, view or {})
        self.economy = section("env.options.economy", EconomyOptions, economy or {})
        self.judge = None if judge is None else section("env.options.judge", EndpointJudge, judge)
        self.source: TaskSource = make_source(SourceOptions(tasks, sites, self.access))
        self.splits, self.success_reward = tuple(self.source.splits), self.economy.success_reward
        self.deterministic = self.source.deterministic
        self.task: OpenTask | None = None

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        """Return the browser, the packages of tasks, and the program of the embedded code site."""
        return source_requirements()

    def tasks(self, split: str) -> Sequence[TaskItem]:
        if split not in EnvAdapter.splits:  # the source explains why it has no tasks for these two
            self.check_split(split)
        self.source.check()
        return self.source.items(split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Open the start pages of a task in a fresh browser context and return the task with the first observation."""
        await self.close()
        sites = await self.source.open(item)
        task = self.task = await open_task(item, sites, self.view, self.economy, self.judge)
        await task.take_screenshot()
        system = [_prompt_text(self.prompt), *([_prompt_text("response")] if task.by_log else [])]
        return [
            {"role": "system", "content": "\n".join(system)},
            {"role": "user", "content": task.observation(sites.other_sites_note(item))},
        ]

    async def step(self, action: str) -> StepResult:
        if self.task is None:
            return StepResult(ENDED, terminated=True)
        result = await self.task.step(action)
        if result.terminated:
            await self.close()
        return result

    async def close(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            await task.close()

    def describe_action(self, action: str, observation: str) -> ActionTarget:
        return describe_action(action, observation)

    def oracle(self, item: TaskItem) -> Oracle | None:
        """Return the oracle of a task; all embedded tasks and the easier pages of MiniWoB have one, others None."""
        act = self.source.oracle(item)
        return None if act is None else lambda observation: DemoAction(act(observation))


def _prompt_text(name: str) -> str:
    return Path(__file__).with_name("prompts").joinpath(f"{name}.txt").read_text(encoding="utf-8").strip()
