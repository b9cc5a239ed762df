from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from backend.preannotate import processes
from backend.preannotate.engine import Inline
from backend.preannotate.engines import make_engine
from backend.preannotate.processes import LocalProcesses, ProcessesDie
from backend.preannotate.recipe import Item, predict_items
from backend.tagger.errors import InvalidModel

if TYPE_CHECKING:
    from tests.support.recipes import Known


def children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid}


def test_this_process_keeps_groups_and_order(known: Known) -> None:
    made = Inline().run(known.recipe, iter(known.groups()), own=known.predictor)
    assert list(made) == known.expected()
    assert isinstance(make_engine("local", 1), Inline)


@pytest.mark.heavy
@pytest.mark.crash
def test_processes_say_the_same_and_one_that_is_killed_is_replaced(known: Known) -> None:
    made = LocalProcesses(2).run(known.recipe, iter(known.groups()), own=known.predictor)
    found = [next(made)]
    before = children()
    assert before
    for victim in before:
        os.kill(victim, signal.SIGKILL)
    found += list(made)
    assert found == known.expected(), "complete, in order, nothing twice"
    assert not children(), "nobody is left behind"


class Deadly(Item):
    """Ends whatever process it is sent to."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


@dataclass(frozen=True)
class Unloadable:
    """A recipe of nothing, which costs no time."""

    threads: int = 1

    def predictor(self) -> Any:
        raise InvalidModel("expected a model, got none")


def test_processes_that_always_die_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST_DEATHS", 1)
    nothing: Any = Unloadable()
    made = LocalProcesses(1).run(nothing, iter([[Deadly("1", "a")]]), own=nothing)
    with pytest.raises(ProcessesDie, match=r"got 2 killed in a row.*--jobs"):
        list(made)


def test_why_a_process_cannot_load_the_model_is_said() -> None:
    nothing: Any = Unloadable()
    with pytest.raises(InvalidModel, match="expected a model, got none"):
        list(LocalProcesses(1).run(nothing, iter([[Item("1", "a")]]), own=nothing))


def test_another_model_in_the_same_place_is_refused(known: Known) -> None:
    other = replace(known.recipe, origin=replace(known.recipe.origin, hash="0" * 64))
    with pytest.raises(InvalidModel, match="same model on every machine"):
        other.predictor()


def test_one_bad_text_costs_no_other_its_prediction(known: Known) -> None:
    items = [known.items[0], Item("bad", None), known.items[1]]  # type: ignore[arg-type]
    first, bad, second = predict_items(known.predictor, items)
    assert bad is None
    for made, other in ((first, known.answers[0]), (second, known.answers[1])):
        assert made is not None
        assert other is not None
        assert made.best.spans == other.best.spans  # alone in its batch, the last digits differ
