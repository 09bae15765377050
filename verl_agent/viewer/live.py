"""Present state of a run: episodes in play, speed, memory, an estimate of the end, and the end of its log."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from verl_agent.envs.machine.processes import process_space
from verl_agent.errors import ConfigError
from verl_agent.oversight.socket import SOCKET, send_command
from verl_agent.results.folder import LOG
from verl_agent.rollout.live import read_running
from verl_agent.runs.first_error import first_error_in
from verl_agent.runs.hang_watch import PHASE_FILE, START
from verl_agent.runs.heartbeat import HEARTBEAT_FILE
from verl_agent.runs.identity import LOCK_FILE, read_plan
from verl_agent.trace.progress import STEPS_FOR_ETA
from verl_agent.viewer.conditions import LAST_ATTEMPT
from verl_agent.viewer.run_data import cached_run
from verl_agent.viewer.state import OpenedSource

WINDOW_S = 120
"""Seconds over which turns and tokens are counted."""
LATEST = 5_000
"""Records, the latest ones, in which ended episodes are searched."""
ANSWER_S = 1.0
"""Seconds in which a run has to tell its episodes."""
TAIL_BYTES = 32_000
"""Bytes of the end of a log."""
GPU_MEMORY = "perf/max_memory_allocated_gb"


def read_now(opened: OpenedSource, now: datetime) -> dict[str, str]:
    """Return what a running run does, by name; what it does not tell is left out.

    Args:
        now: the time, with a time zone.
    """
    logged = cached_run(opened).logged
    status = _status(opened)
    shown = {**_speed(opened, now), **_memory(opened, logged)}
    if opened.source.kind == "training":
        return {"": _phase(opened.source.folder), **_playing(opened), **shown, **_end(opened, logged, now)}
    return {
        **_episodes(status),
        **_api(status),
        **shown,
        **_end_of_evaluation(opened, int(status.get("planned", 0)), now),
    }


def _phase(folder: Path) -> str:
    """Return the phase that the trainer is in; other processes of it play the episodes, which it cannot tell."""
    try:
        lock, phase = folder / LOCK_FILE, folder / PHASE_FILE
        return phase.read_text(encoding="utf-8") if phase.stat().st_mtime >= lock.stat().st_mtime else START
    except FileNotFoundError:
        return START


def _status(opened: OpenedSource) -> Mapping[str, Any]:
    """Return the answer of the run to the command `status`; empty if it does not answer."""
    if not (opened.source.folder / SOCKET).exists():
        return {}
    try:
        return send_command(opened.source.folder, {"command": "status"}, ANSWER_S)
    except ConfigError:  # it ends, or is busy
        return {}


def _episodes(status: Mapping[str, Any]) -> dict[str, str]:
    turns = sorted(one["turn"] for one in status.get("episodes", []))
    if not turns:
        return {"episodes in play": "0"} if status else {}
    span = f"turn {turns[0]}" if turns[0] == turns[-1] else f"turns {turns[0]} to {turns[-1]}"
    return {"episodes in play": f"{len(turns)} ({span})"}


def _playing(opened: OpenedSource) -> dict[str, str]:
    """Return the number of episodes in play of a training run, as its processes write them while somebody reads."""
    turns = [{"turn": len(one.record["turns"]) + 1} for one in read_running(opened.source.records)]
    return _episodes({"episodes": turns}) if turns else {}


def _api(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the requests to a model behind an API: answers, waits, retries by their reason, ends, usage."""
    api = status.get("api")
    if not api:
        return {}
    retried = "; ".join(f"{count} × {reason}" for reason, count in api["retried"].items())
    found = {"requests answered": f"{api['answered']:,}", "waiting": str(api["waiting"]), "retried": retried}
    found["ends of replies"] = ", ".join(f"{count} {stop}" for stop, count in api["stops"].items())
    found["tokens read"], found["written"] = f"{api['input_tokens']:,}", f"{api['output_tokens']:,}"
    found["cost"] = f"{api['cost_usd']:.2f} USD" if api["cost_usd"] else ""
    return {name: value for name, value in found.items() if value not in ("", "0")}


