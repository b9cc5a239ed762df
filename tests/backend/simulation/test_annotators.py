"""Simulated people: seconds and labels are what their habits and costs say."""

from __future__ import annotations

import numpy as np
import pytest

from backend.domain.records import TextSpan
from backend.simulation.annotators import Costs, Done, Habits, Look, Shown, by_hand, work_on
from backend.simulation.losses import errors_left, quality

TEXT = "Ann met Bob in Rome on Monday ."  # eight words
ANN, BOB, ROME = TextSpan(0, 3, "PER"), TextSpan(8, 11, "PER"), TextSpan(15, 19, "LOC")
GOLD = (ANN, BOB, ROME)
WRONG = ROME._replace(label="ORG")
MONDAY = TextSpan(23, 29, "LOC")
PRELABEL = (ANN, WRONG, MONDAY)  # Bob is missing, Rome has another label, Monday is none


def work(shown: Shown, *, look: Look = Look.AMBER, habits: Habits | None = None, seed: int = 0) -> Done:
    return work_on(
        TEXT, GOLD, shown, look=look, habits=habits or Habits(), costs=Costs(), rng=np.random.default_rng(seed)
    )


def test_without_a_prelabel_everything_is_read_and_marked() -> None:
    done = work(Shown())
    assert done == Done(GOLD, 4 + 8 * 0.25 + 3 * 5)
    assert by_hand(TEXT, GOLD, Costs()) == done.seconds


def test_whoever_checks_everything_puts_everything_right() -> None:
    done = work(Shown(prelabelled=True, spans=PRELABEL), look=Look.EVERYTHING)
    assert done == Done(GOLD, 4 + 8 * 0.25 + 3 + 3 + 5)


def test_amber_places_are_all_that_is_seen() -> None:
    done = work(Shown(prelabelled=True, spans=PRELABEL, amber=((15, 19), (12, 19))))
    assert done == Done((ANN, ROME, MONDAY), 4 + 2 + 3, places=1)
    nothing = work(Shown(prelabelled=True, spans=PRELABEL))
    assert nothing == Done(PRELABEL, 4)


def test_a_long_place_takes_as_long_as_reading_it() -> None:
    costs = Costs(word=1.0)
    shown = Shown(prelabelled=True, spans=GOLD, amber=((0, len(TEXT)),))
    done = work_on(TEXT, GOLD, shown, look=Look.AMBER, habits=Habits(), costs=costs, rng=np.random.default_rng(0))
    assert done == Done(GOLD, 4 + 8, places=1)


def test_without_a_promise_everything_is_checked() -> None:
    shown = Shown(prelabelled=True, spans=PRELABEL, amber=((15, 19),), whole=True)
    assert work(shown) == work(shown, look=Look.EVERYTHING)


def test_stamped_prelabels_cost_the_opening_alone() -> None:
    done = work(Shown(prelabelled=True, spans=PRELABEL), look=Look.EVERYTHING, habits=Habits(stamping=1.0))
    assert done == Done(PRELABEL, 4)
    assert work(Shown(), habits=Habits(stamping=1.0)).spans == GOLD  # nothing there to stamp


def test_people_who_overlook_everything_change_nothing() -> None:
    blind = Habits(accuracy=0.0)
    assert work(Shown(prelabelled=True, spans=PRELABEL), look=Look.EVERYTHING, habits=blind).spans == PRELABEL
    assert work(Shown(), habits=blind).spans == ()


@pytest.mark.parametrize("look", list(Look))
def test_accuracy_is_the_share_of_errors_that_are_put_right(look: Look) -> None:
    shown = Shown(prelabelled=True, spans=(WRONG,), amber=((0, len(TEXT)),))
    right = [ROME in work(shown, look=look, habits=Habits(accuracy=0.7), seed=seed).spans for seed in range(400)]
    assert 0.6 < np.mean(right) < 0.8


def test_losses_are_of_final_entities() -> None:
    left = errors_left(GOLD, PRELABEL)
    assert (left.missing, left.false, left.true, left.loss) == (2, 2, 3, 4 / 5)
    empty = [errors_left((), ()), errors_left((), (), shown=(ANN,))]
    assert [each.counts for each in empty] == [False, True]
    assert quality([left, *empty]).loss == pytest.approx(0.4)  # the one without any entity is left out
