"""SGLang as rollout engine: its kernel packages' stand-ins on a CPU, and verl's server with fixes."""
