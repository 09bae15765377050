"""reasoning-gym: generated questions with a verifier, in one turn or in several with feedback."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import override

from env_adapters.reasoning_gym import verifiers
from env_adapters.seeded import Count, Names, OwnRandom, SeededEnv
from verl_agent.envs.action_format import TagFormat
from verl_agent.envs.options import checked_options
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import DemoAction, Message, StepResult, TaskItem, reaches

MAX_ANSWER = 10_000
"""Most characters of an answer. Some verifiers take minutes for a longer one."""
UNORDERED = frozenset(("isomorphic_strings", "polynomial_multiplication", "ransom_note"))
"""Generators that draw from sets of texts, whose order differs between processes (reasoning-gym 0.1.25)."""


class ReasoningGym(SeededEnv):
    """Question of a generator. The return is the best score of the answers, 0 to 1.

    It terminates with the full score, or after the last answer.
    """

    env, module = "reasoning_gym", "reasoning_gym"
    action_format = TagFormat(tags=(("answer", "<your answer>"),))

    @checked_options
    def __init__(
        self,
        names: Names = "chain_sum",
        config: Mapping[str, Any] | None = None,
        turns: Annotated[int, Field(ge=1, le=100)] = 1,
        train: Count = 1000,
        test: Count = 100,
    ) -> None:
        """Check the options; nothing is generated.

        Args:
            names: name of a generator, such as `chain_sum`, or a list of names.
            config: arguments of the generators, such as `{max_terms: 3}`; without `seed` and `size`.
            turns: number of answers; after a wrong one the score is shown, 1 to 100.
            train: number of training tasks of each generator.
            test: number of held-out tasks of each generator.
        """
        super().__init__(names, train, test, allow_unseeded=False)
        self.turns, self.config = turns, dict(config or {})
        if fixed := sorted({"seed", "size"} & self.config.keys()):
            raise ConfigError(f"env.options.config.{fixed[0]} is not allowed: the task sets it. Leave it out.")
        known = self.library().factory.DATASETS
        for name in self.names:
            if name not in known:
                raise ConfigError(
                    f"env.options.names={name!r} is no generator of reasoning-gym. {did_you_mean(name, known, 400)}"
                )

    @property
    @override
    def deterministic(self) -> bool:  # type: ignore[override]
        """False if a generator asks another question in another process."""
        return not UNORDERED.intersection(self.names) and super().deterministic

    def _generate(self, item: TaskItem) -> tuple[Any, dict[str, Any]]:
        """Return the generator and the entry of a task."""
        name, seed = item.data["name"], item.data["seed"]
        with OwnRandom(seed)():  # a few generators draw from the process-wide generator
            try:
                dataset = self.library().create_dataset(name, seed=seed, size=1, **self.config)
            except (TypeError, ValueError, AssertionError) as error:
                raise ConfigError(f"env.options.config={self.config!r} does not fit {name!r}: {error}") from error
            return dataset, dataset[0]

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        self._dataset, self._entry = self._generate(item)
        self._left, self._best, self._seed = self.turns, 0.0, item.data["seed"]
        again = f" You have {self.turns} attempts." if self.turns > 1 else ""
        return [
            {"role": "system", "content": f"Answer the question.{again}"},
            {"role": "user", "content": self._entry["question"]},
        ]

    @override
    async def step(self, action: str) -> StepResult:
        """Score an answer; only what exceeds the best score so far is rewarded."""
        if not self._left:
            return StepResult("The task has ended.", terminated=True)
        found = self.action_format.split(action)
        if found is None or len(found[1]) > MAX_ANSWER:
            self._left -= 1
            text = f"There is no answer of at most {MAX_ANSWER} characters. {self._attempts()}"
            return StepResult(text, terminated=not self._left, info={"invalid_action": 1.0})
        score = self._score(self._dataset, self._entry, found[1].strip())
        gain, self._best = max(0.0, score - self._best), max(score, self._best)
        right = self._solved(score)
        self._left = 0 if right else self._left - 1
        text = "Right." if right else f"Wrong, the score is {score:.2f} of 1. {self._attempts()}"
        return StepResult(text, gain, terminated=not self._left)

    def _solved(self, score: float) -> bool:
        return reaches([score], self.success_reward)

    def _attempts(self) -> str:
        return f"Attempts left: {self._left}."

    def _score(self, dataset: Any, entry: Mapping[str, Any], answer: str) -> float:
        """Return the score of an answer, 0 to 1; an answer that the verifier cannot read has 0."""
        name = str(entry["metadata"].get("source_dataset"))
        if (known := verifiers.own_score(name, answer, entry)) is not None:
            return known
        with OwnRandom(0)():
            try:
                return min(1.0, max(0.0, float(dataset.score_answer(answer, entry))))
            except Exception:  # boundary: verifiers parse the answer with what they have, such as sympy
                return 0.0

    @override
    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return the generator's own answer, where its verifier accepts it."""
        dataset, entry = self._generate(item)
        answer = entry["answer"]
        if (
            not isinstance(answer, str)
            or not answer.strip()
            or not self._solved(self._score(dataset, entry, answer.strip()))
        ):
            raise NotImplementedError(f"{item.data['name']} gives no answer to {item.id!r}.")
        action = self.action_format.action_with(answer.strip())
        if self.action_format.parse(action) != action:
            raise NotImplementedError(f"The answer to {item.id!r} does not survive the action format.")
        return [DemoAction(action)]

    @override
    async def close(self) -> None:
        """Nothing is open."""
