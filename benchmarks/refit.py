"""Refit: from stored calibration rows to a new active threshold version, on SQLite and PostgreSQL.

Prints the seconds of a whole refit (read, fit, compare, write, activate) at 10^4, 10^5 and 10^6 rows in 45 strata with
two entity rows and an error for every tenth task, and how they grow; at the largest size also with flags that control
risk, as they do by default. The aim is 2 s at 10^6. `--rows` limits the largest size, `--only` picks a database,
`--units` gives every task so many rows (documents).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from _claims import claim
from store import STRATA, database, fill, timed

from backend.calibration.refit import refit
from backend.domain.flag_rule import RiskRule
from backend.store import Store
from backend.store.projects import ensure_model, ensure_project
from backend.store.schema import upgrade
from conformal.strata import Strata

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru")


RULE = RiskRule(max_error="0.05", sure=False)


def main() -> None:
    """Run on each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="largest number of calibration rows")
    parser.add_argument("--only", choices=["sqlite", "postgresql"], help="one database only")
    parser.add_argument("--units", type=int, default=1, help="rows of each task")
    options = parser.parse_args()
    for kind in ("sqlite", "postgresql"):
        if options.only in {None, kind}:
            with database(kind) as url, Store(url) as store:
                upgrade(store)
                bench(kind, store, options.rows, options.units)


def bench(kind: str, store: Store, largest: int, units: int) -> None:
    """Grow the calibration table and refit at each size."""
    with store.write() as session:
        project = ensure_project(session, "1.1")
        model = ensure_model(session, "m", "0" * 64, classes=["PER"])
    have, earlier = 0, None
    for size in (10_000, 100_000, 1_000_000):
        if size > largest:
            break
        fill(store, project.id, model.id, have, size, units=units)
        name_strata(store)
        add_entities(store, have, size)
        add_errors(store, have, size)
        have = size
        refit(store, project, model=model, alpha="0.05")  # the first one compares with nothing
        touch(store)
        began = time.process_time()
        seconds = timed(lambda: refit(store, project, model=model, alpha="0.05"))
        processor = time.process_time() - began
        growth = "" if earlier is None else f", x{seconds / earlier:.1f} for 10 times the rows"
        print(
            f"{kind}: {size:>9,} rows: refit in {seconds:.2f} s ({processor:.2f} s of this process's processor time)"
            f"{growth}"
        )
        if earlier is not None:
            claim(f"refit of {size:,} rows, {kind}", peer="a tenth of the rows", ratio=seconds / earlier, at_most=12)
        if size == 1_000_000:
            claim(f"refit of {size:,} rows, {kind}", peer="two seconds", ratio=seconds / 2, at_most=1)
        earlier = seconds
    touch(store)
    began = time.process_time()
    seconds = timed(lambda: refit(store, project, model=model, alpha="0.05", flags=RULE))
    processor = time.process_time() - began
    print(
        f"{kind}: {have:>9,} rows: refit with levels of flags in {seconds:.2f} s ({processor:.2f} s of processor time)"
    )


def name_strata(store: Store) -> None:
    """Give the benchmark's cells names that strata can have."""
    bins = Strata().length_bins
    names = [f"{language}/{length}" for language in LANGUAGES for length in bins]
    mark = "?" if store.is_sqlite else "%s"
    with store.write() as session:
        cursor = session.connection().connection.cursor()
        cursor.executemany(
            f"UPDATE calibration_cells SET stratum = {mark} WHERE id = {mark}",  # noqa: S608 - a placeholder
            [(names[i], i + 1) for i in range(STRATA)],
        )


def add_entities(store: Store, first: int, last: int) -> None:
    """Give every tenth row a true entity and a candidate that is none."""
    rng = np.random.default_rng(first)
    mark = "?" if store.is_sqlite else "%s"
    rows = []
    for score in range(first + 1, last + 1, 10):
        p, q = rng.random(2).tolist()
        rows += [(score, 0, 3, "PER", p, p, 1.0, 1.0), (score, 5, 9, "O", q, q, 1.0, 1.0)]
    with store.write() as session:
        cursor = session.connection().connection.cursor()
        cursor.executemany(f"INSERT INTO entity_scores VALUES ({', '.join([mark] * 8)})", rows)  # noqa: S608


def add_errors(store: Store, first: int, last: int) -> None:
    """Give every task two true spans, and every tenth an error."""
    rng = np.random.default_rng(first)
    mark = "?" if store.is_sqlite else "%s"
    rows = [
        (score, 0, number % 2 == 0, level)
        for number, (score, level) in enumerate(
            zip(range(first + 1, last + 1, 10), rng.random(last - first).tolist(), strict=False)
        )
    ]
    with store.write() as session:
        cursor = session.connection().connection.cursor()
        cursor.execute(
            "UPDATE calibration_scores SET true_spans = 2, best_spans = 2 "  # noqa: S608 - numbers
            f"WHERE unit = 0 AND id > {first} AND id <= {last}"
        )
        firsts = "SELECT 1 FROM calibration_scores WHERE id = {0} AND unit = 0"
        cursor.executemany(
            f"INSERT INTO span_errors SELECT {', '.join([mark] * 4)} WHERE EXISTS ({firsts.format(mark)})",
            [(*row, row[0]) for row in rows],
        )


def touch(store: Store) -> None:
    """Change one score, so that the next refit makes a new version."""
    with store.write() as session:
        cursor = session.connection().connection.cursor()
        cursor.execute("UPDATE calibration_scores SET nll = nll + 0.001 WHERE id = 1")


if __name__ == "__main__":
    main()
