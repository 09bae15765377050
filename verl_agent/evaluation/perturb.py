"""Perturbations of an environment, to measure robustness: failing actions, typos, other names and prompts."""

import random
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from verl_agent.envs.session import Session
from verl_agent.rollout.sessions import WrappedSession
from verl_agent.sections import settings
from verl_agent.types import Action, Message, StepResult, TaskItem, ToolCall

Share = Annotated[float, Field(ge=0, le=1)]
FAULT = "The action could not be carried out for a technical reason, and nothing has changed. Try it again."
"""Observation in place of that of an action that fails."""
MIN_RENAMED = 4
"""Letters from which a word is renamed; shorter ones are mostly function words."""
SENTENCES = (
    "A clock ticks somewhere.",
    "It is cloudy outside.",
    "Somebody laughs in the distance.",
    "There is a faint smell of coffee.",
    "A radio plays an old song.",
    "The light flickers for a moment.",
    "Yesterday was a busy day.",
    "A note on the wall says that the lift is out of order.",
    "Three people have walked past.",
    "The floor was cleaned recently.",
    "A phone rings twice and stops.",
    "The window does not close properly.",
)
"""Distractors, which help with no task."""
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_WORD = re.compile(r"[A-Za-z]+")


@settings("evaluation.perturb", base="agent_eval")
class PerturbSettings:
    """Changes to the environment, to measure robustness. The defaults change nothing."""

    fault_rate: Share = 0.0
    """Share of actions that fail without an effect, with an observation that says so, 0 to 1."""
    observation_noise: Share = 0.0
    """Share of the words of observations in which two neighboring letters are swapped, 0 to 1."""
    rename: bool = False
    """True to give the words of a task's first observation, from four letters on, other names: in all observations, and
    backwards in actions. Words that the rules of the environment use keep theirs."""
    prompt_variant: Literal["lowercase", "one_line", "reordered"] | None = None
    """Form of the environment's rules: `lowercase`, `one_line` (without line breaks) or `reordered` (paragraphs in
    another order); null for the original."""
    distractors: Annotated[int, Field(ge=0, le=len(SENTENCES))] = 0
    """Sentences without meaning for the task that are added to each observation, >= 0."""

    @property
    def active(self) -> bool:
        """True if something is changed."""
        return any(getattr(self, field.name) for field in fields(self))


class PerturbedSession(WrappedSession):
    """Session of a perturbed environment. Its random choices depend on the seed, the task and the turn alone."""

    def __init__(self, session: Session, settings: PerturbSettings, seed: int) -> None:
        super().__init__(session)
        self._settings, self._seed = settings, seed
        self._task, self._turn = "", 0
        self._names: Mapping[str, str] = {}

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        *rules, first = await super().reset(item)
        self._task, self._turn = item.id, 0
        if self._settings.rename:
            known = " ".join(message["content"] for message in rules)
            self._names = new_names(first["content"], known, f"{self._seed}/{item.id}")
        changed: list[Message] = [
            {"role": message["role"], "content": self._variant(message["content"])} if number == 0 else message
            for number, message in enumerate(rules)
        ]
        return [*changed, {"role": first["role"], "content": self._observed(first["content"])}]

    @override
    async def step(self, action: Action) -> StepResult:
        self._turn += 1
        if self._draws("fault").random() < self._settings.fault_rate:
            return StepResult(self._observed(FAULT), info={"perturbed_fault": 1.0})
        result = await super().step(_renamed_action(action, {new: old for old, new in self._names.items()}))
        return replace(result, observation=self._observed(result.observation))

    def _observed(self, text: str) -> str:
        """Return an observation as the policy reads it."""
        draws, settings = self._draws("text"), self._settings
        text = renamed(text, self._names)
        if settings.observation_noise:
            text = _WORD.sub(lambda word: with_typo(word[0], settings.observation_noise, draws), text)
        return "\n".join([text, *draws.sample(SENTENCES, settings.distractors)])

    def _variant(self, rules: str) -> str:
        if self._settings.prompt_variant == "lowercase":
            return rules.lower()
        if self._settings.prompt_variant == "one_line":
            return " ".join(rules.split())
        if self._settings.prompt_variant == "reordered":
            first, *others = rules.split("\n\n") if "\n\n" in rules else rules.split("\n")
            random.Random(f"{self._seed}").shuffle(others)
            return ("\n\n" if "\n\n" in rules else "\n").join([first, *others])
        return rules

    def _draws(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}/{self._task}/{self._turn}/{purpose}")


def _renamed_action(action: Any, names: Mapping[str, str]) -> Any:
    """Return an action, or an argument of one, with other names in its texts."""
    if isinstance(action, ToolCall):
        return ToolCall(action.name, _renamed_action(dict(action.arguments), names))
    if isinstance(action, dict):
        return {key: _renamed_action(value, names) for key, value in action.items()}
    if isinstance(action, list):
        return [_renamed_action(value, names) for value in action]
    return renamed(action, names) if isinstance(action, str) else action


def new_names(text: str, known: str, seed: str) -> dict[str, str]:
    """Return a new name for each lower-case form of the words of a text that `known` does not contain."""
    kept = {word.lower() for word in _WORD.findall(known)}
    words = dict.fromkeys(word.lower() for word in _WORD.findall(text) if len(word) >= MIN_RENAMED)
    names: dict[str, str] = {}
    used = kept | set(words)
    draws = random.Random(seed)
    for word in sorted(set(words) - kept):
        while (name := "".join(draws.choices(_SYLLABLES, k=max(2, len(word) // 2)))) in used:
            pass
        used.add(name)
        names[word] = name
    return names


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other words, which keep the case of their first letter."""

    def one(found: re.Match[str]) -> str:
        name = names.get(found[0].lower())
        if name is None:
            return found[0]
        return name.capitalize() if found[0][0].isupper() else name

    return _WORD.sub(one, text) if names else text


def with_typo(word: str, rate: float, draws: random.Random) -> str:
    """Return a word in which two neighboring letters are swapped with probability `rate`, if it has two."""
    if draws.random() >= rate or len(word) < 2:
        return word
    at = draws.randrange(len(word) - 1)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
