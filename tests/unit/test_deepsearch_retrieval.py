"""Deep Search's corpora, indexes, server, client and question files work, and say what is wrong where they cannot."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import uvicorn
from typer.testing import CliRunner

from env_adapters.deepsearch.__main__ import app
from env_adapters.deepsearch.adapter import DeepSearch
from env_adapters.deepsearch.corpus import DIGITS, MAX_WORDS, dictionary_passages, embedded_sources, file_source, pieces
from env_adapters.deepsearch.dense import DenseIndex
from env_adapters.deepsearch.index import (
    BUILD,
    FORMAT,
    Bm25Index,
    best,
    build,
    build_embedded,
    embedded_folder,
    need,
    open_index,
)
from env_adapters.deepsearch.passages import map_passages
from env_adapters.deepsearch.retriever import ROUNDS, HttpRetriever, check_place, open_retriever
from env_adapters.deepsearch.server import create_app
from env_adapters.deepsearch.sources import parts
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError
from verl_agent.types import TaskItem

ROOT = Path(__file__).parents[2]
TEXTS = {
    "Paris": "Paris is the capital and largest city of France.",
    "Rome": "Rome is the capital of Italy; all roads lead there.",
    "Brasília": "Brasília is the capital of Brazil.",
    "Cheese": "Cheese is made from milk in France and elsewhere.",
}
ITEM = TaskItem("deepsearch", "q", {"question": "What is the capital of France?", "answers": ["Paris"]})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test; gives the folder of Deep Search in it."""
    monkeypatch.setenv("VERL_AGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEEPSEARCH_QUESTIONS", raising=False)
    return tmp_path / "cache" / "deepsearch"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus in Search-R1's form."""
    rows = [{"id": str(n), "contents": f'"{title}"\n{text}'} for n, (title, text) in enumerate(TEXTS.items())]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def index(corpus: Path, tmp_path: Path) -> Bm25Index:
    """The corpus above, indexed by words."""
    build([file_source(corpus)], tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, Bm25Index)
    return opened


@contextmanager
def served(index: Bm25Index) -> Iterator[str]:
    """A server on a free port of this machine; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(create_app(index), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


class Scripted(httpx.BaseTransport):
    """A network that answers what it is told, and remembers which hosts were asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.hosts: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.hosts.append(request.url.host)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


FOUND = httpx.Response(200, json={"result": [[{"document": {"id": "0", "contents": '"Paris"\ntext'}, "score": 1.0}]]})


def ask(network: Scripted, urls: Sequence[str] = ("http://one",), timeout_s: float = 20.0) -> list[str]:
    return [found.title for found in HttpRetriever(urls, timeout_s, network).search("France", 3)]


def titles(index: Any, query: str, count: int = 3) -> list[str]:
    return [hit.passage.title for hit in index.search(query, count)]


# Indexes


def test_the_best_passages_come_first_and_the_others_not_at_all(index):
    assert len(index) == 4
    assert titles(index, "capital of France") == ["Paris", "Cheese", "Brasília"]
    assert titles(index, "capital of France", 1) == ["Paris"]
    assert titles(index, "BRASILIA") == ["Brasília"]
    assert titles(index, "xyzzy") == titles(index, "") == []


def test_of_equal_scores_the_first_places_win():
    assert best(np.array([1.0, 3.0, 2.0, 3.0, 2.0]), 3) == [1, 3, 2]
    assert best(np.array([0.0, 1.0, 0.0]), 3) == [1]
    assert best(np.array([0.0]), 3) == []


def test_threads_may_share_an_index(index):
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: titles(index, ["France", "Italy", "milk"][n % 3], 1)[0], range(300)))
    assert found == ["Paris", "Rome", "Cheese"] * 100


def test_a_changed_source_makes_another_index_and_an_unchanged_one_none(corpus):
    first = build_embedded([file_source(corpus)])
    assert build_embedded([file_source(corpus)]) == (first[0], False)
    with corpus.open("a") as file:
        file.write('{"id": "9", "contents": "\\"Oslo\\"\\nOslo is the capital of Norway."}\n')
    second = build_embedded([file_source(corpus)])
    assert second[1]
    assert second[0] != first[0]
    assert titles(open_index(embedded_folder()), "Norway") == ["Oslo"]


