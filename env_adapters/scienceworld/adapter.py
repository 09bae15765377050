"""ScienceWorld: elementary school experiments in a simulated house, by text commands. Needs Java."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from env_adapters.scienceworld.drawing import draw_house
from env_adapters.scienceworld.java import java_requirement
from env_adapters.scienceworld.simulator import MAX_SESSIONS, CommandResult, SimulatorSession
from env_adapters.scienceworld.tasks import SPLITS
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement, SubGoal
from verl_agent.envs.drawing import Drawing
from verl_agent.envs.options import AtLeastOne, checked_options
from verl_agent.envs.parsing import shorten
from verl_agent.types import DemoAction, Episode, Message, StepResult, TaskItem

MAX_COMMAND = 200
"""Maximum length of a command in characters; the longest of a gold path has 90."""
MAX_OBSERVATION = 4_000
"""Maximum length of an observation in characters; the longest on a gold path has 1,100."""

TOO_LONG = f"The action is too long: at most {MAX_COMMAND} characters."
NOT_UNDERSTOOD = "No known action matches that input."
QUESTION = "Ambiguous request"
"""Start of the simulator's question about an ambiguous action."""
CANCELLED = "The action was cancelled, since the answer was not the number of one of the choices."
WRONG_FOCUS = "That was the wrong thing to focus on. The task has failed."
WRONG_ANSWER = "That was the wrong answer. The task has failed."


class ScienceWorld(EnvAdapter):
    """Science experiments whose return is the final score, 0 to 1; 0 for a failed task."""

    splits = tuple(SPLITS)
    action_format = LineFormat(placeholder="one action, on one line")
    # Scores are whole percents; the sum of their differences can differ from 1 by a rounding error.
    success_reward = 0.995
    hosting = Hosting(threads=1, sessions=MAX_SESSIONS, busy=4)  # one JVM a host; from the fifth session on, one a core

    @checked_options
    def __init__(self, prompt: Literal["full", "short"] = "full", jvms: AtLeastOne = 1) -> None:
        """Set the prompt and the number of JVMs.

        Args:
            prompt: `full` explains the actions; `short` is a few lines for small models.
            jvms: number of JVMs for the sessions of a process, >= 1; one plays about 100 turns a second.
        """
        self.prompt, self.jvms = prompt, jvms
        self.world: SimulatorSession | None = None

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        install = "pip install 'verl-agent[scienceworld]'"
        return [
            Requirement.package("scienceworld", install, "the simulator"),
            Requirement.package("py4j", install, "bridge between Python and Java"),
            java_requirement(),
        ]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        self.check_split(split)
        return SPLITS[split]()

    async def reset(self, item: TaskItem) -> list[Message]:
        await self.close()
        self.world = SimulatorSession(item.data["task"], item.data["variation"], self.jvms)
        self.earned, self.asked = 0.0, False
        task, view = self.world.describe()
        system = Path(__file__).with_name("prompts").joinpath(f"{self.prompt}.txt").read_text().strip()
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": shorten(f"{task}\n\n{view}", MAX_OBSERVATION)},
        ]

    async def step(self, action: str) -> StepResult:
        if self.world is None:
            return StepResult("The task has ended.", terminated=True)
        command = to_command(action, self.asked)
        if not self.asked and not 0 < len(command) <= MAX_COMMAND:
            return StepResult(TOO_LONG if command else NOT_UNDERSTOOD, info={"invalid_action": 1.0})
        answer = self.world.step(command.removesuffix("."))
        cancelled = self.asked and answer.text.startswith("Unknown action")
        self.asked = answer.text.startswith(QUESTION)
        if answer.score < 0:
            return await self.fail(answer)
        percent = 100 if answer.completed else min(round(100 * answer.score), 99)
        reward = percent / 100 - self.earned
        self.earned += reward
        info = {"ambiguous_action": 1.0} if self.asked else {}
        if cancelled or answer.text.startswith(NOT_UNDERSTOOD):
            info = {"invalid_action": 1.0}
        if answer.completed:
            await self.close()
        text = CANCELLED if cancelled else shorten(answer.text.strip() or "Nothing happens.", MAX_OBSERVATION)
        return StepResult(text, reward, answer.completed, info)

    async def fail(self, answer: CommandResult) -> StepResult:
        """End a failed task (-100 points in the simulator) with a reward that brings the return to 0."""
        await self.close()
        focused = answer.text.startswith("You focus")
        text = f"{shorten(answer.text, MAX_OBSERVATION)}\n{WRONG_FOCUS if focused else WRONG_ANSWER}"
        info = {"wrong_focus" if focused else "wrong_answer": 1.0}
        return StepResult(text, 0.0 - self.earned, terminated=True, info=info)

    def describe_action(self, action: str, observation: str) -> ActionTarget:
        return ActionTarget("", None, to_command(action, asked=False).removesuffix("."))

    @classmethod
    def draw(cls, episode: Episode) -> Sequence[Sequence[Drawing]]:
        """Return the rooms as far as they were seen, and what the agent carries."""
        return draw_house(episode)

    async def close(self) -> None:
        if self.world is not None:
            self.world.close()
            self.world = None

    def sub_goals(self, episode: Episode) -> Sequence[SubGoal]:
        world = SimulatorSession(episode.item.data["task"], episode.item.data["variation"])
        try:
            self.replay(world, episode)
            return parse_goals(world.goal_progress())
        finally:
            world.close()

    @staticmethod
    def replay(world: SimulatorSession, episode: Episode) -> None:
        """Execute the commands of a recorded episode that reached the simulator."""
        world.describe()
        asked = False
        for action in (action for turn in episode.turns for action in turn.actions):
            command = to_command(str(action), asked)
            if asked or 0 < len(command) <= MAX_COMMAND:
                asked = world.step(command.removesuffix(".")).text.startswith(QUESTION)

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        commands = solution(item.data["task"], item.data["variation"])
        return [
            DemoAction(command, THOUGHTS.get(command.split()[0], "This is the next step of the task."))
            for command in commands
        ]


