"""BabyAI with the rules of AgentGym's server, including its faults: only for comparable figures."""

from collections.abc import Sequence
from dataclasses import replace

from env_adapters.babyai.commands import CHECK, Grammar, Offer, Way
from env_adapters.babyai.game import MAX_COMMAND, GridGame
from env_adapters.babyai.paths import Paths
from env_adapters.babyai.sight import DEPTH, SIDE, FieldOfView, Seen
from env_adapters.babyai.texts import Style
from env_adapters.babyai.world import LevelGrid, Move
from verl_agent.types import StepResult


class StrictGrammar(Grammar):
    """Commands that AgentGym lists, including ones that cannot be executed."""

    def paths(self, sight: FieldOfView) -> Paths:
        """Return the paths through cells that are not visibly blocked; unseen cells and closed doors count as free."""
        behind = -1 if sight.direction in (0, 1) else 0  # ranges of AgentGym's search that count down
        right = SIDE + 1 if sight.direction in (1, 2) else SIDE  # have one cell too many
        blocked = {cell for cell, thing in sight.cells.items() if thing is not None and thing.type != "door"}
        board = {(ahead, side) for ahead in range(behind, DEPTH) for side in range(-SIDE, right + 1)}
        return Paths(board - blocked)

    def can_step(self, sight: FieldOfView) -> bool:
        """Return True unless a wall or a box is in front; balls, keys and closed doors do not count."""
        return sight.front is None or sight.front.type not in ("wall", "box")

    def can_drop(self, sight: FieldOfView) -> bool:
        """Return True if the cell in front is empty or a door."""
        return sight.front is None or sight.front.type == "door"

    def labels(self, things: Sequence[Seen], ways: Sequence[Way]) -> list[str]:
        """Return names whose numbers skip unreachable objects."""
        counts: dict[str, int] = {}
        labels = []
        for seen, way in zip(things, ways, strict=True):
            labels.append(f"{seen.name} {counts.get(seen.name, 0) + 1}")
            if way is not None:
                counts[seen.name] = counts.get(seen.name, 0) + 1
        return labels

    def offer_pickup(self, offer: Offer, sight: FieldOfView, label: str, way: Way) -> None:
        """Add `pickup` with empty hands; full hands give no refusal."""
        if sight.carried is None:
            offer.add(f"pickup {label}", way, Move.PICKUP)

    def offer_box(self, offer: Offer, sight: FieldOfView) -> None:
        """Add nothing: boxes cannot be opened."""

    def can_toggle(self, seen: Seen) -> bool:
        """Return True for a closed door: open doors cannot be closed."""
        return not seen.thing.is_open


class StrictGame(GridGame):
    """Game that repeats the last reward at every command and ends only on a reward above 0.5."""

    grammar = StrictGrammar()
    reward = 0.0

    def __init__(self, world: LevelGrid, style: Style) -> None:
        """Start with the view from before the agent takes the thing that it carries at the start."""
        carried = world.carried
        if carried is not None:
            world.put(carried.init_pos, carried)
        super().__init__(world, style)
        if carried is not None:
            world.put(carried.init_pos, None)

    def update_view(self) -> None:
        """Update the field of view, the available commands and the image with which the next one is compared."""
        super().update_view()
        self.picture = self.world.picture()

    def opening(self) -> str:
        """Return the mission without the words for the order of its parts, and the first observation."""
        mission = self.world.mission.replace("then", "and").replace("after you", "and")
        return self.style.goal(mission) + self.observation()

    @staticmethod
    def parse(action: str) -> str:
        """Return the command in lower case; any text with `check` asks for the list."""
        command = action[:MAX_COMMAND].lower()
        return CHECK if "check" in command else command

    def answer(self, text: str, measure: str = "") -> StepResult:
        """Return the answer with the reward of the last move."""
        return replace(super().answer(text, measure), reward=self.reward)

    def execute(self, moves: Sequence[Move]) -> StepResult:
        """Execute all moves until one does not change the view; the end of the mission does not stop them."""
        picture, over = self.picture, False
        for move in moves:
            self.reward, over = self.world.raw_move(move)
            before, picture = picture, self.world.picture()
            if picture == before:
                break
        self.update_view()
        self.ended = over and self.reward > 0.5
        note = "\n The task is completed." if over else ""
        text = self.style.describe(self.sight) + note + self.style.actions(self.offer)
        return StepResult(text, self.reward, self.ended)
