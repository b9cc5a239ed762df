"""How the work of an evaluation grows with the number of sentences, once they are decoded: it should be linear.

    python benchmarks/evaluation.py --cache DIR --data FILE --data FILE ...

Uses the first file, the first three and all of them: processor time of a few pieces at every level over two splits,
and the peak of memory so far. Files are decoded first if the cache does not have them.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import click

from backend.evaluation.run import Plan, _pieces, prepare
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import BUNDLED

PIECES = ("nc1|strata", "logrank+nc1|no strata", "joint+nc1|strata", "integrated+nc1|strata", "spans|nc1",
          "int. nc1, Šidák")  # fmt: skip


@click.command()
@click.option("--data", "files", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--cache", type=click.Path(path_type=Path))
@click.option("--model", default=BUNDLED)
def main(files: tuple[Path, ...], cache: Path | None, model: str) -> None:
    """Print sentences, processor seconds, seconds per 10,000 sentences and the peak of memory."""
    if not files or cache is None:
        click.echo("skipped: no data given; name labelled files with --data and a directory for --cache")
        return
    tagger = load_tagger(model)
    first = 0.0
    for count in sorted({1, min(3, len(files)), len(files)}):
        study, _ = prepare(tagger, files[:count], cache=cache)
        begun = time.process_time()
        pieces = _pieces(study, Plan(splits=2))
        for name in PIECES:
            pieces[name]()
        took = time.process_time() - begun
        each = took / len(study.decoded) * 10_000
        first = first or each
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        click.echo(
            f"{len(study.decoded):7,} sentences: {took:6.1f} s of processor, {each:.2f} s per 10,000 "
            f"(x {each / first:.2f}), peak {peak:.2f} GB"
        )


if __name__ == "__main__":
    main()
