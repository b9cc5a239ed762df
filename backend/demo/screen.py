"""What the demonstration says: lines that stay, and on a terminal one line that moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backend.demo.service import ALPHA, BLIND, LABELS_TO_REFIT
from backend.demo.state import DemoState
from backend.learning.schedule import FIRST

# Points are separated by blank lines; within one, lines are joined.
_POINTS = """
Click a task in the list ({predicted} have predictions). The best labeling is filled in; a span in
[black on dark_orange]amber[/] needs a look; the rest may be left alone.

The tabs above the text are the other labelings of the set, best first. You like one of them better? Open its menu
(three dots), choose Duplicate Annotation, then Submit.

“Label All Tasks” gives tasks out at random. Click a span, press 1 to 4 to set its class. About one task in four is
blank on purpose: label it from scratch, because such labels are the clean evidence (tab “Blind audit”).

After {labels} labels the thresholds are fitted on yours: the version after “+cal.” changes, and the tasks still open
get new sets within a minute. Until then the sets are borrowed from Wikipedia texts and promise nothing. The level here
is alpha = {alpha}.

The page of the project shows whether the sets keep their promise: coverage by language and length, set sizes, evidence,
thresholds. It asks for a name and a password of its own, below.
""".strip().split("\n\n")
_KITCHEN = """
Its labels (Ingredient, Tool, Dish) are known to no model, so tasks come blank. Label about {labels} of them: a model is
trained from {first}, one in four is kept to test it. Some seconds later the open tasks come with your labels filled in.
Or press Start Training earlier: Settings, Model, the menu of the backend.
"""
# How many that is, because blank tasks that were drawn for it are never learnt from.
_TO_LABEL = round(FIRST / (1.0 - float(BLIND)))


class Screen:
    """Rich on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(escape(line), soft_wrap=True)

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show that something is under way; the function given tells how far it is."""
        if not self._console.is_terminal:
            self.say(f"{what} ...")
            yield lambda _: None
            return
        with self._console.status(escape(what)) as status:
            yield lambda how_far: status.update(escape(f"{what}: {how_far}"))

    def connected(self, said: Sequence[str]) -> None:
        """Show what `surespan connect` did, as it said it."""
        for line in said:
            self._console.print(f"  [dim]{escape(line)}[/dim]", soft_wrap=True)

    def ready(self, url: str, state: DemoState, *, backend: str, uid: str, predicted: int, directory: Path) -> None:
        """Say where everything is and what to look at."""
        show = self._console.print
        self._console.rule("Surespan demo", style="dark_orange")
        show(f"Open    [bold]{url}/projects/{state.project}/data[/bold]", soft_wrap=True)
        show(f"Log in  [bold]{state.username}[/bold]   password [bold]{escape(state.password)}[/bold]")
        show("\n[bold]What to look at[/bold]")
        table = Table.grid(padding=(0, 1))
        for number, point in enumerate(_POINTS, 1):
            words = point.format(predicted=predicted, labels=LABELS_TO_REFIT, alpha=ALPHA)
            table.add_row(f"{number}.", " ".join(words.split()))
        show(table)
        show("\n[bold]Labels of your own[/bold]")
        show(f"Open    [bold]{url}/projects/{state.kitchen}/data[/bold]", soft_wrap=True)
        show(" ".join(_KITCHEN.format(labels=_TO_LABEL, first=FIRST).split()))
        show(f"\nPage    [bold]{backend}/dashboard/projects/{uid}[/bold]", soft_wrap=True)
        show(f"        name [bold]{state.service_user}[/bold]   password [bold]{escape(state.service_password)}[/bold]")
        show(
            f"\n[dim]Backend {backend}; databases, logs and passwords are in {escape(str(directory))}; "
            "--reset starts afresh.[/dim]"
        )
        if self._console.is_terminal:
            show("[bold]Ctrl-C stops everything.[/bold]")
