"""What one client may ask of a server: bodies, texts, sessions, idle time. Checked when the server starts."""

from dataclasses import dataclass, fields

from verl_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server, each > 0.

    Attributes:
        sessions: open at once; a further one is refused until one closes.
        body_bytes: of one request.
        action_chars: of one action.
        idle_s: seconds after which a session that nobody calls is forgotten and closed.
        drain_s: seconds that running episodes have to end after SIGTERM.
    """

    sessions: int = 1024
    body_bytes: int = 8 * 2**20
    action_chars: int = 2**20
    idle_s: float = 1800.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(f"the limit {field.name} must be > 0, got {getattr(self, field.name)}.")
