"""Questions to a recorded turn: other replies at the same place, and the effect of another action."""
