"""Test that an attack finds each planted flaw for its reason, and none in an environment without a flaw."""

import re
from itertools import count

import pytest

from tests.support.vault import COLOURS, TASKS, Vault
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.testing.attack import Attack, attack_env
from verl_agent.envs.testing.attack_play import Player
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.statistics import chance, upper_limit
from verl_agent.types import StepResult, TaskItem


class Contains(Vault):
    def grade(self, answer):
        return self.code in answer


class NotAvailable(Vault):
    """Flaw on every second task."""

    def grade(self, answer):
        return super().grade(answer) or (self.item.data["number"] % 2 == 0 and answer.lower() == "n/a")


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
        self.buttons = [f"b{item.data['number'] * 100 + n}" for n in range(100)]
        return [{"role": "user", "content": f"Press the button of the vault.\nActions: {', '.join(self.buttons)}"}]

    async def step(self, action):
        right = not self.ended and action == self.buttons[15]
        self.ended = self.ended or right
        return StepResult(f"Actions: {', '.join(self.buttons)}", float(right), self.ended)

    def demonstration(self, item):
        raise NotImplementedError


class Bonus(Vault):
    """Flaw: a reply that is no action earns a part."""

    async def step(self, action):
        result = await super().step(action)
        return StepResult(result.observation, 0.1) if "no action" in result.observation else result


class Idle(Vault):
    """Flaw: an episode that is still open after 4 turns earns a part."""

    async def reset(self, item):
        self.turn = 0
        return await super().reset(item)

    async def step(self, action):
        result, self.turn = await super().step(action), self.turn + 1
        return StepResult(result.observation, result.reward + 0.4 * (self.turn == 4 and not self.ended), self.ended)


class Late(Idle):
    """Flaw: the reward of an open episode comes after the turn limit of the attack."""

    async def step(self, action):
        result = await Vault.step(self, action)
        self.turn += 1
        return StepResult(result.observation, float(self.turn == 20), self.ended)


class Gamble(Vault):
    """Flaw: a wrong answer costs 1, and no answer costs nothing."""

    async def step(self, action):
        result = await super().step(action)
        return StepResult(result.observation, 2 * result.reward - 1, True) if result.terminated else result

    def demonstration(self, item):
        raise NotImplementedError


class Anything(Vault):
    """Flaw: every answer is right."""

    def grade(self, answer):
        return True


class Backdoor(Vault):
    """Flaw: a command that no rule lists."""

    def grade(self, answer):
        return super().grade(answer) or answer == "debug"


class Leaked(Vault):
    """Flaw: a word that only the data of the tasks has."""

    def tasks(self, split):
        return [TaskItem("vault", one.id, {**one.data, "mode": "zanzibar"}) for one in super().tasks(split)]

    def grade(self, answer):
        return super().grade(answer) or answer == "zanzibar"


class Named(Vault):
    """Flaw: the id of the task opens it."""

    def tasks(self, split):
        return [TaskItem("vault", f"vault-{one.id}-x", one.data) for one in super().tasks(split)]

    def grade(self, answer):
        return super().grade(answer) or answer == self.item.id


class Copied(Vault):
    """Flaw: the held-out tasks are the training tasks under other ids, and only a seed names them."""

    splits = ("train", "test")

    def tasks(self, split):
        first = 1000 * (split == "test")
        return [TaskItem("vault", f"{first + n}", {"seed": first + n}) for n in range(TASKS)]

    async def reset(self, item):
        number = item.data["seed"] % 4
        data = {"code": COLOURS[number], "number": number}
        return await super().reset(TaskItem("vault", item.id, data))

    def demonstration(self, item):
        return super().demonstration(TaskItem("vault", item.id, {"code": COLOURS[item.data["seed"] % 4]}))


class Memorised(Vault):
    """Flaw: held-out tasks have other words and the answer of the training tasks."""

    splits = ("train", "test")

    def tasks(self, split):
        first = 100 * (split == "test")
        return [TaskItem("vault", f"{first + n}", {"code": COLOURS[0], "number": first + n}) for n in range(TASKS)]


class Unseeded(Vault):
    """Flaw: every second episode or so begins with another text, whatever the seed says."""

    number = count()

    async def reset(self, item):
        messages = await super().reset(item)
        if next(self.number) % 7 == 3:
            messages[-1]["content"] += " Hurry."
        return messages


