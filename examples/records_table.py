"""Read the records of a run into a table: python examples/records_table.py runs/textcraft_quickstart."""

import sys
from collections import defaultdict

import pandas

import verl_agent as va


def main(run: str) -> None:
    """Print success and turns by purpose (such as train and validation), training step and category."""
    groups = defaultdict(list)
    for record in va.read_records(run):
        groups[record["purpose"], record["step"]].append(record)
    rows = [
        {
            "purpose": purpose,
            "step": step,
            "category": result.category,
            "episodes": result.episodes,
            "success": result.success.mean if result.success else None,
            "turns": result.turns_mean,
        }
        for (purpose, step), records in sorted(groups.items())
        for result in va.summarize(records)
    ]
    print(pandas.DataFrame(rows).round(2).to_string(index=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/records_table.py RUN, the folder of a run or of an evaluation")
    try:
        main(sys.argv[1])
    except va.AgentError as error:
        sys.exit(f"error: {error}")
