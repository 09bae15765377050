"""Execution of a study: its runs one or two at a time, resumed where they stopped, with an estimate of the end."""

import os
import re
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_agent.config.composing import compose_training, read_yaml
from verl_agent.config.keys import leaves, value_at
from verl_agent.envs.machine.processes import end_with_parent
from verl_agent.errors import ConfigError
from verl_agent.runs.identity import claim, read_settings
from verl_agent.study.environments import check_batch
from verl_agent.study.inference import decided_pairs, hopeless
from verl_agent.study.plan import Plan
from verl_agent.study.runs import (
    Results,
    Run,
    chosen_value,
    measured,
    run_overrides,
    run_study,
    search_runs,
    study_runs,
)
from verl_agent.study.settings import LOWER_IS_BETTER
from verl_agent.study.verl_runs import train_with_verl
from verl_agent.system.resources import make_folder, read_text

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

RECORD = "study.json"
"""File with the hashes of the study, its configs and the code."""
FAILED = "failed.txt"
"""File with the runs that have failed, one a line; other starts play them last."""
RANKS = "trainer.n_gpus_per_node"
"""Key of the number of training ranks of a run, each of which needs a core on a CPU."""
TOPOLOGY = Path("/sys/devices/system/cpu")
"""Folder in which Linux tells which logical cores are one physical core."""
ROOM_MB = 300
"""Free space that a run needs to start."""
ADVICE = (
    "Choose another --out, or restore what changed. If only the code changed, and that makes no difference, add "
    "--new-code."
)


def play_run(plan: Plan, run: Run, out: Path) -> float:
    """Play one run to its end, and return the seconds that it took.

    Raises:
        ConfigError: the disk is full, or the run fails.
    """
    begun, study, overrides = time.monotonic(), run_study(plan.study, run), run_overrides(plan, run, out)
    free = shutil.disk_usage(out).free / 2**20
    if free < ROOM_MB:
        raise ConfigError(f"{out} has {free:.0f} MB of free space, a run needs {ROOM_MB}. The next start resumes.")
    try:
        if study.runner == "train":
            train_with_verl(plan.recipe, overrides, run.folder(out), study.budget_turns)
        else:
            with warnings.catch_warnings(action="ignore"):  # verl warns of each engine that is not installed
                from verl_agent.study.tiny.training import TinyRun
                from verl_agent.study.tiny.warm_start import warm_start_once

            warm = run.warm_start(out)
            shared = [*plan.study.strata[run.stratum], f"data.seed={run.seed}"]  # of no arm, so the same for all
            warm_start_once(warm, lambda: compose_training(plan.recipe, shared), study.tiny, run.seed)
            TinyRun(run.folder(out), warm, compose_training(plan.recipe, overrides), study, run.seed).train()
    except OSError as error:
        raise ConfigError(f"{run}: {error}. Repair {out} or free space; the next start resumes.") from error
    return time.monotonic() - begun


