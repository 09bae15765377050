"""Control of GRPO: the returns of a task change places among its episodes, so training learns nothing of the task."""

from collections import defaultdict
from random import Random
from statistics import fmean, stdev

from torch import Tensor

from verl_agent import Estimator, EstimatorBatch


def shuffled_returns(batch: EstimatorBatch) -> Tensor:
    """Return GRPO's advantages (arXiv 2402.03300), permuted at random among the episodes of each task.

    The order follows from the turns and from the names of the episodes: the small runner of studies names them alike
    in each run, `verl-agent train` does not. `check-estimator` finds both, that names matter and that better outcomes
    may be punished; the second is the purpose.
    """
    returns: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    seeds: dict[str, list[str]] = defaultdict(list)
    for turn in batch.turns:
        returns[turn.group][turn.episode] += turn.reward
        seeds[turn.group].append(f"{turn.episode} {turn.number} {turn.end - turn.start} {turn.reward}")
    advantages: dict[str, float] = {}
    for group, own in returns.items():
        episodes, values = sorted(own), [own[one] for one in sorted(own)]
        middle, deviation = fmean(values), stdev(values) if len(values) > 1 else 0.0
        places = Random("\n".join(sorted(seeds[group]))).sample(episodes, len(episodes))
        for episode, value in zip(places, values, strict=True):
            advantages[episode] = (value - middle) / (deviation + 1e-6)
    return batch.on_tokens([advantages[turn.episode] for turn in batch.turns])


SHUFFLED_GRPO = Estimator(shuffled_returns, grouped=True, uniform_is_zero=True)