def _speed(opened: OpenedSource, now: datetime) -> dict[str, str]:
    """Return turns and tokens a second of the episodes that ended lately."""
    ended = "strftime('%s', started_at) + seconds"
    turns, tokens = opened.index.db.execute(
        f"""SELECT coalesce(sum(turns), 0), coalesce(sum(tokens), 0) FROM episodes
        WHERE id > (SELECT max(id) FROM episodes) - ? AND {ended} > ?""",
        (LATEST, now.timestamp() - WINDOW_S),
    ).fetchone()
    found = {"turns a second": f"{turns / WINDOW_S:.2f}"}
    return found | ({"tokens a second": f"{tokens / WINDOW_S:,.0f}"} if tokens else {})


def _memory(opened: OpenedSource, logged: Mapping[int, Mapping[str, float]]) -> dict[str, str]:
    """Return the memory of the run's processes on this machine, and that of the GPU as the last step logged it."""
    found = {}
    try:
        # not from the lock: a viewer in the process of the run would release it with the file that it closes
        _, process, *space = (opened.source.folder / HEARTBEAT_FILE).read_text(encoding="utf-8").split()
        if " ".join(space) == process_space():
            root = psutil.Process(int(process))
            used = sum(map(_own_bytes, [root, *root.children(recursive=True)]))
            found["memory"] = f"{used / 1e9:.1f} GB" if used >= 1e9 else f"{used / 1e6:.0f} MB"
    except (OSError, ValueError, psutil.Error):  # it ended, or is writing its heartbeat
        pass
    if logged and (gpu := logged[max(logged)].get(GPU_MEMORY)) is not None:
        found["GPU memory"] = f"{gpu:.1f} GB"
    return found


def _own_bytes(process: psutil.Process) -> int:
    """Return the memory of a process without the pages that it may share with others."""
    try:
        memory: Any = process.memory_info()
        return int(memory.rss - getattr(memory, "shared", 0))
    except psutil.Error:
        return 0


def _end(opened: OpenedSource, logged: Mapping[int, Mapping[str, float]], now: datetime) -> dict[str, str]:
    """Return the estimated end of a training run, from the mean time of its latest steps."""
    steps = [step for step in sorted(logged) if "timing_s/step" in logged[step]][-STEPS_FOR_ETA:]
    total = read_plan(opened.source.folder)
    if not steps or steps[-1] >= total:
        return {}
    seconds = fmean(logged[at]["timing_s/step"] + logged[at].get("timing_s/testing", 0.0) for at in steps)
    return {"step": f"{steps[-1]} of {total}", "ends": _time_left((total - steps[-1]) * seconds, now)}


def _end_of_evaluation(opened: OpenedSource, planned: int, now: datetime) -> dict[str, str]:
    """Return the estimated end of an evaluation, from the episodes that were played since its latest start."""
    lock = opened.source.folder / LOCK_FILE
    if not planned or not lock.is_file():
        return {}
    start = datetime.fromtimestamp(lock.stat().st_mtime, UTC).isoformat()
    ended, new, first = opened.index.db.execute(
        f"SELECT count(*), sum(started_at >= ?), min(CASE WHEN started_at >= ? THEN started_at END) FROM episodes "
        f"WHERE {LAST_ATTEMPT}",
        (start, start),
    ).fetchone()
    shown = {"episodes": f"{ended} of {planned}"}
    if not new or ended >= planned:
        return shown
    seconds = (now - datetime.fromisoformat(first)).total_seconds() / new
    return shown | {"ends": _time_left((planned - ended) * seconds, now)}


def _time_left(seconds: float, now: datetime) -> str:
    left = timedelta(seconds=round(seconds))
    return f"{(now + left).astimezone():%Y-%m-%d %H:%M}, in {left}"


def latest_log(folder: Path) -> Path | None:
    """Return the log file of the latest start of a run or of an evaluation; None without one."""
    found = [*sorted((folder / "logs").glob("*.log")), *((folder / LOG,) if (folder / LOG).is_file() else ())]
    return found[-1] if found else None


def read_tail(log: Path) -> tuple[str, str]:
    """Return the first error of a log, "" without one, and its last lines."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return first_error_in([log]), text if size <= TAIL_BYTES else text.partition("\n")[2]
