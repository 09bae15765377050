"""Questions to a recorded turn, counted from 1: other replies there, and the effect of another action."""
