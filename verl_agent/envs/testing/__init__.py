"""Check of an environment against the contract of `EnvAdapter`; `check.check_adapter` is the entry point."""
