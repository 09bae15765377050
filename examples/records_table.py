"""Read the records of a run into a table: python examples/records_table.py runs/textcraft_quickstart."""

import sys

import pandas

import verl_agent as va


def main(run: str) -> None:
    """Print success and turns by training step, and the results by category."""
    records = list(va.read_records(run))
    table = pandas.DataFrame(
        [{"step": r["step"], "success": r["success"], "turns": len(r["turns"]), "stop": r["stop"]} for r in records]
    )
    print(table.groupby("step")[["success", "turns"]].mean().round(2))
    for result in va.summarize(records):
        print(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