def test_builds_that_start_at_once_make_one_index(corpus, cache):
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: build_embedded([file_source(corpus)]), range(4)))
    assert sorted(new for _, new in made) == [False, False, False, True]
    assert len({folder for folder, _ in made}) == 1
    assert titles(open_index(embedded_folder()), "Italy") == ["Rome"]


def test_what_an_interrupted_build_left_is_cleared(corpus, cache):
    (cache / "making-1").mkdir(parents=True)
    build_embedded([file_source(corpus)])
    assert not list(cache.glob("making-*"))


def test_without_a_corpus_the_message_has_the_command():
    with pytest.raises(ConfigError, match=f"has no corpus .* {BUILD}"):
        asyncio.run(DeepSearch().reset(ITEM))


def test_an_index_of_another_format_is_refused(index, tmp_path):
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"format": {FORMAT}', '"format": 999'))
    with pytest.raises(ConfigError, match=f"has format 999. Build it anew: {BUILD}"):
        open_index(tmp_path / "index")


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not hold one"):
        open_index(tmp_path)


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"id": 1}', '{"id": 1, "contents": null}'])
def test_a_corpus_in_another_form_is_refused_by_line(line, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 1, "contents": "\\"A\\"\\nb"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2: each line must be"):
        build([file_source(path)], tmp_path / "index")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.jsonl"]


def test_commands_explain_what_is_wrong(corpus, tmp_path):
    def said(*words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 2, result.output
        return " ".join(result.output.split())

    assert "--corpus and --output belong together" in said("build", "--corpus", str(corpus))
    assert "does not exist" in said("build", "--corpus", "no.jsonl", "--output", str(tmp_path / "i"))
    assert "has no corpus" in said("serve")
    assert "belong together" in said("serve", "--corpus", str(corpus))
    assert "pip install no-such-package" in said_by(lambda: need("no_such_module", "no-such-package"))


def said_by(what: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as error:
        what()
    return str(error.value)


def test_an_index_of_a_users_file_is_built_and_named_as_retriever(corpus, tmp_path):
    folder = tmp_path / "mine"
    result = CliRunner().invoke(app, ["build", "--corpus", str(corpus), "--output", str(folder)])
    assert result.exit_code == 0, result.output
    env = DeepSearch(retriever=str(folder))
    asyncio.run(env.reset(ITEM))
    assert "Paris is the capital" in asyncio.run(env.step("<search>France capital</search>")).observation


# Dictionaries and passages


def to_digits(number: int) -> str:
    return (to_digits(number // 64) if number >= 64 else "") + DIGITS[number % 64]


def test_a_dictionary_is_read_in_the_format_of_dictd(tmp_path):
    entries = [("00-database-info", "about"), ("apple", "Apple\n  A {fruit}."), ("pie", "Pie\n  Baked " + "x " * 70)]
    content, lines = "", []
    for word, text in entries:
        lines.append(f"{word}\t{to_digits(len(content))}\t{to_digits(len(text))}")
        content += text
    lines.append(lines[-1].replace("pie", "tart"))  # another word for the same entry
    (tmp_path / "x.index").write_text("\n".join(lines) + "\n")
    with gzip.open(tmp_path / "x.dict.dz", "wb") as file:
        file.write(content.encode())
    found = list(dictionary_passages("x", tmp_path / "x.index", tmp_path / "x.dict.dz"))
    assert [(one.title, one.text[:16]) for one in found] == [("apple", "Apple A fruit."), ("pie", "Pie Baked x x x ")]


def test_fetched_dictionaries_are_sources(cache):
    (cache / "dictd").mkdir(parents=True)
    for name in ("jargon.index", "jargon.dict.dz"):
        (cache / "dictd" / name).write_bytes(b"")
    assert "dict-jargon" in [source.name for source in embedded_sources()]


def test_long_texts_are_cut_between_their_parts_where_possible():
    lengths = [len(one.text.split()) for one in pieces("k", "t", ["a " * 60, "b " * 50, "c " * 230, "d " * 20])]
    assert max(lengths) <= MAX_WORDS
    assert lengths == [60, 50, 100, 100, 50]


def test_a_users_file_is_read_by_place_without_being_copied(corpus, tmp_path):
    for _ in range(2):
        passages = map_passages(corpus, tmp_path / "offsets.npy")
        assert [passages[n].title for n in range(len(passages))] == list(TEXTS)
    corpus.write_text("{}\n")
    with pytest.raises(ConfigError, match="has changed since"):
        map_passages(corpus, tmp_path / "offsets.npy")


class Vectors:
    """A faiss index of two-dimensional vectors, as far as it is used."""

    def __init__(self, *vectors: tuple[float, float]) -> None:
        self.vectors, self.ntotal = np.array(vectors, dtype="float32"), len(vectors)

    def search(self, queries: Any, count: int) -> tuple[Any, Any]:
        scores = queries @ self.vectors.T
        places = np.argsort(-scores, axis=1)[:, :count]
        return np.take_along_axis(scores, places, axis=1), places


class East:
    """Encodes every text as the vector to the east."""

    def encode(self, texts: list[str], kind: str) -> Any:
        return np.array([[1.0, 0.0]] * len(texts), dtype="float32")


def test_a_dense_index_finds_the_nearest_vectors(corpus, tmp_path):
    passages = map_passages(corpus, tmp_path / "offsets.npy")
    index = DenseIndex(Vectors((0, 1), (0.6, 0.8), (1, 0), (0, 1)), passages, East())
    assert [(hit.passage.title, round(hit.score, 1)) for hit in index.search("?", 2)] == [
        ("Brasília", 1.0),
        ("Rome", 0.6),
    ]
    with pytest.raises(ConfigError, match="holds 1 vectors, the corpus 4 passages"):
        DenseIndex(Vectors((0, 1)), passages, East())


# Server and client


def test_an_episode_plays_over_http_as_it_does_in_process(index, tmp_path):
    def observed(place: str | list[str]) -> list[str]:
        env = DeepSearch(retriever=place)
        asyncio.run(env.reset(ITEM))
        replies = ["<search>France capital</search>", "<search>xyzzy</search>", "<answer>Paris</answer>"]
        return [asyncio.run(env.step(reply)).observation for reply in replies]

    with served(index) as url:
        assert observed(url) == observed([f"{url}/retrieve", url]) == observed(str(tmp_path / "index"))


def test_the_server_answers_as_search_r1_does(index):
    with served(index) as url:
        body = {"queries": ["Italy", "France"], "topk": 2, "return_scores": True}
        first, second = httpx.post(f"{url}/retrieve", json=body).json()["result"]
        assert [row["document"] for row in first] == [{"id": "1", "contents": f'"Rome"\n{TEXTS["Rome"]}'}]
        assert [row["document"]["id"] for row in second] == ["0", "3"]
        assert second[0]["score"] > second[1]["score"] > 0
        plain = httpx.post(f"{url}/retrieve", json={"queries": ["Italy"]}).json()["result"]
        assert plain == [[first[0]["document"]]]
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "passages": 4}


@pytest.mark.parametrize(
    "body",
    [{}, {"queries": []}, {"queries": "x"}, {"queries": ["x"], "topk": 0}, {"queries": ["x"] * 300}, {"queries": [1]}],
)
def test_the_server_refuses_what_it_does_not_understand(index, body):
    with served(index) as url:
        assert httpx.post(f"{url}/retrieve", json=body).status_code == 422


def test_an_answer_without_scores_is_understood():
    assert ask(Scripted(httpx.Response(200, json={"result": [[{"id": "0", "contents": '"Paris"\ntext'}]]}))) == [
        "Paris"
    ]


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"result": []}),
        httpx.Response(200, json={"result": [[{"document": {"id": "0"}}]]}),
        httpx.Response(200, json={"result": [[{"document": {"contents": 7}}]]}),
        httpx.Response(200, json={"result": [["text"]]}),
    ],
)
def test_nonsense_is_an_error_of_the_episode(answer):
    with pytest.raises(EnvError, match="http://one/retrieve should answer"):
        ask(Scripted(answer))