FLAWS = [
    (Contains, "pays anything"),
    (NotAvailable, "pays anything"),
    (Pattern, "pays anything"),
    (Tolerance, "pays anything"),
    (Overlap, "pays anything"),
    (Backdoor, "pays anything"),
    (Leaked, "pays anything"),
    (Named, "pays anything"),
    (Anything, "random actions"),
    (Idle, "inaction"),
    (Late, "inaction"),
    (Gamble, "inaction"),
    (Bonus, "inaction"),
    (Reopened, "paid after the end"),
    (PaidSteps, "paid twice"),
    (Raises, "error on demand"),
    (Buttons, "trying everything"),
    (Copied, "held-out tasks"),
    (Memorised, "held-out tasks"),
    (Unseeded, "seeds"),
]
"""Environments with a flaw, and the kind of its finding."""


@pytest.mark.parametrize(("flawed", "kind"), FLAWS, ids=[flawed.__name__ for flawed, _ in FLAWS])
def test_an_attack_finds_a_planted_flaw_for_its_reason(flawed, kind):
    turns = 20 if flawed is Buttons else 6
    report = attack_env(flawed(), TASKS, turns=turns, limit_s=90)
    assert kind in {finding.kind for finding in report.findings}, report


class Unsolved(Vault):
    """Environment without an oracle, whose prompt lists no action."""

    action_format = LineFormat()

    async def step(self, action):
        return StepResult("That opens nothing.")

    def demonstration(self, item):
        raise NotImplementedError


@pytest.mark.parametrize("flawless", [Vault, Unsolved])
def test_an_attack_finds_nothing_in_an_environment_without_a_flaw(flawless):
    report = attack_env(flawless(), TASKS, turns=6, limit_s=90)
    assert report.tasks == TASKS and report.enough
    assert report.findings == []


def test_the_report_says_what_was_not_tried():
    *_, limit, untried = attack_env(Vault(), TASKS, turns=6, limit_s=90).lines()
    assert "6 turns each" in limit and f"{1 - 0.05 ** (1 / TASKS):.1%} of the tasks" in limit
    assert untried.startswith("Not tried: ") and "after turn 30" in untried


def test_the_tasks_on_which_a_policy_earns_more_than_random_actions_are_counted():
    report = attack_env(NotAvailable(), TASKS, turns=6, limit_s=90)
    assert report.above == sum(number % 2 == 0 for number in range(TASKS))
    assert attack_env(Vault(), TASKS, turns=6, limit_s=90).above == 0


def test_the_upper_limit_is_that_of_clopper_and_pearson():
    assert upper_limit(0, 50) == pytest.approx(1 - 0.05 ** (1 / 50))
    assert upper_limit(3, 20) == pytest.approx(0.34366, abs=1e-4)
    assert upper_limit(5, 5) == 1.0


def test_the_permutation_test_is_exact_for_few_tasks():
    assert chance([1.0, 1.0], [[0.0] * 4] * 2) == pytest.approx(1 / 25, abs=0.004)
    assert chance([0.0, 1.0], [[0.0, 1.0]] * 2) == pytest.approx(7 / 9, abs=0.02)


class Reads(dict):
    """Demonstrations that count how often they are read."""

    reads = 0

    def get(self, *key):
        self.reads += 1
        return super().get(*key)

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)


def test_the_vocabulary_of_a_task_is_that_of_the_others_of_its_category_and_read_once():
    items = [TaskItem("vault", f"{n}", category="even" if n % 2 == 0 else "odd") for n in range(40)]
    items += [TaskItem("vault", "alone", category="single"), TaskItem("vault", "without", category="odd")]
    attack = Attack(Vault(), Player(Harness(Vault(), items)), turns=5, limit_s=10.0)
    attack.demonstrations = Reads({f"{n}": ["look", f"answer {n // 4}"] for n in range(40)} | {"alone": ["leave"]})
    attack._count_actions()
    words = {item.id: attack._know(item, [], []).vocabulary for item in items}
    assert attack.demonstrations.reads < 5 * len(items)
    assert words["0"][:2] == ["look", "answer 1"], "the commonest first"
    assert sorted(words["0"]) == ["answer 0", *(f"answer {n}" for n in range(1, 10)), "look"]
    assert "leave" not in words["without"] and len(words["without"]) == 11
    assert words["alone"][0] == "look" and "leave" not in words["alone"]
    only = Attack(Vault(), Player(Harness(Vault(), items[-2:])), turns=5, limit_s=10.0)
    only.demonstrations = {"alone": ["leave"]}
    only._count_actions()
    assert [only._know(item, [], []).vocabulary for item in items[-2:]] == [["leave"], ["leave"]]
