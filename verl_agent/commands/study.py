"""Commands of studies: `verl-agent study plan`, `run` and `report`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line

app = typer.Typer(help="Answer a question by runs of several arms and seeds, from a file.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="YAML file of a study, such as recipes/studies/horizon_textcraft.yaml.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the study. Default: runs/studies/ and the name of the file.")]


@app.command("plan")
def plan_study(file: File) -> None:
    """Check a study, and show its arms with what they change, and its runs."""
    from verl_agent.study.plan import make_plan

    for line in make_plan(file).describe():
        print_line(line)


@app.command("run")
def start_study(
    file: File,
    out: Out = None,
    jobs: Annotated[int, typer.Option(help="Concurrent runs, an equal share of the cores each.", min=1)] = 1,
    new_code: Annotated[bool, typer.Option("--new-code", help="Continue although the code has changed.")] = False,
) -> None:
    """Play the missing runs of a study, and write its report."""
    from verl_agent.study.execution import Execution
    from verl_agent.study.plan import make_plan

    os.environ.setdefault("VERL_PLATFORM", "cpu")
    try:
        Execution(make_plan(file), _folder(file, out), jobs, print_line).run(new_code)
    except KeyboardInterrupt:
        print_line("Interrupted. The same command goes on from the last evaluation of each run.")
        raise
    except OSError as error:
        fail(f"the study stopped: {error}. Repair {_folder(file, out)} or free space; the next start resumes.")
    report_study(file, out)


@app.command("report")
def report_study(file: File, out: Out = None) -> None:
    """Write the report of the runs that have ended."""
    from verl_agent.study.plan import make_plan
    from verl_agent.study.report import write_study_report

    try:
        paths, answers = write_study_report(make_plan(file), _folder(file, out))
        for line in (*(f"wrote {path}" for path in paths), *answers):
            print_line(line)
    except OSError as error:
        fail(
            f"the report cannot be written: {error}. Repair {_folder(file, out)} or free space, and repeat the command."
        )


def _folder(file: Path, out: Path | None) -> Path:
    return (out or Path("runs/studies") / file.stem).resolve()