def test_an_error_of_the_server_is_not_asked_for_again():
    network = Scripted(httpx.Response(500, text="out of memory"))
    with pytest.raises(EnvError, match="HTTP 500: out of memory"):
        ask(network)


def test_a_server_that_is_busy_or_away_is_asked_again():
    network = Scripted(httpx.Response(503), httpx.ConnectError("refused"), FOUND)
    assert ask(network) == ["Paris"]
    assert network.hosts == ["one"] * 3


def test_another_server_stands_in_for_one_that_is_away():
    network = Scripted(httpx.ConnectError("refused"), FOUND)
    assert ask(network, ["http://one", "http://two/retrieve/"]) == ["Paris"]
    assert network.hosts == ["one", "two"]


def test_servers_take_turns():
    network = Scripted(FOUND, FOUND, FOUND)
    servers = HttpRetriever(["http://one", "http://two"], 20.0, network)
    for _ in range(3):
        servers.search("France", 3)
    assert network.hosts == ["one", "two", "one"]


def test_a_server_is_tried_until_it_has_answered_once():
    network = Scripted(httpx.Response(500), FOUND)
    servers = HttpRetriever(["http://one"], 20.0, network)
    with pytest.raises(EnvError):
        servers.check()
    for _ in range(3):
        servers.check()
    assert len(network.hosts) == 2


