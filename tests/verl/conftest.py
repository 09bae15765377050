"""Tokenizers with the chat templates that tests of tokens share."""

import pytest

from tests.support.tokens import TEMPLATES, Model, load_model


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return load_model()


@pytest.fixture(scope="module", params=["smollm2", "qwen2.5", "qwen3 without thinking"])
def model(request) -> Model:
    match request.param:
        case "smollm2":
            return load_model()
        case "qwen2.5":
            return load_model((TEMPLATES / "qwen2.5.jinja").read_text(), "qwen2")
        case _:
            return load_model((TEMPLATES / "qwen3.jinja").read_text(), "qwen3", enable_thinking=False)


@pytest.fixture(scope="module")
def thinker() -> Model:
    return load_model((TEMPLATES / "qwen3.jinja").read_text(), "qwen3", enable_thinking=True)
