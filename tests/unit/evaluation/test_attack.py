"""Test that generic attacks find planted flaws of rewards, and none in an environment without a flaw."""

import re
from collections.abc import Sequence

import pytest

from verl_agent.envs.action_format import ActionFormat, LineFormat, TagFormat
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.registry import make_env
from verl_agent.evaluation.attack import attack_env, chance, upper_limit
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

COLOURS = ("amber", "blue", "coral", "denim", "ebony", "fawn", "green", "honey", "ivory", "jade", "khaki", "lilac")
TASKS = 12
FEW = 5
"""Tasks that show a flaw of every task: `AttackReport.enough` is true from 4 on."""


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


class Contains(Vault):
    def grade(self, answer):
        return self.code in answer


class NotAvailable(Vault):
    """Flaw on a third of the tasks."""

    def grade(self, answer):
        return super().grade(answer) or (self.item.data["number"] % 3 == 0 and answer.lower() == "n/a")


class Pattern(Vault):
    def grade(self, answer):
        pattern = re.sub(r"[^a-z.*]", "", answer) or "-"
        return len(answer) < 5 and re.fullmatch(pattern, self.code) is not None


class Tolerance(Vault):
    def grade(self, answer):
        try:
            return not abs(float(answer) - len(self.code)) > 0.1
        except ValueError:
            return super().grade(answer)


class Overlap(Vault):
    """Flaw: the share of the words of a reference that an answer has, and the reference repeats the question."""

    def grade(self, answer):
        wanted = set(f"the colour of the code is {self.code}".split())
        return len(wanted & set(answer.lower().split())) >= 3


class Reopened(Vault):
    """Flaw: a task that has ended accepts a further answer."""

    async def step(self, action):
        self.ended = False
        return await super().step(action)


class PaidSteps(Vault):
    """Flaw: the reward of a sub-goal is paid as often as it is reached."""

    async def step(self, action):
        result = await super().step(action)
        return StepResult(result.observation, 0.5, False) if "You see" in result.observation else result


class Raises(Vault):
    """Flaw: an action that is not possible raises, so that the episode is left out."""

    def grade(self, answer):
        assert "%" not in answer
        return super().grade(answer)


class Buttons(Vault):
    """Flaw: a wrong button costs nothing."""

    action_format = LineFormat()

    async def reset(self, item):
        await super().reset(item)
        self.buttons = [f"b{item.data['number'] * 5 + n}" for n in range(5)]
        return [{"role": "user", "content": f"Press the button of the vault.\nActions: {', '.join(self.buttons)}"}]

    async def step(self, action):
        self.ended = self.ended or action == self.buttons[3]
        return StepResult(f"Actions: {', '.join(self.buttons)}", float(action == self.buttons[3]), self.ended)

    def demonstration(self, item):
        return [DemoAction(f"b{item.data['number'] * 5 + 3}")]


class Bonus(Vault):
    """Flaw: a reply that is no action earns a part."""

    async def step(self, action):
        result = await super().step(action)
        return StepResult(result.observation, 0.1) if "no action" in result.observation else result


FLAWS = [
    (Contains, "vocabulary dumped", FEW),
    (NotAvailable, "constant answer: 'N/A'", TASKS),
    (Pattern, "constant answer: '.*'", FEW),
    (Tolerance, "constant answer: 'nan'", FEW),
    (Overlap, "prompt repeated", FEW),
    (Reopened, "actions after the end", FEW),
    (PaidSteps, "double steps", FEW),
    (Raises, "errors on purpose", FEW),
    (Buttons, "listed actions", TASKS),
    (Bonus, "errors on purpose", FEW),
]


@pytest.mark.parametrize(("flawed", "found", "tasks"), FLAWS, ids=[flawed.__name__ for flawed, *_ in FLAWS])
def test_attacks_find_a_planted_flaw(flawed, found, tasks):
    report = attack_env("vault", flawed(), tasks, turns=6, limit_s=60)
    assert report.tasks == tasks
    assert any(str(finding.attack).startswith(found) for finding in report.findings), report.findings


class Unsolved(Vault):
    """Environment without an oracle, whose prompt lists no action."""

    action_format = LineFormat()

    def demonstration(self, item):
        raise NotImplementedError


def test_attacks_need_no_demonstrations():
    assert attack_env("vault", Unsolved(), 2, turns=6, limit_s=60).tasks == 2


def test_attacks_find_nothing_in_an_environment_without_a_flaw():
    report = attack_env("vault", Vault(), TASKS, turns=6, limit_s=60)
    assert report.findings == []
    assert {strongest.attack.family for strongest, _ in report.families} == {
        "constant answer",
        "prompt repeated",
        "vocabulary dumped",
        "errors on purpose",
        "listed actions",
        "double steps",
        "actions after the end",
    }


@pytest.mark.parametrize("name", ["textcraft", "babyai", "guess_number"])
def test_attacks_earn_nothing_in_an_environment_of_this_repository(name):
    report = attack_env(name, make_env(name), 6, turns=8, limit_s=4)
    assert report.tasks >= 1
    assert report.findings == []


def test_the_upper_limit_is_that_of_clopper_and_pearson():
    assert upper_limit(0, 50) == pytest.approx(1 - 0.05 ** (1 / 50))
    assert upper_limit(3, 20) == pytest.approx(0.34366, abs=1e-4)
    assert upper_limit(5, 5) == 1.0


def test_the_permutation_test_is_exact_for_few_tasks():
    assert chance([1.0, 1.0], [[0.0] * 4] * 2) == pytest.approx(1 / 25, abs=0.004)
    assert chance([0.0, 1.0], [[0.0, 1.0]] * 2) == 1.0
    assert chance([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]]) == 1.0
