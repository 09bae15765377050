"""Findings of an attack: returns of policies without skill, compared with each other and with a solution."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from verl_agent.envs.base import EnvAdapter, read_success_reward
from verl_agent.envs.testing import attacks
from verl_agent.envs.testing.attack_play import demonstrated
from verl_agent.envs.testing.attack_report import LEVEL, RANDOM_EPISODES, RIVALS, AttackReport
from verl_agent.envs.testing.attacks import EXPLORERS, IDLE, SAME_ACTIONS, Play
from verl_agent.envs.testing.statistics import chance, surely_above
from verl_agent.returns import TOLERANCE, reaches

GAIN = 0.25
"""Least share of the way from the best idle or random policy to a solution that counts as a finding."""
FLOOR = 0.5
"""Share of a solution's return from which a constant action counts as a finding, however good random actions are."""
SOLVED = 0.9
"""Share of random episodes with the return of a solution from which random actions are a finding."""


class Verdict:
    """Judgement of the episodes of all policies.

    Args:
        plays: episodes by task and by policy.
        report: receives the findings and the returns.
    """

    def __init__(
        self, env: EnvAdapter, plays: Mapping[str, Mapping[str, Sequence[Play]]], report: AttackReport
    ) -> None:
        self.env, self.plays, self.report = env, plays, report

    def totals(self, name: str) -> dict[str, list[float]]:
        """Return the returns of a policy by task; none of the tasks that it did not play."""
        return {task: [play.total for play in plays[name]] for task, plays in self.plays.items() if name in plays}

    def judge(self, tried: int) -> None:
        """Compare the policies with random actions, with each other and with the demonstrations.

        Args:
            tried: number of texts that were tried once on each task; the best of them were played as policies.
        """
        names = list(dict.fromkeys(name for plays in self.plays.values() for name in plays))
        means = {name: fmean(value for values in self.totals(name).values() for value in values) for name in names}
        success, random_totals = read_success_reward(self.env), self.totals("random")
        best = max(one for values in random_totals.values() for one in values)
        self.report.returns = {name: self.totals(name) for name in names}
        self.report.solution = max(success, means.get("demonstration", best))
        tops = {task: self.totals("demonstration").get(task, [success])[0] for task in random_totals}
        won = [reaches([value], max(tops[task], success)) for task, values in random_totals.items() for value in values]
        if fmean(won) >= SOLVED and len(won) >= 2 * RANDOM_EPISODES:
            text = f"random actions reach the return of a solution in {fmean(won):.0%} of episodes"
            self.report.find("random actions", text)
        self._judge_idle(means)
        self._judge_policies(means, tried)
        self._judge_repeats()
        self._judge_leaks()

    def _judge_idle(self, means: Mapping[str, float]) -> None:
        """Find rewards for doing nothing, and games in which doing nothing is better than playing them."""
        top = self.report.solution
        late = [name for name in means if name.endswith(" turns")]
        for name in (*IDLE, *late):
            plays = [play for played in self.plays.values() for play in played.get(name, ())]
            waits = name.partition(",")[0] in IDLE or all((play.paid or 0) >= self.report.turns for play in plays)
            if top > 0 and waits and surely_above([play.total for play in plays], GAIN * top):
                self.report.find("inaction", f"{name} earns {means[name]:.3f} of {top:.3f}")
        rivals = ["random"] if "demonstration" in means else [one for one in means if one in self._trying]
        for rival in rivals:
            completed = fmean(play.ended for plays in self.plays.values() for play in plays.get(rival, ()))
            idle = max(IDLE, key=lambda name: means[name])
            idle_totals = self.totals(idle)
            both = [(fmean(values), idle_totals[task][0]) for task, values in self.totals(rival).items()]
            better = surely_above([still - tried for tried, still in both], 0.0)
            if completed >= SOLVED and better:
                text = f"{idle} until the limit earns {means[idle]:.3f}, more than {rival} with {means[rival]:.3f}"
                self.report.find("inaction", text)

    @property
    def _trying(self) -> list[str]:
        return ["random", *(f"always the same action ({place + 1})" for place in range(SAME_ACTIONS))]

    def _judge_policies(self, means: Mapping[str, float], tried: int) -> None:
        """Find policies that earn far more than random and idle ones, or a constant share of a solution."""
        base_name = max(RIVALS, key=lambda name: means[name])
        base, base_totals, top = means[base_name], self.totals(base_name), self.report.solution
        highest = {task: max(values) for task, values in self.totals("random").items()}
        above = set()
        for name in means:
            if not name.startswith("always") and name not in EXPLORERS:
                continue
            totals = {task: values[0] for task, values in self.totals(name).items()}
            above |= {task for task, value in totals.items() if value > highest[task] + TOLERANCE}
            gain = (means[name] - base) / (top - base) if top > base + TOLERANCE else 0.0
            legal = name in self._trying
            earns = f"{name} earns {means[name]:.3f} of {top:.3f}, {base_name} {base:.3f}"
            if name.startswith("always") and top > 0 and surely_above(list(totals.values()), FLOOR * top):
                self.report.find("pays anything", earns)
            elif gain >= GAIN and not legal:
                others = [base_totals[task] for task in totals]
                if chance(list(totals.values()), others) < LEVEL / (len(means) + tried):
                    self.report.find("pays anything" if name.startswith("always") else "trying everything", earns)
        self.report.above = len(above)

    def _judge_repeats(self) -> None:
        """Find rewards that are paid twice, or after the end."""
        for played in self.plays.values():
            for name, plays in played.items():
                for play in plays:
                    for earned, when in ((play.after, "after the end"), (play.next, "in the session's next episode")):
                        if earned > TOLERANCE:
                            text = f"{name} earns {earned:.3f} {when} of {play.item.id!r}"
                            self.report.find("paid after the end", text)
            for name in demonstrated(["x"], 0):
                if name in played and "demonstration" in played:
                    more, once = played[name][0].total, played["demonstration"][0].total
                    if more > once + max(TOLERANCE, 0.01 * abs(once)):
                        text = f"{name} earns {more:.3f} on {played[name][0].item.id!r}, the demonstration {once:.3f}"
                        self.report.find("paid twice", text)
        self._judge_random_repeats()

    def _judge_random_repeats(self) -> None:
        """Find actions that pay at every repetition until they solve the task, where usual steps pay little."""
        repeats = [
            plays["paid action again"][0]
            for plays in self.plays.values()
            if "demonstration" not in plays and "paid action again" in plays
        ]
        steps = [step.reward for plays in self.plays.values() for play in plays["random"] for step in play.steps]
        usual = fmean(steps or [0.0])
        solved = [
            play
            for play in repeats
            if play.paid is not None
            and sum(step.reward > 0 for step in play.steps) > 2
            and play.total >= self.report.solution > 0
            and play.steps[play.paid].reward > 4 * usual
        ]
        if len(solved) > max(1, len(repeats) / 2):
            text = f"repeating the first action that paid earns {solved[0].total:.3f} on {solved[0].item.id!r}"
            self.report.find("paid twice", text)

    def _judge_leaks(self) -> None:
        """Find answers to idle policies that tell the words of the action that solves the task."""
        told, secrets = dict[str, set[str]](), dict[str, set[str]]()
        for task, played in self.plays.items():
            idle = [step.observation for name in IDLE for play in played[name] for step in play.steps]
            told[task] = set(re.findall(attacks.WORD, " ".join(idle)))
            for play in played.get("demonstration", ()):
                if play.paid is not None:
                    words = re.findall(attacks.WORD, str(play.actions[play.paid]))
                    secrets[task] = set(words) - set(re.findall(attacks.WORD, play.prompt))
        common = Counter(word for words in (*told.values(), *secrets.values()) for word in words)
        secret = {task: {word for word in words if common[word] <= len(told) / 2} for task, words in secrets.items()}
        secret = {task: words for task, words in secret.items() if words}
        leaked = [task for task, words in secret.items() if words <= told[task]]
        if len(leaked) > max(1, len(secret) / 2):
            text = f"idle policies are told the action that solves {len(leaked)} of {len(secret)} tasks"
            self.report.find("answer told", f"{text}, such as {leaked[0]!r}")
