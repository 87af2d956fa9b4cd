"""What the commands print for people. Data goes to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.table import Table

console = Console(stderr=True)


def fail(message: str, *, code: int = 2) -> NoReturn:
    """Print an error and exit: 1 failed, 2 usage or configuration, 3 missing optional dependency."""
    console.print("[red]error[/red]: ", end="")
    console.print(message, markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def show_runs(folder: Path, *, as_json: bool) -> None:
    from gongfu.run.listing import list_runs

    found = list_runs(folder)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    columns = ["run", "method", "suite", "model", "step", "train", "held-out", "last written"]
    if any(run["skills"] for run in found):
        columns.insert(-1, "skills")
    print_table(f"Runs in {folder}", columns, [[str(run[c]) for c in columns] for run in found])


def show_models() -> None:
    from gongfu.core.errors import ModelError
    from gongfu.engine.models import known_models, resolve_model

    for name in known_models():
        try:
            print(f"{name}\t{resolve_model(name)}")
        except ModelError as e:
            print(f"{name}\t({e})")
