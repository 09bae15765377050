"""An environment with two kinds of oracles."""

from verl_agent.envs.base import EnvAdapter
from verl_agent.types import DemoAction, StepResult, TaskItem

ITEM = TaskItem("switches", "1")


class Switches(EnvAdapter):
    """Shows the number of the switch to press, another one each turn; solved after two."""

    def tasks(self, split):
        return [ITEM]

    async def reset(self, item):
        self.pressed, self.shown = 0, 3
        return [{"role": "system", "content": "Press."}, {"role": "user", "content": "3"}]

    async def step(self, action):
        right = action == f"press {self.shown}"
        self.pressed, self.shown = self.pressed + right, self.shown * 7 % 10
        return StepResult(f"{self.shown}", right / 2, terminated=self.pressed == 2)


class Observing(Switches):
    """Has an oracle that reads observations."""

    def oracle(self, item):
        return lambda observation: DemoAction(f"press {observation}", f"It says {observation}.")


class Scripted(Switches):
    """Has an oracle that knows its actions in advance."""

    def demonstration(self, item):
        return [DemoAction("press 3", "It says 3."), DemoAction("press 1", "It says 1.")]
