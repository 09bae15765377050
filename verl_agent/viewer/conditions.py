"""Conditions and expressions in SQL on the episodes of an index."""

from verl_agent.returns import ROUNDING, TOLERANCE
from verl_agent.types import StopReason

LAST_ATTEMPT = "NOT retried AND NOT replaced"
"""Condition that an episode is the last attempt of its sample, and was not played again after a resume."""
INVALID = tuple(reason for reason in StopReason if not reason.valid)
VALID = f"NOT operated AND stop NOT IN ({', '.join(map(repr, map(str, INVALID)))})"
"""Condition that an episode measures the policy alone, as in reports: no person intervened."""
GROUP_FIELDS = ("purpose", "step", "group", "env", "model")
"""Columns that identify a group."""
GROUP = ", ".join(f'"{name}"' for name in GROUP_FIELDS)
_RETURN = "coalesce(shaped_return, reward)"
SPREAD = f"max({_RETURN}) - min({_RETURN})"
"""Highest minus lowest return that the update uses, of a group."""
EQUAL = f"{SPREAD} <= max({TOLERANCE}, {ROUNDING} * max(abs(max({_RETURN})), abs(min({_RETURN}))))"
"""`verl_agent.returns.is_uniform` of a group."""
NEEDS = "SELECT env, task, coalesce(min(oracle_turns), min(shortest)) AS need FROM task_sums GROUP BY env, task"
"""Query for the turns that each task needs: of the oracle, or of the shortest solved episode."""
