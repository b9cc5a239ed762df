"""What is highlighted and what is drawn in the browser are the same characters as Python's slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import sqlalchemy as sa

from backend.store.tables import CalibrationScore, Label, Task
from tests.support.editor import Editor
from tests.support.label_studio import LabelStudioServer, Project, Service
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.end_to_end import ProjectFactory

KEYS = {"PER": "1", "ORG": "2", "LOC": "3", "MISC": "4"}


class Case(NamedTuple):
    """A text, and what somebody draws in it: words and label."""

    name: str
    text: str
    drawn: tuple[tuple[str, str], ...]
    rtl: bool = False


CASES = (
    Case(
        "emoji",
        "😀 Alice Miller 👩‍👩‍👧 met Bob in Berlin 🇩🇪🎉 and then in Paris.",
        (("Alice Miller", "PER"), ("👩‍👩‍👧 met Bob", "MISC"), ("Berlin", "LOC"), ("Paris", "LOC")),
    ),
    Case(
        "line ends",
        "Alice Miller lives in Paris.\r\nBob Brown moved to Rome.\r\n\r\n  Eve stayed in Oslo.\nEnd in Berlin",
        (("Alice Miller", "PER"), ("Rome", "LOC"), ("Eve", "PER"), ("Oslo", "LOC"), ("Berlin", "LOC")),
    ),
    Case(
        "combining marks",
        "Zoe\u0308 Mu\u0308ller and Jose\u0301 visited Malmo\u0308 and Go\u0308teborg in Sweden.",
        (("Zoe\u0308 Mu\u0308ller", "PER"), ("Jose\u0301", "PER"), ("Malmo\u0308", "LOC"), ("Sweden", "LOC")),
    ),
    Case(
        "leading spaces and tabs",
        "  \tAngela Merkel spoke in Hamburg\u00a0and Rome 𝒜.",
        (("Angela Merkel", "PER"), ("Hamburg", "LOC"), ("Rome 𝒜", "LOC")),
    ),
    Case("right to left", "سافر يوسف حداد من دمشق إلى باريس", (("يوسف حداد", "PER"), ("باريس", "LOC")), rtl=True),
    Case("right to left with emoji", "😀 דנה כהן גרה בחיפה", (("דנה כהן", "PER"), ("בחיפה", "LOC")), rtl=True),
)


class Wired(NamedTuple):
    """A connected project with a task for each case."""

    surespan: Service
    project: Project
    tasks: dict[str, int]


@pytest.fixture(scope="module")
def wired(showing_service: Service, make_project: ProjectFactory) -> Wired:
    work = make_project([case.text for case in CASES], title="Offsets")
    showing_service.connect(work)
    return Wired(showing_service, work, dict(zip((case.name for case in CASES), work.tasks, strict=True)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_characters_shown_and_drawn_are_those_of_python(
    case: Case, wired: Wired, page: Page, label_studio: LabelStudioServer
) -> None:
    task = wired.tasks[case.name]
    best = label_studio.task(task)["predictions"][-1]
    regions = {(region["value"]["start"], region["value"]["end"]) for region in best["result"]}
    editor = Editor(page, wired.project)
    editor.open_task(task)
    predicted = [(start, end, case.text[start:end]) for start, end in sorted(regions)]
    assert [span[:3] for span in editor.shown()] == predicted
    assert predicted or case.rtl, "the bundled model finds something in each of these texts"

    editor.create()
    for words, label in case.drawn:
        editor.draw(words, key=KEYS[label], rtl=case.rtl)
    submitted = editor.submit()

    wanted = sorted((case.text.index(words), case.text.index(words) + len(words), label) for words, label in case.drawn)
    stored = label_studio.task(task)["annotations"]
    assert [each["id"] for each in stored] == [submitted["id"]]
    values = [region["value"] for region in stored[0]["result"]]
    assert sorted((v["start"], v["end"], *v["labels"]) for v in values) == wanted
    for value in values:
        assert value["text"] == case.text[value["start"] : value["end"]]

    with wired.surespan.open_store() as store:

        def label_spans() -> list[list[object]] | None:
            with store.read() as session:
                found = session.execute(
                    sa.select(Task.text, Label.spans)
                    .join(Label, Label.task_id == Task.id)
                    .where(Task.external_id == str(task))
                ).first()
            return None if found is None else [case.text == _text(found[0]), found[1]]

        same_text, spans = wait_for(label_spans, "the worker has stored the label")
    assert same_text
    assert sorted((start, end, label) for start, end, label in spans) == wanted


def test_two_regions_over_the_same_tokens_stop_no_later_label(
    wired: Wired, page: Page, label_studio: LabelStudioServer
) -> None:
    """Drawn with the mouse, "Anna " and "Anna", both PER: one entity to the model, two to whoever drew them."""
    text = "Anna met Bob in Paris."
    doubled, later = wired.project.add([text, "Later Eve met Bob in Rome."])
    editor = Editor(page, wired.project)
    editor.open_task(doubled)
    editor.create()
    editor.draw("Anna", key=KEYS["PER"])
    editor.draw("Anna ", key=KEYS["PER"])
    submitted = editor.submit()
    values = [region["value"] for region in submitted["result"]]
    assert sorted((v["start"], v["end"], *v["labels"]) for v in values) == [(0, 4, "PER"), (0, 5, "PER")]
    label_studio.annotate(later, [])

    with wired.surespan.open_store() as store:

        def scored() -> set[str]:
            rows = sa.select(Task.external_id).join(CalibrationScore, CalibrationScore.task_id == Task.id)
            with store.read() as session:
                return set(session.execute(rows).scalars())

        wait_for(lambda: str(later) in scored(), "the later label is scored")
        wait_for(lambda: str(doubled) in scored(), "the doubled one is too")
    assert wired.surespan.call("GET", "/health")["status"] == "UP"


def _text(stored: object) -> object:
    return stored.decode("utf-8", "surrogatepass") if isinstance(stored, bytes) else stored
