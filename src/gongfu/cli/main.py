"""The `gongfu` command. Heavy packages are imported by the commands that need them, so `gongfu --help` is quick."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gongfu import __version__
from gongfu.cli import bank
from gongfu.cli.show import console, fail
from gongfu.core.errors import GongfuError

app = typer.Typer(
    help="Train a language-model agent together with the bank of skills it writes for itself.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models = typer.Typer(help="Model sources.", no_args_is_help=True)
app.add_typer(models, name="models")
app.add_typer(bank.app, name="bank")

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}


class Showing(StrEnum):
    """What becomes of the skills of a checkpoint when it is evaluated."""

    WITH = "with"
    WITHOUT = "without"
    BOTH = "both"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command(context_settings=SETTINGS)
def check(context: typer.Context) -> None:
    """Validate a recipe without loading a model, and print it resolved: gongfu check recipe.toml [--a.b value ...]"""
    from gongfu.cli.recipe import load_recipe
    from gongfu.config.load import to_toml
    from gongfu.run.preflight import check_sources, preflight

    recipe = load_recipe(context.args).config
    print(to_toml(recipe), end="", flush=True)
    check_sources(recipe)
    for line in preflight(recipe):
        console.print(line)
    console.print("[green]ok[/green]: nothing is wrong with this recipe")


@app.command(context_settings=SETTINGS)
def play(
    context: typer.Context,
    split: Annotated[str, typer.Option(help="Split of the suite; default: the recipe's eval.split.")] = "",
    task: Annotated[str, typer.Option(help="Id of the task, of any split; default: the first of the split.")] = "",
    expert: Annotated[bool, typer.Option("--expert", help="Let the suite's scripted expert act.")] = False,
    conform: Annotated[bool, typer.Option("--check", help="Play nothing, check that the suite keeps the protocol.")] = False,
) -> None:
    """Look at a suite without a model: gongfu play [recipe.toml] [--a.b value ...]. Type numbers, actions as text, or q.

    Standard input may also be a file of actions, one a line.
    """
    from gongfu.cli.recipe import load_recipe
    from gongfu.run.play import check_suite
    from gongfu.run.play import play as play_task

    recipe = load_recipe(context.args).config
    if not conform:
        play_task(recipe, split=split, task_id=task, expert=expert)
        return
    if task or expert:
        fail("--check goes through the tasks of all splits (or of --split), by the expert too: leave out --task and --expert")
    report = check_suite(recipe, split=split)
    print(report)
    raise typer.Exit(0 if report.ok else 1)


@app.command(context_settings=SETTINGS)
def train(
    context: typer.Context,
    resume: Annotated[Path | None, typer.Option(help="Continue this run folder from its newest good checkpoint.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check and print the resolved recipe, then stop.")] = False,
) -> None:
    """Train by a recipe: gongfu train recipe.toml [--a.b value ...]. Ctrl-C checkpoints and stops; twice stops at once.

    Settings are those that `gongfu check recipe.toml` prints, by their dotted names; later ones win.
    """
    if dry_run:
        check(context)
        return
    from gongfu.run.report import summarize
    from gongfu.run.train import resume_run, train_run

    if resume is not None:
        if context.args:
            fail(f"--resume continues a run with its own recipe; these settings would be ignored: {' '.join(context.args)}")
        report = resume_run(resume)
    else:
        from gongfu.cli.recipe import load_recipe

        if not context.args:
            fail("give a recipe (gongfu train @recipes/grpo/household-nano.toml) or at least one setting; --help says more")
        report = train_run(load_recipe(context.args).config)
    for line in summarize(report.parent.parent):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(report)


@app.command(context_settings=SETTINGS)
def sft(context: typer.Context) -> None:
    """Cold start: imitate the suite's scripted expert (or recorded transcripts). Train from it with --run.start-from FOLDER."""
    from gongfu.cli.recipe import load_recipe
    from gongfu.run.sft import sft_run

    print(sft_run(load_recipe(context.args).config))


@app.command(context_settings=SETTINGS)
def pretrain(context: typer.Context) -> None:
    """Train the nano model from scratch on the suite's own transcripts."""
    from gongfu.cli.recipe import load_recipe
    from gongfu.run.nano import pretrain_run

    recipe = load_recipe(context.args).config

    def report(step: int, metrics: dict[str, float]) -> None:
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        console.print(f"step {step}/{recipe.pretrain.steps}  {numbers}", highlight=False)

    print(pretrain_run(recipe, report=report))


@app.command("eval")
def evaluate(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders or checkpoints (runs/a, runs/a@120, runs/a@best, runs/a@start).")
    ],
    split: Annotated[str, typer.Option(help="Split of the suite; default: the recipe's eval.split.")] = "",
    tasks: Annotated[int, typer.Option("-n", "--tasks", min=0, help="First n tasks of the split; 0: the recipe's.")] = 0,
    rollouts: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy; default: the recipe's.")] = None,
    skills: Annotated[
        Showing, typer.Option(help="Play with the skills of the run's bank, without them, or both.")
    ] = Showing.BOTH,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Success on a fixed list of tasks, with intervals; several checkpoints are compared task by task (paired)."""
    from gongfu.run.evaluate import evaluate_runs, show_evaluation

    result = evaluate_runs(
        runs,
        split=split or None,
        tasks=tasks or None,
        rollouts=rollouts,
        temperature=temperature,
        skills=skills.value,
    )
    show_evaluation(result, as_json=as_json)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs: step, success, when."""
    from gongfu.cli.show import show_runs

    show_runs(folder, as_json=as_json)


@app.command()
def doctor() -> None:
    """What this machine can run: Python, packages, devices, models, disk."""
    from gongfu.cli.doctor import examine

    raise typer.Exit(examine())


@models.command("fetch")
def models_fetch(name: Annotated[str, typer.Argument(help='"smollm2".')]) -> None:
    """Download, check and convert a model into the cache."""
    from gongfu.engine.models import fetch_smollm2

    if name != "smollm2":
        fail(f'there is nothing to fetch for {name!r}; "smollm2" can be fetched, "nano" and "nano-webshop" are in the package')
    print(fetch_smollm2(progress=lambda text: console.print(text)))


@models.command("list")
def models_list() -> None:
    """Known models and where they lie."""
    from gongfu.cli.show import show_models

    show_models()


def main() -> None:
    """Entry point: errors that gongfu raises on purpose are one clear message, not a traceback."""
    try:
        app()
    except GongfuError as e:
        fail(str(e), code=3 if isinstance(e, ImportError) else 2 if isinstance(e, ValueError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
