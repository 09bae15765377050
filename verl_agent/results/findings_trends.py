"""Causes in the history of a run: what went wrong, since which step, what changed there, and what to do."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from verl_agent.results.findings_onset import NOISE, find_onset
from verl_agent.results.findings_steps import LATEST, RunHistory, change_since
from verl_agent.trace.metrics_log import ENTROPY, first_logged
from verl_agent.types import StopReason
from verl_agent.visible import one_line

logger = logging.getLogger(__name__)

UPDATE = ("actor/", "critic/")
"""Areas of the metrics of an update, which are finite in a run that learns."""
GRADIENT, STALENESS, TEACHER = "actor/grad_norm", "staleness/mean", "distillation/reverse_kl"
LONGER = "Raise episode.max_tokens_per_turn or data.max_response_length, or ask for shorter thoughts."
READ_SOLVED = "Read solved episodes: what earns the reward? verl-agent check-env --attack searches such actions."
SOLVED = 0.9
"""Success from which equal returns and a low entropy are no problem."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of the run.

    Attributes:
        text: symptom with its onset and its share, what changed there, and what to do.
        parameters: filter of the episodes that show it.
        groups: True if the filter is one of groups.
        since: first step of the problem; 0 if it has no known beginning.
    """

    text: str
    parameters: Mapping[str, str]
    groups: bool = False
    since: int = 0


def find_causes(history: RunHistory) -> list[Finding]:
    """Return the problems that began during the run, the earliest first; those of about one step by their weight."""
    found = [finding for detect in _CAUSES for finding in guarded(partial(_as_list, detect, history))]
    if not found:
        return []
    steps = sorted({at.step for at in history.steps} | set(history.log.by_step))
    near = (steps[-1] - steps[0]) / 10
    ordered: list[Finding] = []
    while found:  # an effect follows its cause
        earliest = min(finding.since for finding in found)
        ordered += [finding for finding in found if finding.since <= earliest + near]
        found = [finding for finding in found if finding.since > earliest + near]
    return ordered


def guarded(detect: Callable[[], list[Finding]]) -> list[Finding]:
    """Return the findings of a detector; none if it fails, so that the other findings are shown."""
    try:
        return detect()
    except Exception as error:  # boundary of a detector: a diagnosis must not end what it watches
        logger.warning("a search for problems of the run failed: %s: %s", type(error).__name__, one_line(str(error)))
        return []


def _as_list(detect: Callable[[RunHistory], Finding | None], history: RunHistory) -> list[Finding]:
    finding = detect(history)
    return [] if finding is None else [finding]


def began(history: RunHistory, title: str, since: int, symptom: str, advice: str, **parameters: str) -> Finding:
    """Return the finding on a problem that began at a step."""
    steps = history.last_steps(since)
    span = f"{steps[0].step}..{steps[-1].step}" if steps else f"{since}.."
    text = f"{title} since step {since}: {symptom}.{history.changes(since)} {advice}"
    return Finding(text, {"purpose": "train", "step": span, **parameters}, since=since)


def latest(values: Mapping[int, float], since: int) -> float:
    """Return the mean of the latest values, of none before a step; 0 without one."""
    found = [values[step] for step in sorted(values)[-LATEST:] if step >= since]
    return fmean(found) if found else 0.0


def highest(values: Mapping[int, float]) -> float:
    """Return the highest of the latest values; 0 without one. Where it is low, no onset needs to be fitted."""
    return max((values[step] for step in sorted(values)[-LATEST:]), default=0.0)


def share_of_errors(history: RunHistory) -> dict[int, float]:
    """Return the share of training episodes that ended with an environment error, by step."""
    found = {at.step: at.env_errors / (at.episodes + at.env_errors) for at in history.played}
    return dict(sorted((first_logged(history.log.by_step, "env/error_rate") | found).items()))


def commonest_error(history: RunHistory) -> str:
    """Return a sentence on the commonest environment error, or ""."""
    if not history.errors:
        return ""
    text, count = max(history.errors.items(), key=lambda item: item[1])
    shown = one_line(text).rstrip(".")
    return f" The commonest error ({count} of {sum(history.errors.values())}): {shown}." if text else ""


def _not_finite(history: RunHistory) -> Finding | None:
    every = history.log.not_finite.items()
    broken = {at: found for at, names in every if (found := [name for name in names if name.startswith(UPDATE)])}
    steps = sorted({*history.log.by_step, *history.log.not_finite})
    recent = steps[-LATEST // 2 :]
    if 2 * len(broken.keys() & set(recent)) <= len(recent):  # the trainer skips a single update that is not finite
        return None
    ill = [at in broken for at in steps]
    first = len(ill) - 1
    while first > 0 and any(ill[max(0, first - 2) : first]):  # one finite step does not end the stretch
        first -= 1
    since = min(at for at in broken if at >= steps[first])
    symptom = f"NaN or infinite: {', '.join(sorted(broken[since])[:3])}"
    advice = "Resume from a checkpoint before that step with a lower actor_rollout_ref.actor.optim.lr."
    return began(history, "Divergence", since, symptom, advice)


def _environment(history: RunHistory) -> Finding | None:
    shares = share_of_errors(history)
    onset = find_onset(shares, 0.03) if highest(shares) >= 0.05 else None
    if onset is None or (now := latest(shares, onset.step)) < 0.05:
        return None
    symptom = (
        f"{now:.0%} of the episodes end with an error of the environment and are not trained on "
        f"({onset.before:.0%} before)"
    )
    advice = f"Run verl-agent check-env with this environment.{commonest_error(history)}"
    return began(history, "Environment errors", onset.step, symptom, advice, stop=StopReason.ENV_ERROR)


def _format(history: RunHistory) -> Finding | None:
    shares = {at.step: at.behaviors["no_action"] for at in history.train}
    onset = find_onset(shares, 0.1) if highest(shares) >= 0.2 else None
    if onset is None or (now := latest(shares, onset.step)) < 0.2 or history.improves(onset.step):
        return None
    symptom = f"{now:.0%} of the replies have no action that the parser accepts ({onset.before:.0%} before)"
    advice = "Compare a reply with the format in the prompt. Lower the learning rate, or warm-start the format."
    return began(history, "Format collapse", onset.step, symptom, advice, no_action="1..")


def _truncation(history: RunHistory) -> Finding | None:
    shares = history.series(lambda at: at.cut)
    onset = find_onset(shares, 0.1) if highest(shares) >= 0.15 else None
    if onset is None or (now := latest(shares, onset.step)) < 0.15 or history.improves(onset.step):
        return None
    symptom = f"{now:.0%} of the episodes are cut by a token budget ({onset.before:.0%} before)"
    return began(history, "Truncation", onset.step, symptom, LONGER, truncated="1..")


def _hacking(history: RunHistory) -> Finding | None:
    certain = [sign for find in (_short, _copies) if (sign := find(history)) is not None]
    gap = _gap(history)
    signs = [*certain, *([gap] if gap else [])]
    if not signs:
        return None
    title = "Reward hacking" if certain else "Reward hacking or overfitting"
    symptom = ", and ".join(text for _, text in signs)
    since = min(step for step, _ in certain or signs)  # validations are few, so that their step is less exact
    advice = READ_SOLVED if certain else f"{READ_SOLVED} If nothing is wrong with them, train on more tasks."
    return began(history, title, since, symptom, advice, success="yes")


def _short(history: RunHistory) -> tuple[int, str] | None:
    shares = {at.step: at.short / at.measured for at in history.train if at.measured}
    onset = find_onset(shares, 0.2) if highest(shares) >= 0.3 else None
    if onset is None or (now := latest(shares, onset.step)) < 0.3:
        return None
    return onset.step, f"{now:.0%} of the solved episodes took fewer turns than the oracle ({onset.before:.0%} before)"


def _copies(history: RunHistory) -> tuple[int, str] | None:
    onset = find_onset(history.copies, 0.3) if highest(history.copies) >= 0.5 else None
    rewards = history.series(lambda at: at.reward, "episode/reward_mean")
    if onset is None or (now := latest(history.copies, onset.step)) < 0.5:
        return None
    of_validation = change_since(history.validated, onset.step, history.deviations(history.validation))
    if change_since(rewards, onset.step) <= 0 or of_validation > 0:
        return None
    return onset.step, f"{now:.0%} of the episodes have the same actions, although their tasks differ, and earn more"


def _gap(history: RunHistory) -> tuple[int, str] | None:
    """Find validations that fall while training rises; the step is that of the rise if it began near their fall."""
    validated, rewards = history.validated, history.series(lambda at: at.reward, "episode/reward_mean")
    least = 0.1 * max(map(abs, validated.values()), default=0.0) or 1.0
    fall = find_onset(validated, least, rising=False, noise=NOISE / 2)  # the rise of training tells of it, too
    if fall is None or change_since(rewards, fall.step) <= 0:
        return None
    previous = sorted(step for step in validated if step < fall.step)[-3:][0]
    rise = find_onset(rewards, 1e-9)
    since = rise.step if rise is not None and previous < rise.step <= fall.step else fall.step
    return since, f"validation fell from {fall.before:.3g} to {fall.after:.3g} while the training return rose"


def _gradient(history: RunHistory) -> Finding | None:
    norms = first_logged(history.log.by_step, GRADIENT)
    logs = {step: math.log10(norm) for step, norm in norms.items() if norm > 0}
    least = math.log10(4)
    onset = find_onset(logs, least) if highest(logs) - min(logs.values(), default=0.0) >= least else None
    if onset is None or history.improves(onset.step):
        return None
    symptom = f"the gradient norm rose from {10**onset.before:.2g} to {10**onset.after:.2g}{_of_measure(history)}"
    advice = "Resume from a checkpoint before that step with a lower actor_rollout_ref.actor.optim.lr."
    return began(history, "Divergence", onset.step, symptom, advice)


def _staleness(history: RunHistory) -> Finding | None:
    ages = first_logged(history.log.by_step, STALENESS)
    onset = find_onset(ages, 0.5) if highest(ages) >= 1 else None
    if onset is None or (now := latest(ages, onset.step)) < 1 or history.improves(onset.step):
        return None
    symptom = f"tokens are trained on {now:.2g} updates after they were sampled, on average ({onset.before:.2g} before)"
    advice = "Lower trainer.v1.sampler.max_off_policy_threshold, or speed up the environment or the engine."
    return began(history, "Staleness", onset.step, symptom, advice)


def _entropy(history: RunHistory) -> Finding | None:
    if first_logged(history.log.by_step, TEACHER):  # the entropy goes to that of the teacher
        return None
    values = first_logged(history.log.by_step, *ENTROPY)
    lowest = min((values[step] for step in sorted(values)[-LATEST:]), default=0.0)  # the fall may be young
    fallen = 4 * lowest <= max(values.values(), default=0.0) and any(values.values())
    onset = find_onset(values, 0.2 * max(values.values()), rising=False) if fallen else None
    if onset is None or onset.after > onset.before / 4 or history.improves(onset.step):
        return None
    if latest(history.series(lambda at: at.success, "episode/success_rate"), onset.step) >= SOLVED:
        return None
    symptom = f"it fell from {onset.before:.2g} to {onset.after:.2g} nats per token{_of_measure(history)}"
    advice = (
        "The samples of a group become equal. Resume before that step with a lower learning rate, a higher sampling "
        "temperature or actor_rollout_ref.actor.entropy_coeff above 0."
    )
    return began(history, "Entropy collapse", onset.step, symptom, advice)


def _length(history: RunHistory) -> Finding | None:
    played = [at for at in history.train if at.tokens and at.turns]
    lengths = {at.step: at.tokens / (at.turns * at.episodes) for at in played}
    least = min(lengths.values(), default=0.0)
    onset = find_onset(lengths, 0.6 * least) if highest(lengths) >= 1.6 * least > 0 else None
    if onset is None or onset.after < 1.6 * onset.before or history.improves(onset.step):
        return None
    symptom = f"a reply went from {onset.before:.0f} to {onset.after:.0f} tokens on average{_of_measure(history)}"
    advice = "Read a reply, and one from before that step: text that earns nothing grows if nothing limits it."
    return began(history, "Length growth", onset.step, symptom, advice)


def find_decline(history: RunHistory) -> list[Finding]:
    """Return a fall of success or return, of which the cause is not known."""
    validated = history.validated
    for name, values in (("validation", validated), ("training", history.measure())):
        onset = find_onset(values, 0.15 * max(map(abs, values.values()), default=1.0) or 1.0, rising=False)
        if onset is not None and change_since(values, onset.step) < 0 and onset.step > min(values):
            symptom = f"{name} went from {onset.before:.3g} to {onset.after:.3g}"
            advice = "The best checkpoint is kept in best/. Resume before that step with a lower learning rate."
            return [began(history, "Success falls", onset.step, symptom, advice)]
    return []


def _of_measure(history: RunHistory) -> str:
    """Return a phrase on the latest success or return of training."""
    values = history.measure()
    name = "success" if any(at.success for at in history.train) else "the measure"
    return f", and {name} is {latest(values, 0):.2g}" if values else ""


_CAUSES: Sequence[Callable[[RunHistory], Finding | None]] = (
    _not_finite,
    _environment,
    _format,
    _truncation,
    _hacking,
    _gradient,
    _staleness,
    _entropy,
    _length,
)
"""Causes, those that explain most first."""
