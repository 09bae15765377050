"""Published results on the benchmarks of the environments, to show beside own ones."""

from collections.abc import Mapping

SOURCE = "AgentGym-RL, arXiv 2509.08755, main results"
TASKS: Mapping[str, int] = {"webarena": 50, "deepsearch": 400, "textcraft": 100, "babyai": 90, "scienceworld": 200}
"""Number of test tasks of each benchmark in the source."""
_COLUMNS = tuple(TASKS)
_RATES = {
    "GPT-4o": (16.00, 26.75, 83.00, 86.67, 21.00),
    "OpenAI o3": (34.00, 49.50, 93.00, 94.44, 41.50),
    "Gemini-2.5-Pro": (28.00, 36.50, 94.00, 87.77, 12.50),
    "DeepSeek-R1-0528": (28.00, 40.25, 93.00, 93.33, 4.50),
    "Qwen2.5-3B-Instruct": (10.00, 13.50, 14.00, 52.22, 1.00),
    "Qwen2.5-7B-Instruct": (9.76, 18.75, 42.00, 66.67, 1.50),
    "AgentGym-RL-3B": (18.00, 25.75, 75.00, 93.33, 22.50),
    "AgentGym-RL-7B": (22.00, 34.00, 89.00, 92.22, 50.50),
    "ScalingInter-7B": (26.00, 38.25, 91.00, 96.67, 57.00),
}


def published_rates(env: str) -> dict[str, float]:
    """Return the published success rate of each model on an environment, 0 to 1; empty if the source has none."""
    if env not in _COLUMNS:
        return {}
    return {model: round(rates[_COLUMNS.index(env)] / 100, 4) for model, rates in _RATES.items()}
