"""Text that the model read before each reply of a recorded episode, as the chat template of the model renders it.

    python -m verl_agent.evaluation.what_if.raw_prompts FILE:LINE FIRST LAST

prints one line of JSON. It loads the tokenizer, so the viewer runs it in a process of its own. Nothing is downloaded.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from verl_agent.agents.base import Agent
from verl_agent.config.keys import as_text
from verl_agent.envs.parsing import thought_marks
from verl_agent.errors import ConfigError
from verl_agent.evaluation.recorded_play import play_folder, read_play
from verl_agent.evaluation.what_if.branch import visible_messages
from verl_agent.evaluation.what_if.recorded import RecordedEpisode, find_episode
from verl_agent.evaluation.what_if.settings import settings_of
from verl_agent.models.checkpoints import HUGGINGFACE
from verl_agent.models.hf import load_tokenizer
from verl_agent.models.resolve import SMOLLM2, prepare_smollm2
from verl_agent.rollout.control_tokens import ContentTokenizer, show
from verl_agent.types import Message


def raw_prompts(recorded: RecordedEpisode, turns: Iterable[int]) -> list[str]:
    """Return the text that the model read before its reply, for some turns, counted from 1.

    The messages are those that the agent showed the model. A template that drops the thoughts of earlier turns drops
    them here too, unlike training, which keeps the tokens as they were; those are in the recorded token data.

    Raises:
        ConfigError: no settings are recorded beside the file, the tokenizer is not on this machine, or its template
            refuses the messages.
    """
    name = read_play(play_folder(recorded.file)).tokenizer
    config = settings_of(recorded, [f"model.path={json.dumps(as_text(name))}"]).config
    agent = config.run.new_agent()
    tokenizer, options = load_tokenizer(_at(name), "model.path"), dict(config.data.apply_chat_template_kwargs)
    return [render_messages(tokenizer, visible_messages(recorded, turn, agent), agent, options) for turn in turns]


def render_messages(tokenizer: Any, messages: Sequence[Message], agent: Agent, options: Mapping[str, Any]) -> str:
    """Return messages as text, with the beginning of the reply.

    Raises:
        ConfigError: the template refuses the messages, or is missing.
    """
    content = ContentTokenizer(tokenizer)
    shown = content.hide_messages(messages, lambda reply: [*thought_marks(reply), *agent.marks(reply)])
    tools = content.control.hide_values(agent.tools)
    try:
        text = content.apply_chat_template(shown, tools=tools, add_generation_prompt=True, tokenize=False, **options)
    except (TemplateError, ValueError) as error:
        raise ConfigError(f"the chat template of this model does not render these messages: {error}") from error
    return show(text)


def _at(model: str) -> str:
    """Return the folder with the tokenizer of a model path, or the path itself if it is no such folder."""
    folder = prepare_smollm2() if model == SMOLLM2 else Path(model).expanduser()
    folders = (folder, folder / HUGGINGFACE, folder / "actor" / HUGGINGFACE)
    return next((str(holder) for holder in folders if (holder / "tokenizer_config.json").is_file()), model)


def main(name: str, first: str, last: str) -> None:
    """Print `{"prompts": [...]}`, or `{"error": "..."}`."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        answer: dict[str, object] = {"prompts": raw_prompts(find_episode(name), range(int(first), int(last) + 1))}
    except ConfigError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
