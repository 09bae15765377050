"""Generation of all tasks of the embedded sites in WebArena's format."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from env_adapters.web_sites.tasks.templates import (
    PER_TEMPLATE,
    TEMPLATES,
    Evaluation,
    Script,
    TaskDraft,
    Template,
    stop,
)
from env_adapters.web_sites.world import DEFAULT_SEED, GeneratedWorld, world
from env_adapters.webarena.grading.strict import answer_values
from env_adapters.webarena.tasks.site_urls import TABS, placeholder

MODULES = ("shopping", "cart", "admin", "forum", "code", "tickets", "cross")


@cache
def site_tasks(seed: int = DEFAULT_SEED) -> Sequence[Mapping[str, Any]]:
    """Return the tasks, in the same order on every machine.

    Each is a task in WebArena's format (`task_id`, `sites`, `intent`, `eval`, ...) with further keys: `id`, a stable
    name; `split`; `oracle`, a script for `env_adapters.webarena.tasks.oracle`; `wrong`, scripts that must earn 0, by
    the requirement that they violate; `corrected`, a script that corrects a mistake and must earn 1.
    """
    return list(tasks(world(seed)))


def tasks(made: GeneratedWorld) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks about the generated data of a seed."""
    number = 0
    for place, template in enumerate(templates()):
        drafts = different(template.build(made, template.split), PER_TEMPLATE[template.split])
        for index, draft in enumerate(drafts):
            other = drafts[(index + 1) % len(drafts)]
            yield task_entry(template, complete_draft(draft, other, drafts, template.sites[0]), place, number)
            number += 1


def different(drafts: Iterable[TaskDraft], count: int) -> list[TaskDraft]:
    """Return the first drafts with different references, at most `count`, so that no two tasks have one solution."""
    chosen: dict[str, TaskDraft] = {}
    for draft in drafts:
        chosen.setdefault(json.dumps(reference_value(draft.evaluation)), draft)
        if len(chosen) == count:
            break
    return list(chosen.values())


def reference_value(evaluation: Evaluation) -> object:
    """Return the reference of an evaluator, as the values that answers are reduced to if it expects an answer."""
    kind = evaluation["eval_types"][0]
    reference = evaluation[kind]
    if kind != "single_answer":
        return reference
    return answer_values([part["kind"] for part in reference], ", ".join(part["text"] for part in reference))


def complete_draft(draft: TaskDraft, other: TaskDraft, drafts: Sequence[TaskDraft], site: str) -> TaskDraft:
    """Return a draft with the wrong scripts that all templates have, and with a corrected mistake."""
    wrong: dict[str, Script] = {"stop at once": [stop()]}
    if "single_answer" in draft.evaluation:
        wrong |= {name: [stop(said)] for name, said in wrong_answers(draft, other, drafts).items()}
    elif "final_page" in draft.evaluation:
        wrong["another page"] = other.oracle
    corrected = draft.corrected or [*other.oracle[:-1], f"goto [{placeholder(site)}]", *draft.oracle]
    return replace(draft, wrong={**wrong, **draft.wrong}, corrected=corrected)


def wrong_answers(draft: TaskDraft, other: TaskDraft, drafts: Sequence[TaskDraft]) -> Mapping[str, str]:
    """Return wrong answers: those of other tasks, all in one, and answers with a part left out or wrong."""
    said = [part["text"] for part in draft.evaluation["single_answer"]]
    another = [part["text"] for part in other.evaluation["single_answer"]]
    every = [part["text"] for one in drafts for part in one.evaluation["single_answer"]]
    found = {"another answer": ", ".join(another), "all answers": ", ".join(dict.fromkeys(every))}
    found["two answers"] = f"{', '.join(said)} or {', '.join(another)}"
    for place in range(len(said) if len(said) > 1 else 0):
        found[f"without part {place + 1}"] = ", ".join(said[:place] + said[place + 1 :])
        different_part = next(
            part["text"] for one in drafts if (part := one.evaluation["single_answer"][place])["text"] != said[place]
        )
        found[f"wrong part {place + 1}"] = ", ".join([*said[:place], different_part, *said[place + 1 :]])
    return found


def templates() -> Sequence[Template]:
    """Return all templates, in the order of their definition."""
    for module in MODULES:
        import_module(f"env_adapters.web_sites.tasks.{module}")
    return TEMPLATES


def task_entry(template: Template, draft: TaskDraft, place: int, number: int) -> Mapping[str, Any]:
    """Return a task in WebArena's format."""
    intent = template.intent
    for name, text in draft.words.items():
        intent = intent.replace(f"{{{{{name}}}}}", text)
    return {
        "id": f"{template.name}:{draft.entity}",
        "task_id": number,
        "split": template.split,
        "sites": list(template.sites),
        "require_login": True,
        "storage_state": None,
        "start_url": TABS.join(map(placeholder, template.sites)),
        "geolocation": None,
        "intent_template": template.intent,
        "instantiation_dict": dict(draft.words),
        "intent": intent,
        "intent_template_id": place,
        "require_reset": template.changes,
        "eval": draft.evaluation,
        "oracle": list(draft.oracle),
        "wrong": {name: list(script) for name, script in draft.wrong.items()},
        "corrected": list(draft.corrected or ()),
    }
