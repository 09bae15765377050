"""Tokenizer of words and digits, and the builder that renders messages with it. Decoding restores the text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

PIECES = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\w\s]|_|\s")
"""Words with the space before them, single digits, and single signs."""
MARKS = ("<pad>", "<end>", "<reply>", "<unknown>")
"""Tokens that no text contains: padding, end of a reply, start of a reply, and any other word."""


class Words:
    """Tokenizer with one token for each piece of the texts that it was made from.

    Args:
        pieces: vocabulary, `MARKS` first.
    """

    pad_id, eos_token_id, reply_id, unknown_id = range(4)

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        self._ids = {piece: index for index, piece in enumerate(self.pieces)}

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> "Words":
        """Return the tokenizer of all pieces of some texts and of the digits."""
        digits = {f"{space}{digit}" for space in ("", " ") for digit in range(10)}
        return cls([*MARKS, *sorted(digits | {piece for text in texts for piece in PIECES.findall(text)})])

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text."""
        return [self._ids.get(piece, self.unknown_id) for piece in PIECES.findall(text)]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids; marks are left out."""
        return "".join(self.pieces[index] for index in ids if index >= len(MARKS))


class WordBuilder(ContinuousTokenBuilder):
    """Renders messages as their words; a reply stands between the marks `<reply>` and `<end>`."""

    @override
    def build_initial_tokens(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> list[int]:
        ids: list[int] = []
        for message in messages:
            own = self.tokenizer.encode(message["content"])
            replied = message["role"] == "assistant"
            ids += [Words.reply_id, *own, Words.eos_token_id] if replied else own
        return [*ids, Words.reply_id]

    @override
    def tokenize_context_incremental_messages(
        self, previous_messages: Sequence[Any], updated_messages: Sequence[Any], **_: Any
    ) -> list[int]:
        return self.build_initial_tokens(updated_messages[len(previous_messages) :])