def test_a_server_that_stays_away_is_an_error_of_the_episode():
    network = Scripted(*[httpx.ConnectError("refused")] * ROUNDS)
    with pytest.raises(EnvError, match=r"no retriever answered after 3 rounds.*ConnectError: refused"):
        ask(network)


def test_a_slow_server_is_not_asked_again():
    network = Scripted(httpx.ReadTimeout("slow"))
    with pytest.raises(EnvTimeoutError, match="did not answer within 20 s"):
        ask(network)


def test_all_tries_together_stay_within_the_limit():
    network = Scripted(*[httpx.ConnectError("refused")] * ROUNDS)
    started = time.monotonic()
    with pytest.raises(EnvTimeoutError, match=r"more than 0\.1 s"):
        ask(network, timeout_s=0.1)
    assert time.monotonic() - started < 2.0


def test_a_server_that_is_down_shows_when_an_episode_begins(index):
    with served(index) as url:
        pass
    env = DeepSearch(retriever=url, timeout_s=1.0)
    with pytest.raises(EnvError):
        asyncio.run(env.reset(ITEM))


def test_a_process_shares_one_retriever(index, tmp_path):
    place = check_place(str(tmp_path / "index"))
    assert open_retriever(place, 20.0) is open_retriever(place, 20.0)


@pytest.mark.parametrize(
    ("place", "read"),
    [
        ("embedded", ("embedded",)),
        ("/data/index", ("/data/index",)),
        ("http://a:1, https://b", ("http://a:1", "https://b")),
        (["http://a", "http://b"], ("http://a", "http://b")),
    ],
)
def test_places_of_retrievers(place, read):
    assert check_place(place) == read


@pytest.mark.parametrize("place", [None, "", [], ["a", "b"], ["http://a", 1], "ftp://a", 7, {"a": 1}])
def test_other_places_are_refused(place):
    with pytest.raises(ConfigError, match=r"env\.options\.retriever="):
        check_place(place)


