"""Batches: the same bits whatever the thread count and order; forked children; read-only installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from conformal import (
    Chain,
    InvalidPotentials,
    Potentials,
    entity_marginals,
    enumerate_above,
    kbest,
    log_partition,
    log_probability,
    rank_of,
    token_marginals,
)
from tests.support import oracles
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def batch() -> list[Potentials]:
    space, transitions, start, end = oracles.random_chain(3, 4)
    chain = Chain(transitions=transitions, start=start, end=end)
    rng = np.random.default_rng(5)
    return [chain.potentials(rng.normal(size=(n, len(space)))) for n in rng.integers(0, 40, size=57)]


def bits(results: list) -> list[tuple[bytes, ...]]:
    return [
        (r.labels.tobytes(), r.scores.tobytes(), r.log_probabilities.tobytes(), r.spans.starts.tobytes())
        for r in results
    ]


def test_threads_and_order_change_no_bit(batch: list[Potentials]) -> None:
    space = oracles.random_chain(3, 4)[0]
    one = kbest(batch, 20, space=space, threads=1)
    expected = bits(one)
    for threads in (2, 3, 8):
        assert bits(kbest(batch, 20, space=space, threads=threads)) == expected
    order = np.random.default_rng(0).permutation(len(batch)).tolist()
    shuffled = bits(kbest([batch[i] for i in order], 20, space=space, threads=2))
    assert [shuffled[order.index(i)] for i in range(len(batch))] == expected
    assert bits([kbest(p, 20, space=space) for p in batch]) == expected


def test_every_function_takes_a_batch(batch: list[Potentials]) -> None:
    space = oracles.random_chain(3, 4)[0]
    best = [result.labels[0] for result in kbest(batch, 1)]
    assert log_partition(batch, threads=2) == [log_partition(p) for p in batch]
    assert log_probability(batch, best, threads=2) == [log_probability(p, y) for p, y in zip(batch, best, strict=True)]
    assert rank_of(batch, best, 10, threads=2) == [1] * len(batch)
    for many, p in zip(entity_marginals(batch, space, threads=2), batch, strict=True):
        np.testing.assert_array_equal(many.probabilities, entity_marginals(p, space).probabilities)
    for many, p in zip(token_marginals(batch, threads=2), batch, strict=True):
        np.testing.assert_array_equal(many, token_marginals(p))
    for many, p in zip(enumerate_above(batch, 0.001, threads=2), batch, strict=True):
        assert [lp for _, lp in many] == [lp for _, lp in enumerate_above(p, 0.001)]


def test_an_empty_batch_is_an_empty_list() -> None:
    assert kbest([], 3) == []


def test_a_batch_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidPotentials, match="got str at 1"):
        kbest([Potentials(emissions=[[0.0]], transitions=[[0]], start=[0], end=[0]), "text"], 1)  # type: ignore[list-item]
    with pytest.raises(InvalidPotentials, match="got ndarray"):
        log_partition(np.zeros((3, 2)))  # type: ignore[call-overload]


DECODE = textwrap.dedent(
    """
    import numpy as np, conformal
    p = conformal.Potentials(emissions=np.zeros((3, 2)), transitions=np.zeros((2, 2)), start=[0, 0], end=[0, 0])
    batch = [p] * 40
    assert [r.count for r in conformal.kbest(batch, 8, threads=2)] == [8] * 40
    """
)
SCORE = textwrap.dedent(
    """
    import numpy as np, conformal
    p = conformal.Potentials(emissions=np.zeros((3, 2)), transitions=np.zeros((2, 2)), start=[0, 0], end=[0, 0])
    assert conformal.log_probability(p, [0, 1, 0]) < 0
    """
)


def test_a_forked_child_decodes_in_threads() -> None:
    script = DECODE + textwrap.dedent(
        """
        import os
        child = os.fork()
        if child == 0:
            ok = [r.count for r in conformal.kbest(batch, 8, threads=2)] == [8] * 40
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, cwd=ROOT, timeout=300)


@pytest.mark.heavy
def test_a_read_only_install_without_home_works(tmp_path: Path) -> None:
    """Compiled kernels go to a private temporary directory when neither the package nor a home is writable."""
    install = tmp_path / "install"
    shutil.copytree(ROOT / "conformal", install / "conformal", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [path for path in install.rglob("*") if path.is_dir()]:
        (folder / "__pycache__").touch()  # a file in its place: not even root can cache there
        folder.chmod(0o555)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # One kernel shows it: to compile all of them takes half a minute.
    script = f"import conformal\nassert conformal.__file__.startswith({str(install)!r}), conformal.__file__\n{SCORE}"
    environment = {"HOME": os.devnull, "PATH": os.environ["PATH"], "PYTHONPATH": str(install), "TMPDIR": str(scratch)}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=scratch, check=True, timeout=600)
    cached = list(scratch.glob("surespan-kernels-*"))
    assert len(cached) == 1
    assert cached[0].stat().st_mode & 0o077 == 0  # nobody else may place code there
    assert list(cached[0].rglob("*.nbi"))
    before = {path: path.stat().st_mtime_ns for path in cached[0].rglob("*.nbc")}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=scratch, check=True, timeout=600)
    assert {path: path.stat().st_mtime_ns for path in cached[0].rglob("*.nbc")} == before  # used again, not made again
