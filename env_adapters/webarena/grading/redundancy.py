"""Notice actions that lead nowhere: repeated, without effect, back and forth, hovering on. Knows texts, not pages.

The paper (AgentGym-RL, arXiv 2509.08755) reports over-interaction as a failure of its agents; here it is measured.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from env_adapters.webarena.browser.grammar import Action

REMEMBERED = 64
"""States that an episode remembers."""
OPPOSITES = {("scroll", "up"): ("scroll", "down"), ("scroll", "down"): ("scroll", "up")} | {
    ("go_back", ""): ("go_forward", ""),
    ("go_forward", ""): ("go_back", ""),
}
HOVERS = 2
"""Hovers in a row without effect that make a loop."""


@dataclass(slots=True)
class Efficiency:
    """Watches the actions of one episode.

    A state is all that the model sees of a page: tabs, address and text.

    Attributes:
        in_a_row: redundant actions since the last that was not.
    """

    in_a_row: int = 0
    _states: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _last: Action | None = None
    _refused: str = ""
    _idle_hovers: int = 0

    def begin(self, state: str) -> None:
        """The episode starts with this state."""
        self._states.append(hash(state))

    def note(self, action: Action, state: str) -> Mapping[str, float]:
        """An action has led to a state.

        Returns:
            Measurements, each only where it is 1: `no_effect_action` (the state is the one before), `repeated_action`
            (so is the action), `back_and_forth` (the action undoes the one before), `hover_loop` (hovering on without
            effect), `revisited_state` (the state was seen earlier in the episode), and `redundant_action` for any but
            the last, since going back may be what the task takes.
        """
        now = hash(state)
        found = []
        same = bool(self._states) and self._states[-1] == now
        if same:
            found.append("no_effect_action")
        elif now in self._states:
            found.append("revisited_state")
        if same and action == self._last:
            found.append("repeated_action")
        undone = self._last is not None and OPPOSITES.get((action.kind, action.text)) == (
            self._last.kind,
            self._last.text,
        )
        if undone and "revisited_state" in found:
            found.append("back_and_forth")
        self._idle_hovers = self._idle_hovers + 1 if same and action.kind == "hover" else 0
        if self._idle_hovers >= HOVERS:
            found.append("hover_loop")
        redundant = any(name != "revisited_state" for name in found)
        self.in_a_row = self.in_a_row + 1 if redundant else 0
        self._states.append(now)
        self._last, self._refused = action, ""
        return dict.fromkeys([*found, "redundant_action"] if redundant else found, 1.0)

    def refuse(self, action: str, state: str) -> Mapping[str, float]:
        """An action was not carried out.

        Args:
            action: as it was written.
            state: what is seen now.

        Returns:
            Measurements as of `note`. One such action may be a slip; another one right after it is redundant, where
            what is seen stays the same.
        """
        now, found = hash(state), []
        if self._refused and self._states[-1] == now:
            found = ["no_effect_action", *(["repeated_action"] if action == self._refused else []), "redundant_action"]
        self.in_a_row += bool(found)
        self._states.append(now)
        self._refused = action or " "
        return dict.fromkeys(found, 1.0)
