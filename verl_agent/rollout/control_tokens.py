"""Control tokens of a model, which the text of others never becomes.

A chat template joins its own marks and the contents of messages to one string. A tokenizer then reads `<|im_end|>` in
a web page as the end of a turn. So each content that spells a control token gets a hidden character inside it before
the template renders it. The tokenizer used here finds the control tokens first and removes that character afterwards.
Other texts take the tokenizer's own path.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary, proxy

from tokenizers import AddedToken, Regex, Tokenizer, normalizers

from verl_agent.types import Message

HIDDEN, ESCAPE = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode. `HIDDEN` splits a control token; before `ESCAPE` it stands for itself."""
SPLITS = f"{HIDDEN}(?!{ESCAPE})"
"""Regular expression of a `HIDDEN` that is no part of the text."""
MARKUP = re.compile(r"[<>\[\]{}|\uff5c]")
"""Signs that stand in control tokens; other added tokens without them are words or white space."""
WORDS = re.compile(r"\w+|\W+")
"""Added tokens that are text even if the chat template has them: a word, or signs without a letter."""
HTML = re.compile(
    r"</?(?:a|b|blockquote|body|br|caption|code|dd|div|dl|dt|em|h[1-6]|head|hr|html|i|img|li|ol|p|pre|s|span|strong|"
    r"sub|sup|table|tbody|td|tfoot|th|thead|title|tr|u|ul)>"
)
"""Tags of web pages, which Gemma has as tokens of text."""

Span = tuple[int, int]
"""Start and end of a part of a text."""


class ControlTokens:
    """Control tokens of a tokenizer, and the encoding of texts that only spell them.

    Control tokens are the special tokens and the other added tokens, except white space, words and tags of HTML that
    the chat template does not write.

    Attributes:
        strings: control tokens as text, by id; empty for a tokenizer without a backend of the `tokenizers` library.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend, template = getattr(tokenizer, "backend_tokenizer", None), getattr(tokenizer, "chat_template", None)
        self._own, self._backend = proxy(tokenizer), backend if isinstance(backend, Tokenizer) else None
        added = self._backend.get_added_tokens_decoder() if self._backend else {}
        self.strings = {index: token.content for index, token in added.items() if _controls(token, str(template))}
        splittable = sorted((one for one in self.strings.values() if len(one) > 1), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, splittable)) or "(?!)")
        self._normalizer = self._backend.normalizer if self._backend else None
        normalized = [self.strings[index] for index in self.strings if added[index].normalized]
        if self._normalizer:
            normalized = [self._normalizer.normalize_str(one) for one in normalized]
        self._normalized = re.compile("|".join(map(re.escape, normalized)) or "(?!)")
        self._careful: Tokenizer | None = None

    def hide(self, text: str, markup: Iterable[Span] = ()) -> str:
        """Return a text in which no control token is found, with `HIDDEN` inside each.

        Half of a surrogate pair, which tokenizers refuse, becomes a question mark, as in the record's tables. A client
        of JavaScript that cuts a text sends one.

        Args:
            markup: parts that stay control tokens.
        """
        text = text if text.isascii() else text.encode(errors="replace").decode()
        if not self.strings:
            return text
        parts, end = [], 0
        for start, following in sorted(markup):
            if start >= end:
                parts += [self._hide(text[end:start]), text[start:following]]
                end = following
        return "".join([*parts, self._hide(text[end:])])

    def hide_values(self, value: Any) -> Any:
        """Return a JSON value, such as the schema of a function, after `hide` on each of its texts."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_values(key): self.hide_values(inner) for key, inner in value.items()}
        return [*map(self.hide_values, value)] if isinstance(value, list | tuple) else value

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that may have parts from `hide`."""
        if HIDDEN not in text or not self.strings:
            ids: list[int] = self._own.encode(text, add_special_tokens=False)
            return ids
        if self._careful is None:
            self._careful = self._careful_copy()
        return list(self._careful.encode(text, add_special_tokens=False).ids)

    def unprotected(self) -> list[str]:
        """Return the control tokens that a text becomes nevertheless."""
        unknown = getattr(self._own, "unk_token_id", None)
        controls = {*getattr(self._own, "all_special_ids", ()), *self.strings} - {unknown}
        spelled = [*self.strings.values()] or [*getattr(self._own, "added_tokens_encoder", ())]
        return [one for one in spelled if controls.intersection(self.encode(self.hide(f"a {one} b{one}")))]

    def _hide(self, text: str) -> str:
        text = text.replace(HIDDEN, HIDDEN + ESCAPE)
        while found := [match.start() + 1 for match in self._pattern.finditer(text)]:
            text = HIDDEN.join(text[start:end] for start, end in zip([0, *found], [*found, None], strict=True))
        if not self._normalizer or self._normalized.pattern == "(?!)" or HIDDEN in text:
            return text
        found_later = self._normalized.search(self._normalizer.normalize_str(text))
        return text[:1] + HIDDEN + text[1:] if found_later else text

    def _careful_copy(self) -> Tokenizer:
        """Return a tokenizer with the same model that removes `HIDDEN` after it has found the control tokens."""
        assert self._backend is not None
        added = sorted(self._backend.get_added_tokens_decoder().items())
        copy = Tokenizer(self._backend.model)  # shares the vocabulary
        copy.pre_tokenizer = self._backend.pre_tokenizer
        for special, tokens in groupby((self._raw(index, token) for index, token in added), lambda one: one.special):
            (copy.add_special_tokens if special else copy.add_tokens)(list(tokens))
        if any(copy.token_to_id(token.content) != index for index, token in added):  # ids with gaps
            written = json.loads(self._backend.to_str())
            for token in written["added_tokens"]:
                token["normalized"] &= token["id"] not in self.strings
            copy = Tokenizer.from_str(json.dumps({**written, "padding": None, "truncation": None}))
        own = [self._backend.normalizer] if self._backend.normalizer else []
        shown = [normalizers.Replace(Regex(SPLITS), ""), normalizers.Replace(HIDDEN + ESCAPE, HIDDEN)]
        copy.normalizer = normalizers.Sequence([*shown, *own])
        return copy

    def _raw(self, index: int, token: AddedToken) -> AddedToken:
        """Return an added token; a control token is found in the text as it is, before the normalizer."""
        return AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized and index not in self.strings,
            special=token.special,
        )


class ContentTokenizer:
    """Tokenizer of verl's token builders: it reads messages and texts that `ControlTokens.hide` prepared.

    Attributes:
        tokenizer: the model's tokenizer, which has all other methods.
        control: its control tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.control = tokenizer, control_tokens(tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.tokenizer, name)

    def encode(self, text: str, **options: Any) -> Any:
        """Encode a text of a template, which may have contents."""
        return self.control.encode(text) if HIDDEN in text else self.tokenizer.encode(text, **options)

    def apply_chat_template(self, messages: Sequence[Any], tokenize: bool = True, **options: Any) -> Any:
        """Render messages, as text or as ids."""
        if not tokenize or not self.control.strings:
            return self.tokenizer.apply_chat_template(messages, tokenize=tokenize, **options)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return self.encode(text, add_special_tokens=False)

    def hide_messages(
        self, messages: Sequence[Message], marks: Callable[[str], Iterable[Span]] = lambda reply: ()
    ) -> list[Message]:
        """Return messages whose contents the template renders without control tokens of their own.

        Args:
            marks: returns the parts of a reply that stay control tokens.
        """
        parts = (marks(one["content"]) if one["role"] == "assistant" else () for one in messages)
        return [
            {"role": one["role"], "content": self.control.hide(one["content"], kept)}
            for one, kept in zip(messages, parts, strict=True)
        ]


