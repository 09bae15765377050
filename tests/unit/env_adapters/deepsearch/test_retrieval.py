"""Test the corpora, indexes, server, client and question files of Deep Search, and their error messages."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
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
from env_adapters.deepsearch.bm25 import Bm25Index, top_positions
from env_adapters.deepsearch.corpus import (
    DICTD_DIGITS,
    MAX_WORDS,
    dictionary_passages,
    embedded_sources,
    file_source,
    split_passages,
)
from env_adapters.deepsearch.dense import DenseIndex
from env_adapters.deepsearch.index import import_library
from env_adapters.deepsearch.passages import open_jsonl
from env_adapters.deepsearch.retriever import ROUNDS, HttpRetriever, open_retriever, parse_location
from env_adapters.deepsearch.server import create_app
from env_adapters.deepsearch.store import (
    BUILD,
    FORMAT,
    build_embedded,
    build_index,
    embedded_folder,
    open_passage_index,
)
from tests import ROOT
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError
from verl_agent.types import TaskItem

TEXTS = {
    "Paris": "Paris is the capital and largest city of France.",
    "Rome": "Rome is the capital of Italy; all roads lead there.",
    "Brasília": "Brasília is the capital of Brazil.",
    "Cheese": "Cheese is made from milk in France and elsewhere.",
}
ITEM = TaskItem("deepsearch", "q", {"question": "What is the capital of France?", "answers": ["Paris"]})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache for each test; return Deep Search's folder in it."""
    monkeypatch.setenv("VERL_AGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEEPSEARCH_QUESTIONS", raising=False)
    return tmp_path / "cache" / "deepsearch"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a corpus file in Search-R1's format."""
    rows = [{"id": str(n), "contents": f'"{title}"\n{text}'} for n, (title, text) in enumerate(TEXTS.items())]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def index(corpus: Path, tmp_path: Path) -> Bm25Index:
    """Return the BM25 index of the corpus file."""
    build_index([file_source(corpus)], tmp_path / "index")
    opened = open_passage_index(tmp_path / "index")
    assert isinstance(opened, Bm25Index)
    return opened


