"""The CPU as a device of verl, and a weight transfer that is separate for every run.

Only the weight transfer is active on a machine with an accelerator.
"""