def parse_goals(table: str) -> list[SubGoal]:
    """Return the rows of the simulator's table of sub-goals: number, reached, kind and text, with tabs between."""
    rows = (re.match(r"\d+\t(true|false)\t *(\w+)\t(.*)", line) for line in table.splitlines())
    return [SubGoal(row[2], row[3].strip(), row[1] == "true") for row in rows if row]


def to_command(action: str, asked: bool) -> str:
    """Return the command of an action; with `asked`, the answer to the simulator's question."""
    return choice(action) if asked else " ".join(action.split()).strip("`* ")


def choice(command: str) -> str:
    """Return the answer to the simulator's question: the number at the start of `command`, or "", which cancels.

    Example:
        >>> choice("2: focus on the red box")
        '2'
    """
    found = re.match(r"[\s`*]*(\d{1,4})(?!\d)", command, re.ASCII)
    return found[1] if found else ""


MOVES = ("go ", "open door ")

THOUGHTS = {
    "look": "I look at what is here.",
    "open": "It is closed, so I open it.",
    "close": "I close it again.",
    "go": "The next part of the task is elsewhere, so I go there.",
    "focus": "This is what the task asks for, so I focus on it.",
    "pick": "I will need this, so I take it along.",
    "drop": "My hands should be free, so I put it down.",
    "move": "It belongs there, so I move it.",
    "pour": "It has to be in the other container, so I pour it.",
    "use": "I use this tool to go on.",
    "examine": "I check what has become of it.",
    "activate": "It only works when it is on, so I switch it on.",
    "deactivate": "It is no longer needed, so I switch it off.",
    "connect": "The circuit needs this connection.",
    "mix": "Everything is in one container, so I mix it.",
    "read": "It may say what I need, so I read it.",
    "wait": "This needs time, so I wait.",
    "wait1": "This needs a moment, so I wait.",
}
"""Thought for each action, by its first word."""


@lru_cache(maxsize=4096)
def solution(task: str, variation: int) -> tuple[str, ...]:
    """Return commands that solve a task: the gold path with a `look around` at each place where it acts.

    The gold path acts on objects that it has not observed, which would teach a policy to guess. Looking takes no time.
    """
    world = SimulatorSession(task, variation, gold=True)
    try:
        return tuple(with_looks(world.gold_path()))
    finally:
        world.close()


def with_looks(path: Iterable[str]) -> Iterator[str]:
    """Yield `path` with `look around` between an arrival and the next action."""
    arrived = False
    for command in path:
        if arrived and not command.startswith((*MOVES, "look around")):
            yield "look around"
        yield command
        arrived = command.startswith("go ")
