"""Writer of the pages of studies in docs/results/studies, and of the table of claims on the page of results.

python docs/publish_studies.py FOLDER      # copies the reports of `verl-agent study report`, one folder a study
python docs/publish_studies.py             # writes the pages again, from the reports that are published
"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from verl_agent.results.statistics import Estimate
from verl_agent.study.report import span

RESULTS = Path(__file__).parent / "results"
MARKS = ("<!-- studies -->", "<!-- end of studies -->")
"""Lines of the page of results between which the table of claims stands."""
HORIZON = "[ScalingInter-RL](https://arxiv.org/abs/2509.08755)"
GO_ON = "Groups that go on until a success beat the long limit"
ROUNDED = " the lowest of the limits that covers"
"""Limit of the arm `oracle` in the study that was played before it was exact."""
CLAIMS = {
    "horizon_guess_number_small": [
        ("A growing turn limit (4, 8, 12) beats the long one (12), GuessNumber to 12", HORIZON, "staged"),
        ("... one that grows by success (in 11 of 16 runs it stayed at 4)", "ours", "adaptive"),
        ("... the same limits in random order", "control", "random"),
        ("... a shrinking limit", "control", "long_to_short"),
        ("... the short limit (4) alone", "control", "fixed_short"),
    ],
    "horizon_guess_number": [("Growing (4, 8, 12) beats the long limit (12), GuessNumber to 36", HORIZON, "staged")],
    **{
        f"horizon_{name.lower()}": [
            (
                f"Growing (12, {middle}, {long}) beats the long limit ({long}), {name} of 10 to 12 turns",
                HORIZON,
                "staged",
            ),
            ("... the short limit (12) alone", "control", "fixed_short"),
        ]
        for name, middle, long in (("TextCraft", 18, 24), ("BabyAI", 20, 32))
    },
    **{
        f"staged_{name.lower()}": [
            (f"Growing beats the long limit, {name} of 10 to 12 turns, new seeds", HORIZON, "staged")
        ]
        for name in ("TextCraft", "BabyAI")
    },
    "horizon_mixed_textcraft": [
        ("Growing (5, 10, 16) beats the long limit (16), TextCraft of 4 and 8 turns", HORIZON, "staged"),
        ("... a short limit (5), within which only half of the tasks can be solved", "control", "fixed_short"),
        ("... success of the short limit in the end", "control", "fixed_short", "final"),
    ],
    **{
        f"by_task_{study}": [
            (f"{text}, {tasks}", "ours", "deepen"),
            ("... the limit with the most signal per turn, by task", "ours", "signal"),
            ("... a ladder of limits by task", "ours", "ladder"),
            ("... a growing limit", HORIZON, "staged"),
            ("... the short limit alone", "control", "fixed_short"),
            (f"...{oracle} 1.5 times the turns that the oracle needs", "control", "oracle"),
        ]
        for study, oracle, text, tasks in (
            ("textcraft", "", f"{GO_ON} (16)", "TextCraft of 4 and 8 turns"),
            ("babyai", "", f"{GO_ON} (32)", "BabyAI of 4 to 20 turns"),
            ("guess_number", ROUNDED, GO_ON, "GuessNumber to 40"),
            ("guess_number_small", "", f"{GO_ON} (12)", "GuessNumber to 12"),
        )
    },
    "by_task_equal": [
        ("Groups that go on until a success beat the short limit (5), TextCraft of 4 turns", "ours", "deepen"),
        ("... the limit with the most signal per turn, by task", "ours", "signal"),
        ("... a ladder of limits by task", "ours", "ladder"),
        ("... a growing limit (5, 10, 16)", HORIZON, "staged"),
        ("... the long limit (16)", "control", "fixed_long"),
        ("... 1.5 times the turns that the oracle needs", "control", "oracle"),
    ],
    "by_task_smollm2": [  # each against `signal`
        (
            "The long limit (10) beats the one with the most signal per turn, by task, SmolLM2-135M",
            "control",
            "fixed_long",
        ),
        ("... a growing limit (3, 6, 10) does", HORIZON, "staged"),
        ("... the short limit (3) alone does", "control", "fixed_short"),
    ],
    "horizon_smollm2": [("Growing (4, 6, 8) beats the long limit (8), SmolLM2-135M on TextCraft", HORIZON, "staged")],
    "fresh_optimizer_guess_number": [
        ("A new optimizer at each stage helps, GuessNumber to 12", "[ProRL](https://arxiv.org/abs/2507.17512)", "fresh")
    ],
    "truncated_guess_number": [
        (
            "Leaving truncated episodes out is better, GuessNumber to 12",
            "[AsyncWebRL](https://arxiv.org/abs/2606.05597)",
            "token_mean_drop",
        ),
        ("... a constant divisor of the loss is better", "[Dr. GRPO](https://arxiv.org/abs/2503.20783)", "constant"),
        ("... both together are better", "control", "constant_drop"),
    ],
    "step_cost_guess_number": [
        ("A cost of 0.05 a turn changes final success, GuessNumber to 12", "`credit.step_cost`", "cost_0_05"),
        ("... and changes the turns of solved tasks", "`credit.step_cost`", "cost_0_05", "turns"),
    ],
    "step_cost_textcraft": [
        ("A cost of 0.02 a turn changes final success, TextCraft of 10 to 12 turns", "`credit.step_cost`", "cost_0_02"),
        ("... and changes the turns of solved tasks", "`credit.step_cost`", "cost_0_02", "turns"),
    ],
    **{
        f"algorithms_{study}": [
            (f"RLOO beats GRPO, {game}", "ours", "rloo"),
            ("... REINFORCE++", "ours", "reinforce_pp"),
            ("... GiGPO", "ours", "gigpo"),
            ("... PPO by token", "ours", "ppo_by_token"),
            ("... PPO by turn", "ours", "ppo_by_turn"),
        ]
        for study, game in (
            ("guess_number", "GuessNumber to 12"),
            ("textcraft_new", "TextCraft of 4 and 8 turns"),
            ("babyai_new", "BabyAI of 10 to 12 turns"),
        )
    },
    **{
        f"updates_{study}": [
            (f"Smaller batches help under the long limit, {game}", "ours", "small_batch"),
            ("... the short limit alone", "control", "fixed_short"),
        ]
        for study, game in (("guess_number", "GuessNumber to 12"), ("babyai", "BabyAI of 10 to 12 turns"))
    },
    "transfer_guess_number": [
        ("Training on some ranges of GuessNumber gains at least 0.05 on two others", "ours", "other_ranges"),
        ("... training on these themselves does", "control", "own_ranges"),
    ],
    "shuffled_guess_number": [
        ("... on other ranges, with returns shuffled within a task", "control", "shuffled"),
    ],
    "transfer_drop_guess_number": [
        ("... on other ranges, without truncated episodes", "ours", "other_ranges"),
        ("... on these themselves, without truncated episodes", "control", "own_ranges"),
    ],
    "transfer_valid_guess_number": [
        ("... on other ranges, for valid actions alone", "control", "valid_only"),
    ],
    "transfer_textcraft": [
        (
            "Training on goals of 4 turns gains as much on those of 8 as training on these, TextCraft",
            "ours",
            "four_turns",
        ),
        ("... training on both does, in the same turns", "ours", "both"),
    ],
    "transfer_babyai": [
        (
            "Training on BlockedUnlockPickup gains as much on UnlockPickupDist as training on that",
            "ours",
            "other_level",
        ),
        ("... training on both does, in the same turns", "ours", "both"),
    ],
    "sequential_babyai": [
        ("Training on two levels in turn ends as well as on both, BabyAI (UnlockPickupDist last)", "ours", "dist_last"),
        ("... (BlockedUnlockPickup last)", "ours", "unlock_last"),
    ],
    "from_scratch_guess_number": [
        ("Training from random weights reaches 0.5, GuessNumber to 12, long limit", HORIZON, "fixed_long"),
        ("... with limits of 4, 8, 12", HORIZON, "staged"),
    ],
    "from_scratch_babyai": [
        ("Training from random weights reaches 0.5, easy tasks of BabyAI (no arm learned)", HORIZON, "staged"),
    ],
}
"""Claims of each study: text, source, and the arm that answers it; a measure if it is not the primary one."""
ABSOLUTE = {
    "from_scratch_guess_number": ("final", 0.5),
    "from_scratch_babyai": ("final", 0.5),
    "transfer_guess_number": ("gain", 0.05),
    "transfer_drop_guess_number": ("gain", 0.05),
    "transfer_valid_guess_number": ("gain", 0.05),
    "shuffled_guess_number": ("gain", 0.05),
}
"""Studies whose claim is about an arm alone: its measure, and the value that the claim names."""


def publish(folder: Path) -> None:
    """Copy the reports of a folder of studies: all tables as `report.txt`, and what the page needs as `points.json`."""
    for source in sorted(folder.glob("*/report.json")):
        content, target = json.loads(source.read_text(encoding="utf-8")), RESULTS / "studies" / source.parent.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        lines = (source.parent / "report.md").read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("!["))
        (target / "report.txt").write_text(f"{text.rstrip()}\n", encoding="utf-8")
        for plot in source.parent.glob("success_*.png"):
            shutil.copy(plot, target)
        content["points"] = {run: columns(points) for run, points in content["points"].items()}
        names = ("question", "study", "hashes", "measures", "comparisons", "differences", "points")
        kept = {name: content[name] for name in names}
        (target / "points.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")


def write_pages() -> None:
    """Write the page of each published study, the table of claims, and the navigation."""
    names = sorted(path.parent.name for path in RESULTS.glob("studies/*/points.json"))
    for name in names:
        text = "\n".join(page(RESULTS / "studies" / name))
        (RESULTS / "studies" / name / "index.md").write_text(f"{text}\n", encoding="utf-8")
    index = RESULTS / "index.md"
    before, rest = index.read_text(encoding="utf-8").split(MARKS[0])
    lines = [before + MARKS[0], *table(), MARKS[1] + rest.split(MARKS[1])[1]]
    index.write_text("\n".join(lines), encoding="utf-8")
    site = RESULTS.parent / "mkdocs.yml"
    site.write_text(navigation(site.read_text(encoding="utf-8"), names), encoding="utf-8")


def navigation(site: str, names: Iterable[str]) -> str:
    """Return the settings of the site, with the pages of these studies and no others."""
    lines = [line for line in site.splitlines() if "results/studies/" not in line]
    place = lines.index("      - Studies:") + 1
    lines[place:place] = [f"          - {name}: results/studies/{name}/index.md" for name in names]
    return "\n".join(lines) + "\n"


def page(folder: Path) -> Iterator[str]:
    """Yield the lines of the page of a published study: its report up to the first heading, plots and links."""
    yield (folder / "report.txt").read_text(encoding="utf-8").partition("\n## ")[0]
    yield from (f"![{plot.stem}]({plot.name})\n" for plot in sorted(folder.glob("success_*.png")))
    file = study_file(folder.name)
    install = f"pip install -e {file.parents[1]}\n" if file.is_relative_to("examples") else ""
    yield f"```bash\n{install}verl-agent study run {file}\n```\n"
    yield "[All measures](report.txt), [every point](points.json), [all studies and their limits](../../index.md)."


def study_file(name: str) -> Path:
    """Return the file of a study, relative to the repository."""
    root = RESULTS.parent.parent
    found = (
        path for folder in ("recipes/studies", "examples/*/recipes") for path in root.glob(f"{folder}/{name}.yaml")
    )
    if not (file := next(found, None)):
        raise SystemExit(f"no study {name}.yaml in recipes/studies or examples/*/recipes. Restore it.")
    return file.relative_to(root)


def columns(points: list[dict[str, float]]) -> dict[str, list[float | None]]:
    """Return the values of points by measurement, None where a point lacks it, as the first one those of training."""
    names = {key: None for point in points for key in point}
    return {name: [round(point[name], 4) if name in point else None for point in points] for name in names}


def table() -> Iterator[str]:
    """Yield the table of claims of the studies that are published."""
    yield "| claim | source | our answer | effect | seeds | command: `verl-agent study run` |"
    yield "|---" * 6 + "|"
    for name, claims in CLAIMS.items():
        file = RESULTS / "studies" / name / "points.json"
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            link = f"[`{study_file(name)}`](studies/{name}/index.md)"
            for claim, source, arm, *measure in claims:
                if answer := answered(name, content, arm, *measure):
                    yield f"| {claim} | {source} | {answer} | {link} |"
                    link = ""


def answered(name: str, content: dict[str, Any], arm: str, measure: str = "") -> str:
    """Return answer, effect and seeds of one claim as cells; empty if its arm has no run."""
    of = content["study"]["seeds"]
    if measure:
        if not (found := content["differences"].get(arm, {}).get(measure)):
            return ""
        effect = estimate(found)
        told = "lower" if effect.high < 0 else "higher" if effect.low > 0 else "cannot tell"
        return f"**{told}** | {span(effect)} {measure}, not corrected | {effect.tasks}/{of}"
    if name in ABSOLUTE:
        measure, least = ABSOLUTE[name]
        if not (found := content["measures"].get(arm, {}).get(measure)):
            return ""
        value = estimate(found)
        answer = "yes" if value.low >= least else "no" if value.high < least else "cannot tell"
        return f"**{answer}** | {measure} {span(value)} | {value.tasks}/{of}"
    if not (found := content["comparisons"].get(arm)):
        return ""
    difference = estimate(found["difference"])
    return f"**{found['verdict']}** | {span(difference)} | {difference.tasks}/{of}"


def estimate(found: dict[str, Any]) -> Estimate:
    """Return an estimate from a report."""
    return Estimate(found["mean"], found["low"], found["high"], found["tasks"])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        publish(Path(argument))
    write_pages()