def begin_worker(begun: "Synchronized[int]", jobs: int) -> None:
    """Take a share of this machine's cores, and let a worker process end with its parent, and silently at Ctrl-C.

    Runs that share cores wait for each other's threads.

    Args:
        begun: number of worker processes that have begun.
        jobs: number of worker processes.
    """
    with begun.get_lock():
        own, begun.value = begun.value, begun.value + 1
    if sys.platform == "linux":  # elsewhere a process cannot choose its cores
        with suppress(OSError):  # nor in some containers
            os.sched_setaffinity(0, shares_of_cores(jobs, os.sched_getaffinity(0))[own])
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def shares_of_cores(jobs: int, given: Iterable[int], topology: Path = TOPOLOGY) -> list[list[int]]:
    """Return the logical cores of each of several processes: about equal numbers, or all if there are fewer than jobs.

    Logical cores of one physical core stay together where the numbers allow it.

    Args:
        given: logical cores to share out.
        topology: see `TOPOLOGY`.
    """

    def place(core: int) -> tuple[int, int]:
        siblings = re.match(r"\d+", read_text(str(topology / f"cpu{core}/topology/core_cpus_list")))
        return int(siblings[0]) if siblings else core, core

    cores = sorted(given, key=place)
    if jobs > len(cores):
        return [cores] * jobs
    return [cores[own * len(cores) // jobs : (own + 1) * len(cores) // jobs] for own in range(jobs)]


def check_cores(plan: Plan, runs: Sequence[Run], out: Path, jobs: int) -> None:
    """Check that each of several concurrent runs with verl has a core for each rank.

    Raises:
        ConfigError: one has fewer.
    """
    if sys.platform != "linux":
        return
    share = min(map(len, shares_of_cores(jobs, os.sched_getaffinity(0))))
    for run in runs:
        sections = compose_training(plan.recipe, run_overrides(plan, run, out))
        if value_at(sections, "trainer.device") == "cpu" and share < (ranks := value_at(sections, RANKS)):
            raise ConfigError(
                f"{run} has {RANKS}={ranks}, and --jobs={jobs} gives it {share} of this machine's cores. Lower one of "
                "them."
            )


class Execution:
    """Plays the missing runs of a study into the folder `out`, `jobs` at a time in worker processes."""

    def __init__(self, plan: Plan, out: Path, jobs: int, say: Callable[[str], None]) -> None:
        self._plan, self._out, self._jobs, self._say = plan, out, jobs, say
        self._arms, self._seconds, self._turns = list(plan.study.arms), 0.0, 0

    def run(self, new_code: bool = False) -> None:
        """Play the search, and then the runs of the study by its stopping rule.

        Raises:
            ConfigError: the file or the code changed since the first run, the folder is in use, an arm has too few
                tasks, or a run fails.
        """
        plan, study, out = self._plan, self._plan.study, self._out
        first = search_runs(plan) or study_runs(plan, study.seeds, self._arms)
        if study.runner == "tiny":
            for run in first:
                if run.seed == first[0].seed:
                    config = compose_training(plan.recipe, run_overrides(plan, run, out))
                    check_batch(config, study.tiny_of(run.arm).later_tasks)
        else:
            check_cores(plan, [run for run in first if run.seed == first[0].seed], out, self._jobs)
        make_folder(out, "--out")
        check_same_file(plan.file, out)
        claim_study(out, plan.facts, new_code)
        if not (out / "study.yaml").is_file():
            shutil.copyfile(plan.file, out / "study.yaml.part")
            (out / "study.yaml.part").replace(out / "study.yaml")
        try:
            context = get_context("spawn")  # in processes, so that no run has two writers
            shares = (context.Value("i", 0), self._jobs)
            with ProcessPoolExecutor(self._jobs, context, begin_worker, shares) as pool:
                if study.runner == "tiny" and not (out / "warm").is_dir():
                    self._say("Each seed begins with episodes of the oracle to imitate; long ones take minutes.")
                self._play(pool, search_runs(plan))
                if study.search is not None:
                    for stratum, arm in plan.changes:
                        value = chosen_value(plan, stratum, arm, out)
                        self._say(f"{stratum}, {arm}: {study.search.key}={value:g} is the best of the search")
                for start, end in pairwise([0, *study.looks]):
                    self._play(pool, study_runs(plan, study.seeds[start:end], self._arms))
                    if self._ends_after(end):
                        return
        except BrokenProcessPool as error:
            raise ConfigError("a process was killed, often for memory. Start the command again: it resumes.") from error

    def _ends_after(self, seeds: int) -> bool:
        """Say what is decided after a number of seeds; drop arms, or return True if the study ends."""
        plan, study, out = self._plan, self._plan.study, self._out
        if study.stop.rule == "successive":
            lost = hopeless(decisions(plan, out), study.measure in LOWER_IS_BETTER)
            self._arms = [arm for arm in study.arms if arm not in lost]
            self._say(f"{seeds} seeds: worse than another arm: {', '.join(sorted(lost)) or 'none'}")
        if study.stop.rule == "looks":
            runs = study_runs(plan, study.seeds[:seeds], self._arms)
            settled = Results(plan, {run: run.points(out) for run in runs}).settled(seeds)
            each = "each" if settled else "not each"
            self._say(f"{seeds} seeds: {each} other arm is better or worse than {study.reference_arm}")
            return settled
        return len(self._arms) < 2

    def _play(self, pool: ProcessPoolExecutor, runs: Sequence[Run]) -> None:
        failed, missing = self._out / FAILED, [run for run in runs if not run.done(self._out)]
        earlier = failed.read_text(encoding="utf-8").splitlines() if failed.is_file() else []
        missing.sort(key=lambda run: str(run) in earlier)  # else a run that fails again would keep all others waiting
        if len(runs) > len(missing):
            self._say(f"{len(runs) - len(missing)} of {len(runs)} runs have ended before.")
        playing: dict[Future[float], Run] = {}  # one for each worker, so that a run that fails is the last one
        try:
            while missing or playing:
                while missing and len(playing) < self._jobs:
                    run = missing.pop(0)
                    if points := run.points(self._out):
                        self._say(f"{run}: goes on after {points[-1]['turns']:,} turns")
                    playing[pool.submit(play_run, self._plan, run, self._out)] = run
                for future in wait(playing, return_when=FIRST_COMPLETED).done:
                    run = playing.pop(future)
                    if isinstance(future.exception(), ConfigError) and str(run) not in earlier:
                        with suppress(OSError), failed.open("a", encoding="utf-8") as file:
                            file.write(f"{run}\n")
                    self._report(run, future.result())
        except BaseException:
            pool.shutdown(wait=False)
            raise

    def _report(self, run: Run, seconds: float) -> None:
        """Say what a run has reached, and when the last one will end if no arm is dropped."""
        plan, study, budget = self._plan, self._plan.study, run_study(self._plan.study, run).budget_turns
        self._seconds, self._turns = self._seconds + seconds, self._turns + budget
        runs = [*search_runs(plan), *study_runs(plan, study.seeds, self._arms)]
        left = [run_study(study, one).budget_turns for one in runs if not one.done(self._out)]
        until = datetime.now() + timedelta(seconds=sum(left) * self._seconds / self._turns / self._jobs)
        end = f"; {len(left)} left, until about {until:%d %b %H:%M}" if left else ""
        value = measured(run.points(self._out), study.measure, budget)
        self._say(f"{run}: {study.measure} {value:.3f} in {seconds:.0f} s{end}")


def check_same_file(file: Path, out: Path) -> None:
    """Check that a study is the one whose runs a folder holds.

    Raises:
        ConfigError: its file changed since the first run.
    """
    kept = out / "study.yaml"
    if kept.is_file() and kept.read_bytes() != file.read_bytes():
        before, now = (dict(leaves(read_yaml(one, ""))) for one in (kept, file))
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        changed = [f"{key} was {before.get(key)}, is now {now.get(key)}" for key in keys] or ["comments or order"]
        raise ConfigError(
            f"{out} holds runs of another version of this study: {'; '.join(changed)}. A study that changes after its "
            f"first run is another one: give it its own --out. To go on with the old one, copy {kept} beside {file}."
        )


def claim_study(out: Path, facts: Mapping[str, str], new_code: bool) -> None:
    """Lock the folder of a study, and record its hashes; those of the code are a list, the first one first.

    Raises:
        ConfigError: the file or the configs changed, the code changed without `new_code`, or the folder is in use.
    """
    recorded = read_settings(out, RECORD)
    codes = code_hashes(recorded)
    now = codes if facts["code"] in codes[-1:] else [*codes, facts["code"]]
    earlier = {**recorded, "code": codes} if recorded else {}
    if new_code or codes[-1:] == [None]:
        earlier.pop("code", None)  # not compared
    contents = "runs of another version of this study"
    claim(out, {**facts, "code": now}, [], contents=contents, advice=ADVICE, file=RECORD, earlier=earlier)


def code_hashes(recorded: Mapping[str, Any]) -> list[str | None]:
    """Return the hashes of the code that played the runs, by time; None for the first one where it is not recorded."""
    codes = recorded.get("code") if recorded else []
    return codes if isinstance(codes, list) else [codes]


def decisions(plan: Plan, out: Path) -> dict[tuple[str, str], str]:
    """Return the pairs of arms that are told apart so far, each with the arm of larger values."""
    study, size, each = plan.study, plan.study.stop.block, len(plan.study.strata)
    blocks, decided = list[dict[str, list[float]]](), dict[tuple[str, str], str]()
    for start in range(0, len(study.seeds), size):
        lost = hopeless(decided, study.measure in LOWER_IS_BETTER)
        runs = {
            arm: study_runs(plan, study.seeds[start : start + size], [arm]) for arm in study.arms if arm not in lost
        }
        if len(runs) < 2 or not all(run.done(out) for of_arm in runs.values() for run in of_arm):
            break
        blocks.append({})
        for arm, of_arm in runs.items():
            values = [measured(run.points(out), study.measure, study.budget_turns) for run in of_arm]
            # runs of one seed follow each other
            blocks[-1][arm] = [sum(values[at : at + each]) / each for at in range(0, len(values), each)]
        decided = decided_pairs(blocks, -(-len(study.seeds) // size), study.stop.alpha)
    return decided
