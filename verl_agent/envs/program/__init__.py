"""Programs that run their own agent loop against an OpenAI-compatible endpoint."""
