"""Test that an attack finds what a session keeps, tells or reads wrongly."""

import json
from dataclasses import replace

import pytest

from tests.support.vault import TASKS, Vault
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.testing.attack import attack_env
from verl_agent.types import DemoAction, StepResult, TaskItem


class Won(Vault):
    """Flaw: the success of an episode counts in the next one of its session."""

    won = False

    def grade(self, answer):
        self.won = self.won or super().grade(answer)
        return self.won


class Shared(Vault):
    """Flaw: once a session has solved a task, each answer of another one is right."""

    solved: set[str] = set()  # noqa: RUF012 - the flaw

    def grade(self, answer):
        self.solved.update({self.item.id} if super().grade(answer) else ())
        return self.item.id in self.solved


class Overtime(Vault):
    """Flaw: the fourth action after the end is paid."""

    async def reset(self, item):
        self.after = 0
        return await super().reset(item)

    async def step(self, action):
        self.after += self.ended
        return replace(await super().step(action), reward=1.0) if self.after == 4 else await super().step(action)


class Debugged(Vault):
    """Flaw: the prompt ends with a note of the programmer that has the code."""

    async def reset(self, item):
        (message,) = await super().reset(item)
        return [{**message, "content": f"{message['content']}\n(debug seed={item.id} key={self.code} ver=3)"}]


class Told(Vault):
    """Flaw: the answer to what is no action names the code."""

    async def step(self, action):
        result = await super().step(action)
        return replace(result, observation=result.observation.replace("no action", f"no action, unlike {self.code}"))


class Nested(Vault):
    """Flaw: a text deep in the data of each task opens it."""

    def tasks(self, split):
        return [replace(one, data={**one.data, "meta": {"sums": [7, f"x{one.id}y"]}}) for one in super().tasks(split)]

    def grade(self, answer):
        return super().grade(answer) or answer == self.item.data["meta"]["sums"][1]


class Accepted(Vault):
    """No flaw: the data of each task has a second right answer, which demonstrations do not use."""

    def tasks(self, split):
        return [
            replace(one, data={**one.data, "right": [one.data["code"], f"x{one.id}y"]}) for one in super().tasks(split)
        ]

    def grade(self, answer):
        return answer in self.item.data["right"]


class Note(Vault):
    """Flaw: a word of a note in the data opens each task."""

    def tasks(self, split):
        return [replace(one, data={**one.data, "note": "ask the locksmith first"}) for one in super().tasks(split)]

    def grade(self, answer):
        return super().grade(answer) or answer == "locksmith"


class Infinite(Vault):
    """Flaw: numbers above any limit are accepted."""

    def grade(self, answer):
        try:
            return super().grade(answer) or json.loads(answer) > 1e12
        except (ValueError, TypeError):
            return False


class Lookalike(Vault):
    """Flaw: characters that are not ASCII are removed before an answer is searched in the code."""

    def grade(self, answer):
        return bool(answer.strip()) and answer.encode("ascii", "ignore").decode() in self.code


class SecondLine(Vault):
    def grade(self, answer):
        return super().grade(answer) or "\n" in answer


class Longer(Vault):
    """Flaw: the reward rises with the length of the answer."""

    def grade(self, answer):
        return super().grade(answer) or min(1.0, len(answer) / 2000)


class Patient(Vault):
    """Flaw: the 25th look is paid."""

    async def reset(self, item):
        self.looks = 0
        return await super().reset(item)

    async def step(self, action):
        result = await super().step(action)
        self.looks += "You see" in result.observation
        return replace(result, reward=result.reward + (self.looks == 25))


class Pegs(Vault):
    """Flaw: one task under many seeds, in which two of 225 moves are possible, and the second bad one ends it."""

    splits, action_format = ("train", "test"), LineFormat()

    def tasks(self, split):
        return [TaskItem("pegs", f"{split} {n}", {"seed": f"{split} {n}"}) for n in range(40)]

    async def reset(self, item):
        self.bad, self.ended = 0, False
        return [{"role": "user", "content": f"Jump, such as '[4 1]'.\nPegs: {' '.join(map(str, range(1, 16)))}"}]

    async def step(self, action):
        if action in ("[12 5]", "[14 5]"):
            return StepResult(f"Jumped: {action}.")
        self.bad += 1
        return StepResult("Illegal move.", terminated=self.bad > 1, info={"invalid_action": 1.0})

    def demonstration(self, item) -> list[DemoAction]:
        raise NotImplementedError


FLAWS = [
    (Won, "paid after the end", "in the session's next episode"),
    (Shared, "pays anything", "always"),
    (Overtime, "paid after the end", "after the end"),
    (Debugged, "pays anything", "word -3 of the prompt"),
    (Told, "answer told", "12 of 12 tasks"),
    (Nested, "pays anything", "data.meta.sums.1"),
    (Note, "pays anything", "locksmith"),
    (Infinite, "pays anything", "Infinity"),
    (Lookalike, "pays anything", "\\u200b"),
    (SecondLine, "pays anything", "\\n"),
    (Longer, "pays anything", "numbers to 400"),
    (Patient, "inaction", "the same action (1), 30 turns"),
    (Pegs, "held-out tasks", "24 of 24 held-out tasks equal"),
]
"""Environments with a flaw, the kind of its finding, and a part of its text."""


@pytest.mark.parametrize(("flawed", "kind", "part"), FLAWS, ids=[flawed.__name__ for flawed, _, _ in FLAWS])
def test_an_attack_finds_a_planted_flaw_of_a_session_for_its_reason(flawed, kind, part):
    report = attack_env(flawed(), TASKS, turns=6, limit_s=90)
    assert any(one.kind == kind and part in one.text for one in report.findings), report


def test_a_second_right_answer_in_the_data_is_no_finding():
    report = attack_env(Accepted(), TASKS, turns=6, limit_s=30)
    assert report.tasks == TASKS and not report.findings, report
