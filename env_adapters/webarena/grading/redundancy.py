"""Detection of redundant actions: repeated, without effect, back and forth, or hovering in a loop.

The paper (AgentGym-RL, arXiv 2509.08755) reports over-interaction as a failure of its agents. This module measures it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from env_adapters.webarena.browser.grammar import BrowserAction

MAX_STATES = 64
"""Number of latest states that are compared with a new one."""
OPPOSITES = {("scroll", "up"): ("scroll", "down"), ("scroll", "down"): ("scroll", "up")} | {
    ("go_back", ""): ("go_forward", ""),
    ("go_forward", ""): ("go_back", ""),
}
HOVER_LOOP = 2
"""Consecutive hovers without effect that count as a loop."""


@dataclass(slots=True)
class RedundancyTracker:
    """Measures redundant actions of one episode.

    A state is everything that the model sees of a page: tabs, URL and text.

    Attributes:
        consecutive: number of redundant actions since the last action that was not redundant.
    """

    consecutive: int = 0
    _states: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_STATES))
    _last: BrowserAction | None = None
    _refused: str = ""
    _idle_hovers: int = 0

    def start(self, state: str) -> None:
        """Record the state in which the episode starts."""
        self._states.append(hash(state))

    def record(self, action: BrowserAction, state: str) -> Mapping[str, float]:
        """Record an action that was carried out and the state it led to.

        Returns:
            Metrics with the value 1; a metric that is 0 is left out. `no_effect_action`: the state is unchanged.
            `repeated_action`: the state is unchanged and the action is the previous one. `back_and_forth`: the action
            undoes the previous one. `hover_loop`: several hovers without effect. `revisited_state`: the state occurred
            earlier in the episode. `redundant_action`: any of these except `revisited_state`, because a task may
            require going back.
        """
        current = hash(state)
        metrics = []
        unchanged = bool(self._states) and self._states[-1] == current
        if unchanged:
            metrics.append("no_effect_action")
        elif current in self._states:
            metrics.append("revisited_state")
        if unchanged and action == self._last:
            metrics.append("repeated_action")
        undoes_last = self._last is not None and OPPOSITES.get((action.kind, action.text)) == (
            self._last.kind,
            self._last.text,
        )
        if undoes_last and "revisited_state" in metrics:
            metrics.append("back_and_forth")
        self._idle_hovers = self._idle_hovers + 1 if unchanged and action.kind == "hover" else 0
        if self._idle_hovers >= HOVER_LOOP:
            metrics.append("hover_loop")
        redundant = any(name != "revisited_state" for name in metrics)
        self.consecutive = self.consecutive + 1 if redundant else 0
        self._states.append(current)
        self._last, self._refused = action, ""
        return dict.fromkeys([*metrics, "redundant_action"] if redundant else metrics, 1.0)

    def record_refused(self, action: str, state: str) -> Mapping[str, float]:
        """Record an action that was not carried out.

        Returns:
            Metrics as in `record`. The first refused action is not redundant. Another one right after it is, if the
            state is unchanged.
        """
        current, metrics = hash(state), []
        if self._refused and self._states[-1] == current:
            repeated = ["repeated_action"] if action == self._refused else []
            metrics = ["no_effect_action", *repeated, "redundant_action"]
        self.consecutive += bool(metrics)
        self._states.append(current)
        self._refused = action or " "
        return dict.fromkeys(metrics, 1.0)