_of_tokenizers: WeakKeyDictionary[Any, tuple[Any, ControlTokens]] = WeakKeyDictionary()


def control_tokens(tokenizer: Any) -> ControlTokens:
    """Return the control tokens of a tokenizer, computed once until its tokens or its template change."""
    if isinstance(tokenizer, ContentTokenizer):
        return tokenizer.control
    state = (getattr(tokenizer, "chat_template", None), len(getattr(tokenizer, "added_tokens_encoder", ())))
    known = _of_tokenizers.get(tokenizer)
    if known is None or known[0] != state:
        known = _of_tokenizers[tokenizer] = (state, ControlTokens(tokenizer))
    return known[1]


def encode_content(tokenizer: Any, text: str, markup: Iterable[Span] = ()) -> list[int]:
    """Return the ids of a text that someone else than the policy wrote; the only encoding of such texts.

    Args:
        markup: parts that are control tokens where the model has them, such as the marks of a function call.
    """
    control = control_tokens(tokenizer)
    return control.encode(control.hide(text, markup))


def show(text: str) -> str:
    """Return the text that `ControlTokens.hide` changed as it was."""
    return re.sub(SPLITS, "", text).replace(HIDDEN + ESCAPE, HIDDEN)


def _controls(token: AddedToken, template: str) -> bool:
    """Return True if text that spells an added token is not to become that token."""
    text = token.content
    if not text.strip():
        return False
    if token.special or (text in template and WORDS.fullmatch(text) is None):
        return True
    return MARKUP.search(text) is not None and HTML.fullmatch(text) is None
