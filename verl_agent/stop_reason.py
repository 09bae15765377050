"""Reasons for which an episode ends."""

from enum import StrEnum


class StopReason(StrEnum):
    """Reason for which an episode ended. Each one is a metric, `stop/<value>`."""

    TERMINATED = "terminated"
    """The environment ended the task."""
    TURN_LIMIT = "turn_limit"
    """The episode reached its turn limit."""
    TURN_TOKENS = "turn_tokens"
    """One reply reached the token budget of a turn."""
    EPISODE_TOKENS = "episode_tokens"
    """Replies and observations together reached the token budget of the episode."""
    ENV_ERROR = "env_error"
    """A call into the environment failed or timed out. The episode is recorded and not trained on."""
    ACTION_ERROR = "action_error"
    """The last action makes the environment fail in every fresh session. It counts as a failure of the policy."""
    OVERLONG_PROMPT = "overlong_prompt"
    """The prompt exceeds `data.max_prompt_length`: no turn was played. It is recorded and not trained on."""
    REQUEST_REFUSED = "request_refused"
    """The server of a model behind an API refused the request of a turn twice, such as a content filter."""
    CANCELLED = "cancelled"
    """The run was stopped during the episode."""
    OPERATOR = "operator"
    """A person ended the episode. It is recorded, and neither counted nor trained on."""

    UNRATED = "unrated"
    """An imported episode, whose source states no reward. It is neither counted nor trained on."""

    @property
    def is_limit(self) -> bool:
        """True if a limit on turns or tokens ended the episode, and not the task."""
        return self in (StopReason.TURN_LIMIT, StopReason.TURN_TOKENS, StopReason.EPISODE_TOKENS)

    @property
    def valid(self) -> bool:
        """True if an episode that ended for this reason measures the policy and may be trained on."""
        return self.is_limit or self in (StopReason.TERMINATED, StopReason.ACTION_ERROR)
