"""HTTP server of Search-R1's retriever protocol over any index: `python -m env_adapters.deepsearch serve`."""

from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from env_adapters.deepsearch.index import PassageIndex

MAX_QUERIES = 256
"""Maximum number of queries in one request."""
MAX_QUERY_CHARS = 2000
"""Maximum length of one query in characters."""
MAX_TOP_K = 100
"""Maximum number of passages for one query."""


class RetrieveRequest(BaseModel):
    """Body of `POST /retrieve`."""

    queries: list[Annotated[str, Field(max_length=MAX_QUERY_CHARS)]] = Field(min_length=1, max_length=MAX_QUERIES)
    topk: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    return_scores: bool = False


def create_app(index: PassageIndex, top_k: int = 3) -> FastAPI:
    """Return the server as an ASGI application."""
    app = FastAPI(title="Deep Search retriever", docs_url=None, redoc_url=None)

    @app.post("/retrieve")
    def retrieve(request: RetrieveRequest) -> dict[str, Any]:
        """Return the best passages for each query, with their scores if requested."""
        results = [index.search(query, request.topk or top_k) for query in request.queries]
        rows = [
            [({"id": hit.passage.id, "contents": hit.passage.contents}, hit.score) for hit in hits] for hits in results
        ]
        if request.return_scores:
            return {"result": [[{"document": document, "score": score} for document, score in row] for row in rows]}
        return {"result": [[document for document, _ in row] for row in rows]}

    @app.get("/health")
    def health() -> dict[str, Any]:
        """Return the state of the server and its number of passages."""
        return {"status": "ok", "passages": len(index)}

    return app
