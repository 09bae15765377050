"""The CPU as one more device for verl: nothing in here is active where an accelerator is found."""
