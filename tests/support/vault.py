"""Small environment without a flaw; tests of attacks plant one each."""

from collections.abc import Sequence

from verl_agent.envs.action_format import ActionFormat, TagFormat
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

COLOURS = ("amber", "blue", "coral", "denim", "ebony", "fawn", "green", "honey", "ivory", "jade", "khaki", "lilac")
TASKS = 12


class Vault(EnvAdapter):
    """Environment without a flaw: `look` shows the code of a vault, and the first `answer` ends the task.

    It stays in this process; the environments of this repository are attacked in a host.
    """

    splits = ("train",)
    action_format: ActionFormat = TagFormat(tags=(("look", "thing"), ("answer", "code")))
    hosting = Hosting(threads=1)

    def __reduce__(self):
        raise TypeError("the sessions run in this process")

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return [TaskItem("vault", f"{n}", {"code": COLOURS[n], "number": n}) for n in range(TASKS)]

    async def reset(self, item: TaskItem) -> list[Message]:
        self.code, self.item, self.ended = item.data["code"], item, False
        return [{"role": "user", "content": f"Vault {item.data['number']} has a code.\nWhich colour is the code?"}]

    async def step(self, action: str) -> StepResult:
        if self.ended:
            return StepResult("The task has ended.", terminated=True)
        kind, text = self.action_format.split(action) or ("", "")
        if kind == "look":
            return StepResult(f"You see {self.code} paint.")
        if "<answer>" not in action:
            return StepResult("That is no action.", info={"invalid_action": 1.0})
        self.ended = True
        return StepResult("The task has ended.", float(self.grade(text)), True)

    def grade(self, answer: str) -> bool:
        return answer == self.code

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        return [DemoAction("<look>vault</look>"), DemoAction(f"<answer>{item.data['code']}</answer>")]
