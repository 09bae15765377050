"""Generation of all tasks of the embedded sites in WebArena's format."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from env_adapters.webarena.sites.world import DEFAULT_SEED, GeneratedWorld, world
from env_adapters.webarena.sites_tasks.templates import PER_TEMPLATE, TEMPLATES, Draft, Template

MODULES = ("shopping", "cart", "admin", "forum", "code", "cross")
TABS = " |AND| "
"""Separates the start URLs of a task with several tabs."""


@cache
def site_tasks(seed: int = DEFAULT_SEED) -> Sequence[Mapping[str, Any]]:
    """Return the tasks, in the same order on every machine.

    Each is a task in WebArena's format (`task_id`, `sites`, `intent`, `eval`, ...) with further keys: `id`, a stable
    name; `split`; `oracle`, a script for `env_adapters.webarena.tasks.oracle`; `wrong`, scripts that must earn 0.
    """
    return list(tasks(world(seed)))


def tasks(made: GeneratedWorld) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks about the generated data of a seed."""
    number = 0
    for place, template in enumerate(templates()):
        drafts = template.build(made, template.split)
        for draft, _ in zip(drafts, range(PER_TEMPLATE[template.split]), strict=False):
            yield written(template, draft, place, number)
            number += 1


def templates() -> Sequence[Template]:
    """Return all templates, in the order of their definition."""
    for module in MODULES:
        import_module(f"env_adapters.webarena.sites_tasks.{module}")
    return TEMPLATES


def written(template: Template, draft: Draft, place: int, number: int) -> Mapping[str, Any]:
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
        "start_url": TABS.join(f"__{site.upper()}__" for site in template.sites),
        "geolocation": None,
        "intent_template": template.intent,
        "instantiation_dict": dict(draft.words),
        "intent": intent,
        "intent_template_id": place,
        "require_reset": template.changes,
        "eval": draft.evaluation,
        "oracle": list(draft.oracle),
        "wrong": [list(script) for script in draft.wrong],
    }
