"""Cells, and the pooled partition as a symmetric function of counts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, UnknownStratum
from conformal.strata import EMPTY, SEEN, Strata

LAYOUTS = [
    Strata(),
    Strata(lengths=(5, 9)),
    Strata(by_language=False),
    Strata(lengths=()),
    Strata(by_language=False, lengths=()),
    Strata(lengths=(10,), entities=(0, 1, 3)),
]


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Strata, list[str], int]:
    strata = draw(st.sampled_from(LAYOUTS))
    cell = st.builds(
        lambda language, length, entities, seen: strata.cell(
            language=language, length=length, entities=entities, seen=seen
        ),
        st.sampled_from(["de", "en", "fr", "ru"]),
        st.sampled_from([0, 1, 7, 12, 25, 38, 60]),
        st.integers(0, 5),
        st.booleans() if draw(st.booleans()) else st.just(False),
    )
    return strata, draw(st.lists(cell, min_size=1, max_size=40)), draw(st.integers(1, 15))


@given(tasks())
def test_pools_are_a_partition_and_the_same_whichever_task_is_the_test(case: tuple[Strata, list[str], int]) -> None:
    strata, cells, n_min = case
    whole = strata.partition(Counter(cells), n_min=n_min)
    held = [cell for pool in whole for cell in pool.cells]
    assert sorted(held) == sorted(set(cells))  # each cell in exactly one pool
    home = {cell: pool for pool in whole for cell in pool.cells}
    for test, cell in enumerate(cells):
        others = Counter(cells[:test] + cells[test + 1 :])
        assert strata.pool_of(cell, others, n_min=n_min) == home[cell]
    for pool in whole:
        assert pool.count == sum(Counter(cells)[cell] for cell in pool.cells)
        assert pool.calibrated == (pool.count >= n_min)
        if pool.cells[0] in (EMPTY, SEEN):
            assert len(pool.cells) == 1


@given(tasks())
def test_large_cells_stand_alone_and_at_most_one_shared_pool_is_too_small(case: tuple[Strata, list[str], int]) -> None:
    strata, cells, n_min = case
    counts = Counter(cells)
    pools = strata.partition(counts, n_min=n_min)
    for pool in pools:
        for cell in pool.cells:
            if counts[cell] >= n_min:
                assert pool.cells == (cell,)
    assert sum(not pool.calibrated for pool in pools if pool.name not in (EMPTY, SEEN)) <= 1


def test_fallback_goes_by_language_then_length_then_all() -> None:
    strata = Strata(lengths=(10,))
    counts = {"de/1-10": 120, "de/11+": 60, "en/1-10": 70, "en/11+": 80, "fr/1-10": 40, "pl/1-10": 70, "pl/11+": 5}
    pools = {cell: strata.pool_of(cell, counts, n_min=100) for cell in counts}
    assert pools["de/1-10"].name == "de/1-10"
    assert pools["en/11+"].name == "en/*"
    assert set(pools["en/11+"].cells) == {"en/1-10", "en/11+"}
    assert pools["en/11+"].n == 150
    assert pools["fr/1-10"].name == "*/1-10"
    assert set(pools["fr/1-10"].cells) == {"fr/1-10", "pl/1-10"}
    assert (pools["de/11+"].name, pools["de/11+"].calibrated) == ("*/*", False)  # 60 + 5 + the test task
    new = strata.pool_of("sv/11+", counts, n_min=60)
    assert (new.name, new.cells, new.calibrated) == ("*/*", ("fr/1-10", "pl/11+", "sv/11+"), False)
    assert strata.pools(counts, n_min=100)["de/1-10"].n == 120


def test_the_test_task_can_make_its_own_cell_stand_alone() -> None:
    strata = Strata(lengths=(10,))
    counts = {"en/1-10": 99, "en/11+": 50}
    assert strata.pool_of("en/1-10", counts, n_min=100).name == "en/1-10"
    assert strata.pool_of("en/11+", counts, n_min=100).name == "en/*"
    assert set(strata.pool_of("en/11+", counts, n_min=100).cells) == {"en/1-10", "en/11+"}


def test_cells_have_readable_names() -> None:
    strata = Strata(entities=(0, 2))
    assert strata.length_bins == ("1-10", "11-20", "21-30", "31-40", "41+")
    assert strata.entity_bins == ("e0", "e1-2", "e3+")
    assert strata.cell(language="en", length=10, entities=0) == "en/1-10/e0"
    assert strata.cell(language="en", length=41, entities=7) == "en/41+/e3+"
    assert strata.cell(language="en", length=3, entities=1, seen=True) == SEEN
    assert strata.cell(language="en", length=0, entities=0, seen=True) == EMPTY
    assert Strata(by_language=False, lengths=()).cell(length=9) == "all"
    assert Strata(lengths=(1, 2)).length_bins == ("1", "2", "3+")


@pytest.mark.parametrize("bad", ["en", "en/12-20", "en/1-10/e1", "/1-10", "*/1-10", "", "all"])
def test_unknown_strata_are_refused(bad: str) -> None:
    with pytest.raises(UnknownStratum, match="expected a stratum such as 'en/11-20'"):
        Strata().pool_of(bad, {}, n_min=10)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="language"):
        Strata().cell(length=3)
    with pytest.raises(InvalidArgument, match="language"):
        Strata().cell(length=3, language="a/b")
    with pytest.raises(InvalidArgument, match="length"):
        Strata().cell(length=-1, language="en")
    with pytest.raises(InvalidArgument, match="entities"):
        Strata(entities=(1,)).cell(length=3, language="en")
    with pytest.raises(InvalidArgument, match="bin ends"):
        Strata(lengths=(20, 10))
    with pytest.raises(InvalidArgument, match="n_min"):
        Strata().partition({}, n_min=0)
