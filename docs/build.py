"""Writer of the site's sources: copies docs/ to build/docs and adds the pages that are made from the code.

make docs        # this program, then Zensical, which reads mkdocs.yml
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import typer
from typer.cli import get_docs_for_click

import verl_agent
from verl_agent.commands import reference
from verl_agent.commands.cli import app
from verl_agent.commands.recipes import first_lines
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.metrics import METRICS
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import read_records

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "docs"
MEASURED = (
    "textcraft/sft_cpu textcraft/scaling_inter_cpu textcraft/quickstart guess_number/grpo_cpu guess_number/sft_cpu "
)
MEASURED += "guess_number/explore_cpu guess_number/dpo_cpu"
"""Recipes with a result on the page of results."""
GROUPS = {
    "Environments": ("verl_agent.envs.", "verl_agent.types:TaskItem StepResult DemoAction"),
    "Playing": ("verl_agent.api", "verl_agent.rollout.policy", "verl_agent.agents.", "verl_agent.horizon"),
    "Episodes and records": ("verl_agent.types", "verl_agent.trace.", "verl_agent.results.", "verl_agent.viewer."),
    "People and rules": ("verl_agent.oversight.",),
    "Own algorithms": ("verl_agent.config.algorithms", "verl_agent.training."),
    "Errors": ("verl_agent.errors",),
}
"""Headings of the API page, and the modules whose public names stand below each."""


def main(target: Path) -> None:
    """Write the sources into a folder, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        SOURCES, target, ignore=shutil.ignore_patterns("*.py", "*.yml", "__pycache__", "episodes", "metrics", ".viewer")
    )
    for name, text in generated().items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(SOURCES / "mkdocs.yml", target.parent)
    export(target / "results" / "gallery", target.parent / "gallery")


def generated() -> dict[str, str]:
    """Return the pages that are made from the code, by their path in docs/."""
    return {
        "reference/settings.md": reference.page(),
        "reference/commands.md": commands(),
        "reference/recipes.md": "\n".join(recipes()),
        "reference/metrics.md": "\n".join(metrics()),
        "reference/api.md": "\n".join(api()),
        "results/demo_data.js": f"const DEMO = {json.dumps(demo(SOURCES / 'results' / 'demo'))};\n",
    }


def commands() -> str:
    """Return the page of the commands: their help, as Markdown."""
    group = typer.main.get_command(app)
    text = get_docs_for_click(
        obj=group, ctx=click.Context(group, info_name="verl-agent"), name="verl-agent", title="Commands"
    )
    return re.sub(r"^\[env var: (.+?)\]$", r"environment variable \1", text, flags=re.MULTILINE)


def recipes() -> Iterator[str]:
    """Yield the lines of the page of recipes: purpose and requirements, from the first lines of each file."""
    yield "# Recipes\n"
    yield "[How recipes work](../guides/recipes.md). Those marked ● have a [result](../results/index.md); the other CPU"
    yield "recipes have run in part or not at all, and no recipe has been run on a GPU.\n"
    for folder in sorted(path for path in (ROOT / "recipes").iterdir() if path.is_dir()):
        files = [path for path in sorted(folder.glob("*.yaml")) if not path.name.startswith(("env", "limits"))]
        files = [path for path in files if "\nquestion:" not in path.read_text(encoding="utf-8")]  # no studies
        yield f"\n## {folder.name}\n\n| recipe | purpose | needs |\n|---|---|---|"
        for path in files:
            purpose, needs = cells(path)
            mark = " ●" if f"{folder.name}/{path.stem}" in MEASURED.split() else ""
            yield f"| `{folder.name}/{path.stem}`{mark} | {purpose} | {needs} |"
    purpose, needs = cells(ROOT / "recipes" / "paper27.yaml")
    yield f"\n## Suites\n\n| suite | purpose | needs |\n|---|---|---|\n| `paper27` | {purpose} | {needs} |"


def cells(recipe: Path) -> tuple[str, str]:
    """Return purpose and requirements of a recipe as cells of a table."""
    purpose, needs = (text.replace("|", "\\|") for text in first_lines(recipe))
    return purpose, re.sub(r"=(<[^>]+>)", r"=`\1`", needs)


def metrics() -> Iterator[str]:
    """Yield the lines of the page of metrics."""
    yield "# Metrics and behaviors\n"
    yield "Metrics of this package; others are verl's. [Reading your run](../guides/read-a-run.md) has ranges.\n"
    yield "| metric | unit | meaning |\n|---|---|---|"
    yield from (f"| `{one.name}` | {one.unit} | {one.meaning} |" for one in METRICS)
    yield "\n## Behaviors\n\nA behavior is a pattern in the turns of an episode.\n"
    yield "| behavior | a turn shows it if |\n|---|---|"
    yield from (f"| `{one.name}` | {one.meaning} |" for one in BEHAVIORS)


def api() -> Iterator[str]:
    """Yield the lines of the API page: every public name once, under the first group that has its module."""
    yield "# Python API\n\n`import verl_agent as va` has these names. Everything else is internal and may change.\n"
    left = dict(verl_agent._HOMES)
    for title, homes in GROUPS.items():
        yield f"## {title}\n"
        for home in homes:
            module, _, names = home.partition(":")
            of_module = [
                name
                for name in left
                if left[name] == module or (module.endswith(".") and left[name].startswith(module))
            ]
            for name in [name for name in of_module if not names or name in names.split()]:
                yield f"::: {left.pop(name)}.{name}\n"
    if left:
        raise ValueError(f"no group of {__file__} has {sorted(left)}; add their modules to GROUPS")


def demo(folder: Path) -> dict[str, object]:
    """Return the recorded runs of the demo: steps, and for each run success, turn limit and games at each step."""
    runs: dict[str, list[dict[str, object]]] = {}
    steps: list[int] = []
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        logged = read_metrics(sorted((run / "metrics").glob("*.jsonl")))
        steps, records = list(logged), list(read_records(run))
        runs[run.name] = [
            {
                "success": values["episode/success_rate"],
                "limit": values["episode/horizon"],
                "games": [
                    {
                        "task": f"a number from 1 to {one['data']['high']}; it is {one['data']['target']}",
                        "turns": [(turn["action"] or "-", turn["observation"] or "") for turn in one["turns"]],
                    }
                    for one in records
                    if one["step"] == step
                ],
            }
            for step, values in logged.items()
        ]
    return {"steps": steps, "runs": runs}


def export(folder: Path, played: Path) -> None:
    """Write the pages of the gallery: the viewer's export of recorded runs, and of evaluations played now."""
    folder.mkdir(parents=True)
    verl_agent_command = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()"]
    for policy in ("oracle", "random"):
        recipe = ["eval", "recipes/textcraft/eval_cpu.yaml", f"model.path={policy}", "evaluation.max_tasks=8"]
        run([*verl_agent_command, *recipe, f"evaluation.output_dir={played / policy}"])
    recorded = [
        shutil.copytree(path, played / path.name, dirs_exist_ok=True)
        for path in sorted((SOURCES / "results/demo").iterdir())
    ]
    shutil.unpack_archive(SOURCES / "results/textcraft_quickstart.tar.gz", played)
    pages = {
        "guess_number": recorded,
        "textcraft": [played / "oracle", played / "random"],
        "textcraft_quickstart": [played / "textcraft_quickstart"],
    }
    for name, runs in pages.items():
        run([*verl_agent_command, "view", *map(str, runs), "--export", str(folder / f"{name}.html"), "--limit", "1000"])


def run(command: list[str]) -> None:
    """Run a command in the root of the repository; show its output only if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[3:])} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs")
