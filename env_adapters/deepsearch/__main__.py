"""Commands of Deep Search: `python -m env_adapters.deepsearch build | serve | verify`."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from env_adapters.deepsearch import questions, store
from env_adapters.deepsearch.answers import contains
from env_adapters.deepsearch.corpus import DICTIONARIES, Passage, deepsearch_dir, embedded_sources, file_source
from env_adapters.deepsearch.dense import open_search_r1_files
from env_adapters.deepsearch.index import PassageIndex, import_library
from env_adapters.deepsearch.questions import SINGLE, GeneratedQuestion, Hop, candidates
from env_adapters.deepsearch.templates import TEST, TRAIN
from verl_agent.errors import ConfigError

TOP_K = 3
HEADER = """# Excluded questions: their gold queries do not retrieve the passages that contain the answer among the
# first three (as the first one for a single hop), in the Factbook alone or together with the dictionaries of Debian 12.
# Written by `python -m env_adapters.deepsearch verify --write`, once without and once with the dictionaries.
"""


def unsupported_questions(questions: Iterable[GeneratedQuestion], index: PassageIndex) -> Iterator[GeneratedQuestion]:
    """Yield the questions whose gold queries do not retrieve their passages from `index`."""
    is_supported = hop_checker(index)
    for question in questions:
        limit = 1 if question.kind == SINGLE else TOP_K
        if not all(is_supported(hop, limit) for hop in question.hops):
            yield question


def hop_checker(index: PassageIndex) -> Callable[[Hop, int], bool]:
    """Return a check that a hop's passage is among the first `limit` results and contains the expected fact.

    The check searches once for each distinct query.
    """
    search = cache(lambda query: [hit.passage for hit in index.search(query, TOP_K)])

    def is_supported(hop: Hop, limit: int) -> bool:
        return any(
            passage.id == hop.passage and any(contains(passage.text, form) for form in hop.expected)
            for passage in search(hop.query)[:limit]
        )

    return is_supported


def add_ids(ids: Iterable[str], file: Path) -> int:
    """Add ids to a sorted file of ids and return the number of ids in it."""
    known = {line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")}
    every = sorted(known | set(ids))
    file.write_text(HEADER + "".join(f"{question_id}\n" for question_id in every), encoding="utf-8")
    return len(every)


DICTIONARIES_TIMEOUT_S = 300

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Corpus and retriever of Deep Search.")
console = Console(soft_wrap=True)

Folder = Annotated[Path | None, typer.Option(help="Folder of an index; default: the embedded index.")]
Corpus = Annotated[Path | None, typer.Option(help='JSONL file, one {"id", "contents"} a line.')]


@app.command()
def build(
    dictionaries: Annotated[
        bool, typer.Option("--dictionaries", help="Fetch Debian's dictionaries first, with apt; no root needed.")
    ] = False,
    corpus: Corpus = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the index of --corpus.")] = None,
    dense: Annotated[str, typer.Option(help="Encoder model for a dense index instead of BM25.")] = "",
) -> None:
    """Build the embedded corpus and its index. With --corpus and --output, build the index of your own file."""
    with exit_on_config_error():
        if (corpus is None) != (output is None):
            raise ConfigError("--corpus and --output belong together.")
        if dictionaries:
            fetch_dictionaries()
        if corpus and output:
            store.build_index([file_source(corpus)], output, show_count, dense)
            console.print(f"Ready: {output}. Use it with env.options.retriever={output.resolve()}")
            return
        sources = embedded_sources()
        for source in sources:
            console.print(f"source: {source.name} {source.state}")
        folder, new = store.build_embedded(sources, show_count, dense)
        state = "Ready" if new else "Already up to date"
        console.print(f"{state}: {folder}, {len(store.open_passage_index(folder)):,} passages.")


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on. There is no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    folder: Folder = None,
    corpus: Corpus = None,
    faiss: Annotated[Path | None, typer.Option(help="faiss index of --corpus, for example e5_Flat.index.")] = None,
    model: Annotated[
        str, typer.Option(help="Model that encoded the faiss index, for example intfloat/e5-base-v2.")
    ] = "",
) -> None:
    """Serve Search-R1's protocol: POST /retrieve {"queries", "topk", "return_scores"}."""
    with exit_on_config_error():
        uvicorn, server = import_library("uvicorn"), import_library("env_adapters.deepsearch.server")
        if corpus and faiss and model:
            opened: PassageIndex = open_search_r1_files(corpus, faiss, model)
        elif corpus or faiss or model:
            raise ConfigError("--corpus, --faiss and --model belong together. For BM25: build --corpus --output.")
        else:
            opened = store.open_passage_index(folder or store.embedded_folder())
        console.print(f"{len(opened):,} passages at http://{host}:{port}/retrieve")
        uvicorn.run(server.create_app(opened), host=host, port=port, log_level="warning")


@app.command(name="verify")
def verify_questions(
    folder: Folder = None,
    write: Annotated[
        bool, typer.Option("--write", help="Add the questions that fail to the list of excluded ones.")
    ] = False,
) -> None:
    """Check that the queries of all gold chains retrieve their passages, and that these contain the answers."""
    with exit_on_config_error():
        opened = store.open_passage_index(folder or store.embedded_folder())
        if write:
            failing = list(unsupported_questions([*candidates(TRAIN), *candidates(TEST)], opened))
            count = add_ids((question.id for question in failing), questions.EXCLUDED_FILE)
            console.print(f"{len(failing)} questions fail here; {count} are excluded in {questions.EXCLUDED_FILE}.")
            return
        for split, listed in questions.split_questions().items():
            failing = list(unsupported_questions(listed, opened))
            console.print(f"{split}: {len(listed) - len(failing):,} of {len(listed):,} questions are supported.")
            for question in failing[:10]:
                console.print(f"  not supported: {question.id}")


def fetch_dictionaries() -> None:
    """Download Debian's packages of dictionaries and unpack them into the cache.

    Raises:
        ConfigError: the system is not Debian, or the download fails.
    """
    if not all(shutil.which(tool) for tool in ("apt-get", "dpkg-deb")):
        raise ConfigError("--dictionaries needs apt-get and dpkg-deb. Leave it out: the Factbook alone is enough.")
    target = deepsearch_dir() / "dictd"
    with tempfile.TemporaryDirectory() as folder:
        console.print("fetching " + ", ".join(f"dict-{name}" for name in DICTIONARIES))
        run(["apt-get", "download", *(f"dict-{name}" for name in DICTIONARIES)], folder)
        for package in sorted(Path(folder).glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), folder], folder)
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted(Path(folder, "usr/share/dictd").iterdir()):
            copy = target / f"{file.name}.new"
            shutil.copyfile(file, copy)
            copy.replace(target / file.name)


def run(command: list[str], folder: str) -> None:
    """Run a command in a folder."""
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=DICTIONARIES_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", "") or str(error)).strip()
        raise ConfigError(f"`{' '.join(command[:2])}` failed: {output[-500:]} Try `apt-get update`.") from error


def show_count(passages: Iterable[Passage], description: str) -> Iterator[Passage]:
    """Yield passages and show their count on the screen."""
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=None)
        for passage in passages:
            yield passage
            progress.advance(task)
    console.print("writing the index")


@contextmanager
def exit_on_config_error() -> Iterator[None]:
    """Print a `ConfigError` as a message instead of a traceback, and exit with status 2."""
    try:
        yield
    except ConfigError as error:
        console.print(f"error: {error}", soft_wrap=True, markup=False, highlight=False)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    app()