@contextmanager
def served(index: Bm25Index) -> Iterator[str]:
    """Run a retriever server on a free local port; yield its URL."""
    server = uvicorn.Server(uvicorn.Config(create_app(index), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


class ScriptedTransport(httpx.BaseTransport):
    """Network with scripted responses, which records the requested hosts."""

    def __init__(self, *responses: httpx.Response | Exception) -> None:
        self.responses = list(responses)
        self.hosts: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.hosts.append(request.url.host)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


PARIS = httpx.Response(200, json={"result": [[{"document": {"id": "0", "contents": '"Paris"\ntext'}, "score": 1.0}]]})


def retrieve(network: ScriptedTransport, urls: Sequence[str] = ("http://one",), timeout_s: float = 20.0) -> list[str]:
    return [passage.title for passage in HttpRetriever(urls, timeout_s, network).search("France", 3)]


def titles(index: Any, query: str, count: int = 3) -> list[str]:
    return [hit.passage.title for hit in index.search(query, count)]


# Indexes


def test_a_search_returns_matching_passages_best_first(index):
    assert len(index) == 4
    assert titles(index, "capital of France") == ["Paris", "Cheese", "Brasília"]
    assert titles(index, "capital of France", 1) == ["Paris"]
    assert titles(index, "BRASILIA") == ["Brasília"]
    assert titles(index, "xyzzy") == titles(index, "") == []


def test_lower_positions_win_ties():
    assert top_positions(np.array([1.0, 3.0, 2.0, 3.0, 2.0]), 3) == [1, 3, 2]
    assert top_positions(np.array([0.0, 1.0, 0.0]), 3) == [1]
    assert top_positions(np.array([0.0]), 3) == []


def test_threads_share_an_index(index):
    with ThreadPoolExecutor(8) as threads:
        first = list(threads.map(lambda n: titles(index, ["France", "Italy", "milk"][n % 3], 1)[0], range(300)))
    assert first == ["Paris", "Rome", "Cheese"] * 100


def test_build_makes_a_new_index_only_if_a_source_changed(corpus):
    first = build_embedded([file_source(corpus)])
    assert build_embedded([file_source(corpus)]) == (first[0], False)
    with corpus.open("a") as file:
        file.write('{"id": "9", "contents": "\\"Oslo\\"\\nOslo is the capital of Norway."}\n')
    second = build_embedded([file_source(corpus)])
    assert second[1]
    assert second[0] != first[0]
    assert titles(open_passage_index(embedded_folder()), "Norway") == ["Oslo"]


def test_concurrent_builds_make_one_index(corpus, cache):
    with ThreadPoolExecutor(4) as threads:
        builds = list(threads.map(lambda _: build_embedded([file_source(corpus)]), range(4)))
    assert sorted(new for _, new in builds) == [False, False, False, True]
    assert len({folder for folder, _ in builds}) == 1
    assert titles(open_passage_index(embedded_folder()), "Italy") == ["Rome"]


def test_build_removes_folders_of_interrupted_builds(corpus, cache):
    (cache / "making-1").mkdir(parents=True)
    build_embedded([file_source(corpus)])
    assert not list(cache.glob("making-*"))


def test_a_missing_corpus_raises_config_error_with_the_build_command():
    with pytest.raises(ConfigError, match=f"has no corpus .* {BUILD}"):
        asyncio.run(DeepSearch().reset(ITEM))


def test_an_index_of_another_format_raises_config_error(index, tmp_path):
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"format": {FORMAT}', '"format": 999'))
    with pytest.raises(ConfigError, match=f"has format 999. Build it again: {BUILD}"):
        open_passage_index(tmp_path / "index")


def test_a_folder_without_an_index_raises_config_error(tmp_path):
    with pytest.raises(ConfigError, match="does not hold one"):
        open_passage_index(tmp_path)


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"id": 1}', '{"id": 1, "contents": null}'])
def test_an_invalid_corpus_line_raises_config_error_with_its_number(line, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 1, "contents": "\\"A\\"\\nb"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2: each line must be"):
        build_index([file_source(path)], tmp_path / "index")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.jsonl"]


def test_commands_print_config_errors_and_exit_with_status_2(corpus, tmp_path):
    def error_of(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 2, result.output
        return " ".join(result.output.split())

    assert "--corpus and --output belong together" in error_of("build", "--corpus", str(corpus))
    assert "does not exist" in error_of("build", "--corpus", "no.jsonl", "--output", str(tmp_path / "i"))
    assert "has no corpus" in error_of("serve")
    assert "belong together" in error_of("serve", "--corpus", str(corpus))


def test_a_missing_library_raises_config_error_with_the_install_command():
    with pytest.raises(ConfigError, match="pip install no-such-package"):
        import_library("no_such_module", "no-such-package")


def test_the_index_of_a_users_file_serves_as_retriever(corpus, tmp_path):
    folder = tmp_path / "mine"
    result = CliRunner().invoke(app, ["build", "--corpus", str(corpus), "--output", str(folder)])
    assert result.exit_code == 0, result.output
    env = DeepSearch(retriever=str(folder))
    asyncio.run(env.reset(ITEM))
    assert "Paris is the capital" in asyncio.run(env.step("<search>France capital</search>")).observation


# Dictionaries and passages


def to_digits(number: int) -> str:
    return (to_digits(number // 64) if number >= 64 else "") + DICTD_DIGITS[number % 64]


def test_dictionaries_are_read_in_the_format_of_dictd(tmp_path):
    entries = [("00-database-info", "about"), ("apple", "Apple\n  A {fruit}."), ("pie", "Pie\n  Baked " + "x " * 70)]
    content, lines = "", []
    for word, text in entries:
        lines.append(f"{word}\t{to_digits(len(content))}\t{to_digits(len(text))}")
        content += text
    lines.append(lines[-1].replace("pie", "tart"))  # another word for the same entry
    (tmp_path / "x.index").write_text("\n".join(lines) + "\n")
    with gzip.open(tmp_path / "x.dict.dz", "wb") as file:
        file.write(content.encode())
    passages = list(dictionary_passages("x", tmp_path / "x.index", tmp_path / "x.dict.dz"))
    assert [(passage.title, passage.text[:16]) for passage in passages] == [
        ("apple", "Apple A fruit."),
        ("pie", "Pie Baked x x x "),
    ]


def test_fetched_dictionaries_are_sources(cache):
    (cache / "dictd").mkdir(parents=True)
    for name in ("jargon.index", "jargon.dict.dz"):
        (cache / "dictd" / name).write_bytes(b"")
    assert "dict-jargon" in [source.name for source in embedded_sources()]


def test_long_texts_are_split_between_their_entries_if_possible():
    entries = ["a " * 60, "b " * 50, "c " * 230, "d " * 20]
    lengths = [len(passage.text.split()) for passage in split_passages("k", "t", entries)]
    assert max(lengths) <= MAX_WORDS
    assert lengths == [60, 50, 100, 100, 50]


def test_a_users_file_is_read_by_line_number_without_a_copy(corpus, tmp_path):
    for _ in range(2):
        passages = open_jsonl(corpus, tmp_path / "offsets.npy")
        assert [passages[n].title for n in range(len(passages))] == list(TEXTS)
    corpus.write_text("{}\n")
    with pytest.raises(ConfigError, match="has changed since"):
        open_jsonl(corpus, tmp_path / "offsets.npy")


class Vectors:
    """Faiss index of two-dimensional vectors, with the methods that `DenseIndex` uses."""

    def __init__(self, *vectors: tuple[float, float]) -> None:
        self.vectors, self.ntotal = np.array(vectors, dtype="float32"), len(vectors)

    def search(self, queries: Any, count: int) -> tuple[Any, Any]:
        scores = queries @ self.vectors.T
        positions = np.argsort(-scores, axis=1)[:, :count]
        return np.take_along_axis(scores, positions, axis=1), positions


class ConstantEncoder:
    """Encoder that returns the vector (1, 0) for every text."""

    def encode(self, texts: list[str], kind: str) -> Any:
        return np.array([[1.0, 0.0]] * len(texts), dtype="float32")


def test_a_dense_index_returns_the_nearest_vectors(corpus, tmp_path):
    passages = open_jsonl(corpus, tmp_path / "offsets.npy")
    index = DenseIndex(Vectors((0, 1), (0.6, 0.8), (1, 0), (0, 1)), passages, ConstantEncoder())
    assert [(hit.passage.title, round(hit.score, 1)) for hit in index.search("?", 2)] == [
        ("Brasília", 1.0),
        ("Rome", 0.6),
    ]
    with pytest.raises(ConfigError, match="holds 1 vectors, the corpus 4 passages"):
        DenseIndex(Vectors((0, 1)), passages, ConstantEncoder())


# Server and client


def test_an_episode_over_http_equals_one_in_process(index, tmp_path):
    def observations(retriever: str | list[str]) -> list[str]:
        env = DeepSearch(retriever=retriever)
        asyncio.run(env.reset(ITEM))
        replies = ["<search>France capital</search>", "<search>xyzzy</search>", "<answer>Paris</answer>"]
        return [asyncio.run(env.step(reply)).observation for reply in replies]

    with served(index) as url:
        assert observations(url) == observations([f"{url}/retrieve", url]) == observations(str(tmp_path / "index"))


def test_the_server_answers_in_the_format_of_search_r1(index):
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
def test_the_server_rejects_invalid_requests(index, body):
    with served(index) as url:
        assert httpx.post(f"{url}/retrieve", json=body).status_code == 422


def test_the_client_reads_responses_without_scores():
    assert retrieve(
        ScriptedTransport(httpx.Response(200, json={"result": [[{"id": "0", "contents": '"Paris"\ntext'}]]}))
    ) == ["Paris"]


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"result": []}),
        httpx.Response(200, json={"result": [[{"document": {"id": "0"}}]]}),
        httpx.Response(200, json={"result": [[{"document": {"contents": 7}}]]}),
        httpx.Response(200, json={"result": [["text"]]}),
    ],
)
def test_an_invalid_response_raises_env_error(response):
    with pytest.raises(EnvError, match="http://one/retrieve should answer"):
        retrieve(ScriptedTransport(response))


def test_a_server_error_is_not_retried():
    network = ScriptedTransport(httpx.Response(500, text="out of memory"))
    with pytest.raises(EnvError, match="HTTP 500: out of memory"):
        retrieve(network)


def test_a_busy_or_unreachable_server_is_retried():
    network = ScriptedTransport(httpx.Response(503), httpx.ConnectError("refused"), PARIS)
    assert retrieve(network) == ["Paris"]
    assert network.hosts == ["one"] * 3


def test_the_next_server_replaces_an_unreachable_one():
    network = ScriptedTransport(httpx.ConnectError("refused"), PARIS)
    assert retrieve(network, ["http://one", "http://two/retrieve/"]) == ["Paris"]
    assert network.hosts == ["one", "two"]


def test_servers_take_turns():
    network = ScriptedTransport(PARIS, PARIS, PARIS)
    servers = HttpRetriever(["http://one", "http://two"], 20.0, network)
    for _ in range(3):
        servers.search("France", 3)
    assert network.hosts == ["one", "two", "one"]


def test_check_asks_the_server_until_it_has_answered_once():
    network = ScriptedTransport(httpx.Response(500), PARIS)
    servers = HttpRetriever(["http://one"], 20.0, network)
    with pytest.raises(EnvError):
        servers.check()
    for _ in range(3):
        servers.check()
    assert len(network.hosts) == 2


def test_a_server_that_stays_unreachable_raises_env_error():
    network = ScriptedTransport(*[httpx.ConnectError("refused")] * ROUNDS)
    with pytest.raises(EnvError, match=r"no retriever answered after 3 rounds.*ConnectError: refused"):
        retrieve(network)


def test_a_timeout_is_not_retried():
    network = ScriptedTransport(httpx.ReadTimeout("slow"))
    with pytest.raises(EnvTimeoutError, match="did not answer within 20 s"):
        retrieve(network)


def test_retries_stay_within_the_timeout():
    network = ScriptedTransport(*[httpx.ConnectError("refused")] * ROUNDS)
    started = time.monotonic()
    with pytest.raises(EnvTimeoutError, match=r"more than 0\.1 s"):
        retrieve(network, timeout_s=0.1)
    assert time.monotonic() - started < 2.0


def test_sessions_of_a_process_share_one_retriever(index, tmp_path):
    location = parse_location(str(tmp_path / "index"))
    assert open_retriever(location, 20.0) is open_retriever(location, 20.0)


@pytest.mark.parametrize(
    ("option", "location"),
    [
        ("embedded", ("embedded",)),
        ("/data/index", ("/data/index",)),
        ("http://a:1, https://b", ("http://a:1", "https://b")),
        (["http://a", "http://b"], ("http://a", "http://b")),
    ],
)
def test_retriever_option_is_embedded_a_folder_or_urls(option, location):
    assert parse_location(option) == location


@pytest.mark.parametrize("option", [None, "", [], ["a", "b"], ["http://a", 1], "ftp://a", 7, {"a": 1}])
def test_invalid_retriever_option_raises_config_error(option):
    with pytest.raises(ConfigError, match=r"env\.options\.retriever="):
        parse_location(option)


# Questions from elsewhere


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder of question files and return it."""
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


def test_a_question_has_the_same_id_in_train_and_test_files(questions):
    row = json.dumps({"question": "q", "golden_answers": ["a"]})
    for split in ("train", "test"):
        (questions / f"hotpotqa_{split}.jsonl").write_text(row + "\n")
    assert DeepSearch().tasks("hotpotqa_train")[0].id == DeepSearch().tasks("hotpotqa_test")[0].id


def test_questions_of_files_have_no_demonstration(questions):
    (questions / "nq_test.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(NotImplementedError):
        DeepSearch().demonstration(DeepSearch().tasks("nq_test")[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("PAR1", "cannot be read"),
        ('{"question": "q"}', "row 1: needs `question`"),
        ('{"question": "q", "golden_answers": []}', "row 1: needs `question`"),
        ('{"question": "q", "golden_answers": [1]}', "row 1: needs `question`"),
        ("[1]", "row 1: needs `question`"),
        ("nonsense", "cannot be read"),
    ],
)
def test_an_invalid_question_file_raises_config_error(questions, content, message):
    (questions / f"mine.{'parquet' if content == 'PAR1' else 'jsonl'}").write_text(content + "\n")
    with pytest.raises(ConfigError, match=message):
        DeepSearch().tasks("mine")


def test_duplicate_split_names_raise_config_error(questions):
    (questions / "train.jsonl").touch()
    with pytest.raises(ConfigError, match="Rename the file"):
        DeepSearch()
    (questions / "train.jsonl").rename(questions / "mine.jsonl")
    (questions / "mine.parquet").touch()
    with pytest.raises(ConfigError, match="two files with the same name"):
        DeepSearch()


def test_a_missing_folder_of_questions_raises_config_error(monkeypatch):
    monkeypatch.setenv("DEEPSEARCH_QUESTIONS", "/no/such/folder")
    with pytest.raises(ConfigError, match="DEEPSEARCH_QUESTIONS='/no/such/folder' is not a folder"):
        DeepSearch()


LIST_FANOUTQA = """
from env_adapters.deepsearch.adapter import DeepSearch
assert list(DeepSearch().splits)[-1] == "fanoutqa"
print([dict(item.data) for item in DeepSearch().tasks("fanoutqa")])
"""


def test_fanoutqa_is_a_split_if_it_is_installed(tmp_path):
    (tmp_path / "fanoutqa" / "data").mkdir(parents=True)
    (tmp_path / "fanoutqa" / "__init__.py").write_text("raise RuntimeError('only the data of the package is read')")
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


def test_a_fanoutqa_answer_needs_every_part_for_its_reward():
    item = TaskItem("deepsearch", "fanoutqa:7", {"question": "?", "answers": ["Avatar", "2"], "match": "all"})

    def reward(answer: str) -> float:
        env = DeepSearch(retriever=str(folder))
        asyncio.run(env.reset(item))
        return asyncio.run(env.step(f"<answer>{answer}</answer>")).reward

    folder = Path(os.environ["VERL_AGENT_CACHE"]) / "index"
    source = Path(os.environ["VERL_AGENT_CACHE"]) / "c.jsonl"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text('{"id": 1, "contents": "\\"A\\"\\nb"}\n')
    build_index([file_source(source)], folder)
    assert [reward("Avatar: 2 weeks"), reward("Avatar: 20")] == [1.0, 0.0]
