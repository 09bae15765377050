"""Questions to a person: who wrote which line, the action exactly, and the rule that asks."""

import ast
import asyncio
import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.support.fakes import ITEM, ScriptedPolicy, plain, talk_class
from tests.support.hostile import ACTION, IMITATION
from tests.support.terminals import HOSTILE, acting_bytes
from verl_agent.oversight.approval import Approval
from verl_agent.oversight.base import Decision, Proposal
from verl_agent.oversight.person import COMMANDS, Person
from verl_agent.oversight.question import OURS, Question, describe_action
from verl_agent.oversight.rules import Rule
from verl_agent.rollout.candidates import Candidate
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.terminal import say
from verl_agent.types import Episode, Reply, TaskItem


def shown(text: str, width: int = 80) -> list[str]:
    """Return the lines of a text in a terminal."""
    output = io.StringIO()
    say(Console(file=output, width=width), text)
    return output.getvalue().splitlines()


def proposal(action: str, observation: str = "seen", item: TaskItem = ITEM, **fields: str) -> Proposal:
    messages = [{"role": "user", "content": f"rules {ACTION}"}, {"role": "user", "content": observation}]
    episode = Episode(item, 3, messages, prompt_length=2)
    return Proposal(episode, plain(), Reply(action), action, **fields)


@pytest.mark.parametrize(
    "hostile", [*HOSTILE.values(), IMITATION, "\n".join(["── action: ls", "> ", "│ x"]), "\n" * 99]
)
def test_no_line_of_others_looks_like_one_of_ours(hostile: str) -> None:
    item = TaskItem("talk", hostile, {})
    rule = f"rule 1 of the approval policy asks you: actions {hostile}"
    text = Question.about(proposal(hostile, hostile, item, asked_by=rule), COMMANDS).text()
    lines = shown(text)
    ours = [line for line in lines if line and not line.startswith("│ ")]  # the last one is wrapped by the terminal
    assert acting_bytes(text.encode()) == []
    heads = [
        "observation",
        "the agent replies",
        "action",
        "the action as bytes",
        "the action above",
        "rule 1",
        "/approve",
    ]
    heads += [f"{count} above" for count in ("70 lines", "1 line")]
    assert ours[0].startswith(OURS) and ours[-1].startswith(f"{OURS}/approve")
    assert all(line.startswith(OURS) for line in ours[1:])
    starts = [line.removeprefix(OURS) for line in ours[1:]]
    assert all(any(start.startswith(head) for head in heads) for start in starts), starts
    assert len([start for start in starts if start.startswith("action")]) == 1


@pytest.mark.parametrize("action", [*HOSTILE.values(), IMITATION, "l\u0455 -l", "one\n\n two ", "a\tb", "", " "])
def test_an_action_that_is_not_plain_text_is_shown_as_its_bytes(action: str) -> None:
    lines = [part for line in describe_action(action) for part in shown(line, 50)]
    heading = next((number for number, line in enumerate(lines) if "as bytes" in line), None)
    if heading is None:
        assert action in (HOSTILE["markup"], "")
        return
    literal = "".join(line.removeprefix("│ ") for line in lines[heading + 1 :])
    assert ast.literal_eval(literal).decode("utf-8", "surrogatepass") == action


def test_a_plain_action_is_shown_as_it_is() -> None:
    assert list(describe_action("click [12]")) == ["── action: click [12]"]
    assert list(describe_action(None)) == ["── action: (none found)"]
    assert list(describe_action("ls\n  -l")) == ["── action (2 lines, 7 characters):", "│ 1 ls", "│ 2   -l"]


def test_an_action_that_reads_like_no_action_is_framed() -> None:
    assert list(describe_action("(none found)")) == ["── action (1 line, 12 characters):", "│ (none found)"]


def test_candidates_that_look_alike_differ_by_their_bytes() -> None:
    actions = ["rm a", "rm a ", "rm \u0430", "rm a\n"]
    asked = replace(proposal("rm a"), candidates=[Candidate(one, 0.25, Reply(one)) for one in actions])
    first, *others = Question.about(asked).candidates
    assert first == " 25%  rm a"
    assert [ast.literal_eval(one[one.index("b'") :]).decode() for one in others] == actions[1:]


def test_a_long_action_ends_with_its_size_and_its_beginning() -> None:
    *_, size, begins = describe_action("rm -rf /" + "\n" * 1000 + "ls")
    assert size == "── the action above has 1001 lines, 1010 characters and begins with:"
    assert begins.startswith("│ rm -rf /␊")


def test_the_question_names_the_rule_that_asks() -> None:
    asked: list[str] = []

    class Noting(Person):
        async def ask(self, proposal: Proposal, refusal: str) -> Decision:
            asked.append(proposal.asked_by)
            return Decision("approve")

    session = talk_class()()
    rules = [
        Rule(["*"], text="never", by="rule", decision="approve"),
        Rule(["*"], text="^a", by="human"),
        Rule(["*"], by="human"),
    ]
    approval = Approval(rules, session.describe_action, Noting())
    asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy("ab"), EpisodeLimits(2), approval))
    assert asked == [
        "rule 2 of the approval policy asks you: actions *; text '^a'",
        "rule 3 of the approval policy asks you: actions *",
    ]