# Questions from elsewhere


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of question files, empty."""
    folder = tmp_path / "questions"
    folder.mkdir()
    monkeypatch.setenv("DEEPSEARCH_QUESTIONS", str(folder))
    return folder


ROWS = [
    {"question": "who wrote  it?", "golden_answers": ["Ann"], "data_source": "nq"},
    {"question": "who wrote it?", "golden_answers": ["Ann", "A. Nn"], "data_source": "nq"},
    {"question": "where?", "golden_answers": ["here"], "data_source": "bamboogle"},
]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_question_file_is_a_split(questions, suffix):
    file = questions / f"paper_test.{suffix}"
    if suffix == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        parquet.write_table(pa.Table.from_pylist(ROWS), file)
    assert "paper_test" in DeepSearch().splits
    first, second = DeepSearch().tasks("paper_test")
    assert (first.category, second.category) == ("nq", "bamboogle")
    assert first.data == {"question": "who wrote it?", "answers": ["Ann", "A. Nn"], "match": "exact"}
    assert first.id.startswith("nq:")


def test_the_same_question_in_train_and_test_has_the_same_id(questions):
    for part in ("train", "test"):
        (questions / f"hotpotqa_{part}.jsonl").write_text(json.dumps({"question": "q", "golden_answers": ["a"]}) + "\n")
    assert DeepSearch().tasks("hotpotqa_train")[0].id == DeepSearch().tasks("hotpotqa_test")[0].id


def test_a_question_from_a_file_has_no_gold_chain(questions):
    (questions / "nq_test.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(NotImplementedError):
        DeepSearch().demonstration(DeepSearch().tasks("nq_test")[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "q"}', "row 1: needs `question`"),
        ('{"question": "q", "golden_answers": []}', "row 1: needs `question`"),
        ('{"question": "q", "golden_answers": [1]}', "row 1: needs `question`"),
        ("[1]", "row 1: needs `question`"),
        ("nonsense", "cannot be read"),
    ],
)
def test_a_question_file_in_another_form_is_refused(questions, content, message):
    (questions / "mine.jsonl").write_text(content + "\n")
    with pytest.raises(ConfigError, match=message):
        DeepSearch().tasks("mine")


def test_a_parquet_file_that_is_none_is_refused(questions):
    (questions / "mine.parquet").write_text("nonsense")
    with pytest.raises(ConfigError, match="cannot be read"):
        DeepSearch().tasks("mine")


def test_names_that_clash_are_refused(questions):
    (questions / "train.jsonl").touch()
    with pytest.raises(ConfigError, match="Rename it"):
        DeepSearch()
    (questions / "train.jsonl").rename(questions / "mine.jsonl")
    (questions / "mine.parquet").touch()
    with pytest.raises(ConfigError, match="two files of one name"):
        DeepSearch()


def test_a_folder_of_questions_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("DEEPSEARCH_QUESTIONS", "/no/such/folder")
    with pytest.raises(ConfigError, match="DEEPSEARCH_QUESTIONS='/no/such/folder' is not a folder"):
        DeepSearch()


LIST_FANOUTQA = """
from env_adapters.deepsearch.adapter import DeepSearch
assert list(DeepSearch().splits)[-1] == "fanoutqa"
print([dict(item.data) for item in DeepSearch().tasks("fanoutqa")])
"""


def test_fanoutqa_is_a_split_where_it_is_installed(tmp_path):
    (tmp_path / "fanoutqa" / "data").mkdir(parents=True)
    (tmp_path / "fanoutqa" / "__init__.py").write_text("raise RuntimeError('only its data is read')")
    rows = [{"id": "7", "question": "Which?", "answer": {"Avatar": ["A", 2], "Titanic": True}}]
    (tmp_path / "fanoutqa" / "data" / "fanout-final-dev.json").write_text(json.dumps(rows))
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-c", LIST_FANOUTQA],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(
        [{"question": "Which?", "answers": ["Avatar", "A", "2", "Titanic", "yes"], "match": "all"}]
    )


def test_every_part_of_an_answer_is_found():
    assert list(parts({"a": [1, False], "b": {"c": 2.5}})) == ["a", "1", "no", "b", "c", "2.5"]


def test_where_all_parts_are_needed_the_reward_follows():
    item = TaskItem("deepsearch", "fanoutqa:7", {"question": "?", "answers": ["Avatar", "2"], "match": "all"})

    def reward(answer: str) -> float:
        env = DeepSearch(retriever=str(folder))
        asyncio.run(env.reset(item))
        return asyncio.run(env.step(f"<answer>{answer}</answer>")).reward

    folder = Path(os.environ["VERL_AGENT_CACHE"]) / "index"
    source = Path(os.environ["VERL_AGENT_CACHE"]) / "c.jsonl"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text('{"id": 1, "contents": "\\"A\\"\\nb"}\n')
    build([file_source(source)], folder)
    assert [reward("Avatar: 2 weeks"), reward("Avatar: 20")] == [1.0, 0.0]
