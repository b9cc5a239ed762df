from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli import main
from backend.domain.records import AnnotationRecord, ProjectRecord, SequenceScores, TextSpan
from backend.intake.ingest import Ingest
from backend.labels.export import COLUMNS, Format, Report, export, write_lines
from backend.store import Store, open_store
from backend.store.calibration import record_scores
from backend.store.confirmed import ConfirmedLabel
from backend.store.events import process_events, store_event
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project, ensure_task, find_project
from backend.store.retention import purge_texts
from backend.store.tables import Label, Task
from backend.tagger.readers import read_labelled
from backend.tagger.spans import to_token_spans
from backend.tagger.tokens import token_texts, tokenize
from tests.support.paths import SAMPLE

WHEN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CONFIG = """<View><Labels name="flag" toName="doc"><Label value="Needs review"/></Labels>
<Labels name="ner" toName="doc"><Label value="Person"/><Label value="Place" predicted_values="LOC"/></Labels>
<Text name="doc" value="$content"/></View>"""

Row = tuple[str, tuple[TextSpan, ...]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'kept.db'}") as opened:
        yield opened


def confirm(store: Store, rows: Sequence[Row], *, uid: str = "7.1", language: str | None = "en") -> ProjectRecord:
    """Record an annotation per text, as ingest does."""
    with store.write() as session:
        project = ensure_project(session, uid)
        for number, (text, spans) in enumerate(rows, start=1):
            task = ensure_task(session, project.id, external_id=str(number), text=text, language=language)
            record_annotation(session, task.id, AnnotationRecord(number, WHEN, spans, completed_by=3))
    return project


def written(store: Store, project: ProjectRecord, form: Format, path: Path, **more: Any) -> Any:
    """Export to a file; returns the report."""
    with store.read() as session:
        lines, report = export(session, project, form=form, **more)
        path.write_bytes("".join(lines).encode())
    return report


# Letters, joiners, marks on spaces, CR LF, tabs, emoji, scripts without spaces, lone surrogates, NUL.
PIECES = st.sampled_from(
    ["Anna", "O'Brien", "1,000.5", "-DOCSTART-", "#", "# lang = xx", "👩‍👧", "🙂", "北京", "ไทย", "e\u0301", "\u00ad",
     " ", "  ", "\r\n", "\n", "\t", "\u00a0", " \u0308", "\u200b", "\ufeff", "\x00", "\ud800", ".", "B-PER"]
)  # fmt: skip
LABELS = st.sampled_from(["PER", "LOC", "Work of art", "Work_of_art", "", "🙂‍↕️", "B-x", "a\tb"])


@st.composite
def labelled(draw: st.DrawFn) -> Row:
    text = "".join(draw(st.lists(PIECES, max_size=8)))
    places = st.integers(0, len(text))
    spans = {TextSpan(*sorted((draw(places), draw(places))), draw(LABELS)) for _ in range(draw(st.integers(0, 3)))}
    return text, tuple(sorted(spans))


def kept(number: int, row: Row) -> ConfirmedLabel:
    text, spans = row
    return ConfirmedLabel(
        number, str(number), text, "en", spans, number, 3, WHEN, WHEN, False, 1.5, 1, 1, "blind", ""
    )  # fmt: skip


def write(path: Path, rows: list[Row], form: Format, *, provenance: bool) -> Report:
    report = Report()
    labels = [kept(number, row) for number, row in enumerate(rows, start=1)]
    path.write_bytes("".join(write_lines(labels, report, form=form, provenance=provenance)).encode())
    return report


@given(rows=st.lists(labelled(), min_size=1, max_size=6), provenance=st.booleans())
@pytest.mark.parametrize("form", [Format.JSONL, Format.LABEL_STUDIO])
def test_json_says_everything(
    form: Format, tmp_path_factory: pytest.TempPathFactory, rows: list[Row], provenance: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "all.jsonl"
    report = write(path, rows, form, provenance=provenance)
    read = read_labelled(path).texts
    assert [(each.text, each.spans, each.language) for each in read] == [(*row, "en") for row in rows]
    assert (report.texts, sum(report.left_out.values()), sum(report.changed.values())) == (len(rows), 0, 0)


@given(rows=st.lists(labelled(), min_size=1, max_size=6), provenance=st.booleans())
@settings(max_examples=300)
def test_conll_is_read_back_as_the_same_words_and_entities_or_left_out_and_counted(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], provenance: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "some.conll"
    report = write(path, rows, Format.CONLL, provenance=provenance)
    reading = read_labelled(path)
    assert reading.repairs == 0
    assert report.texts + sum(report.left_out.values()) == len(rows)
    assert len(reading.texts) == report.texts
    left = list(rows)
    for each in reading.texts:  # in order: what is skipped over was left out
        while not says_the_same(left.pop(0), each.words or (), each.spans):
            pass
        assert each.language == "en"
    spaced = sum(" ".join(token_texts(text, tokenize(text))) != text for text, _ in rows)
    assert report.changed["spaces and invisible characters of texts"] <= spaced


def says_the_same(row: Row, words: Sequence[str], spans: Sequence[TextSpan]) -> bool:
    text, wanted = row
    tokens = tokenize(text)
    joined = " ".join(words)
    aligned = to_token_spans([TextSpan(*span) for span in wanted], tokens, text=text)
    if aligned.inexpressible or token_texts(text, tokens) != list(words):
        return False
    expected = [(words[span.start : span.end], "_".join(span.label.split())) for span in aligned.spans]
    return expected == [(tuple(joined[start:end].split(" ")), label) for start, end, label in spans]


def test_what_columns_cannot_say_is_named(store: Store, tmp_path: Path) -> None:
    rows: list[Row] = [
        ("Anna met Bob.", (TextSpan(0, 4, "PER"), TextSpan(9, 12, "PER"))),
        ("Annamaria", (TextSpan(0, 4, "PER"),)),
        ("New York City", (TextSpan(0, 8, "LOC"), TextSpan(4, 13, "LOC"))),
        ("  ", ()),
        ("a\ud800b", ()),
        ("Dune  now", (TextSpan(0, 5, "Work of art"),)),
        ("Dune", (TextSpan(0, 4, "Work_of_art"),)),
    ]
    report = written(store, confirm(store, rows), Format.CONLL, tmp_path / "out.conll")
    assert report.lines() == [
        "2 texts, 3 entities",
        "left out: 1 (a label of it has no name that a tag can hold, or is written like another): task 7",
        "left out: 1 (a span of it cannot be said in words: it cuts a token): task 2",
        "left out: 1 (a span of it cannot be said in words: it overlaps another span): task 3",
        "left out: 1 (a word of it has a space or a character that a column cannot hold): task 5",
        "left out: 1 (it has no word): task 4",
        "not kept: spaces and invisible characters of texts (2)",
        "not kept: the label 'Work of art', written Work_of_art (1)",
        "not kept: white space at the edges of spans (1)",
    ]
    assert (tmp_path / "out.conll").read_text() == (
        "# lang = en\nAnna\tB-PER\nmet\tO\nBob\tB-PER\n.\tO\n\n# lang = en\nDune\tB-Work_of_art\nnow\tO\n\n"
    )


def test_only_what_people_confirmed_is_written(store: Store, tmp_path: Path) -> None:
    project = confirm(store, [("Anna", (TextSpan(0, 4, "PER"),))])
    with store.write() as session:
        for number, more in enumerate([{"was_cancelled": True}, {"bulk": True}], start=2):
            task = ensure_task(session, project.id, external_id=str(number), text=f"Bob {number}")
            record_annotation(session, task.id, AnnotationRecord(number, WHEN, (TextSpan(0, 3, "PER"),), **more))
        other = ensure_project(session, "8.1")
        task = ensure_task(session, other.id, external_id="1", text="Not ours")
        record_annotation(session, task.id, AnnotationRecord(9, WHEN, ()))
    report = written(store, project, Format.JSONL, tmp_path / "out.jsonl")
    assert [each.text for each in read_labelled(tmp_path / "out.jsonl").texts] == ["Anna"]
    assert report.left_out == {"skipped": 1, "bulk": 1}
    purge_texts(store, before=datetime(2100, 1, 1, tzinfo=UTC))
    report = written(store, project, Format.JSONL, tmp_path / "out.jsonl")
    assert report.texts == 0
    assert report.left_out["its text was removed by SURESPAN_TEXT_RETENTION"] == 1


def test_tasks_carry_the_names_of_the_label_config(store: Store, tmp_path: Path) -> None:
    project = confirm(store, [("Anna in Rome", (TextSpan(0, 4, "Person"), TextSpan(8, 12, "Place")))])
    with store.write() as session:
        project = ensure_project(session, project.uid, label_config=CONFIG)
    before = tmp_path / "before.jsonl"
    written(store, project, Format.LABEL_STUDIO, before)  # no model yet
    score(store, project, "1", exclusion=None)
    written(store, project, Format.LABEL_STUDIO, tmp_path / "out.jsonl", provenance=True)
    task = json.loads((tmp_path / "out.jsonl").read_text())
    assert (task["id"], task["data"]) == (1, {"content": "Anna in Rome", "language": "en"})
    found = [(each["from_name"], each["to_name"], each["value"]["labels"]) for each in task["annotations"][0]["result"]]
    assert found == [("ner", "doc", ["Person"]), ("ner", "doc", ["Place"])]
    about = task["annotations"][0]
    assert (about["id"], about["completed_by"], about["updated_at"]) == (1, 3, WHEN.isoformat())
    assert about["surespan"] == {"evidence": "blind", "exclusion": "", "votes": 1, "voters": 1}
    plain = json.loads(before.read_text())["annotations"][0]
    assert [each["from_name"] for each in plain["result"]] == ["ner", "ner"]
    assert "id" not in plain


def test_a_mark_of_doubt_never_comes_out(store: Store) -> None:
    text = "Anna met Jordan in Rome"
    regions = [("flag", 9, 15, "Needs review"), ("flag", 0, 4, "Needs review"), ("ner", 0, 4, "Person")]
    result = [
        {
            "id": f"r{start}",
            "from_name": name,
            "to_name": "doc",
            "type": "labels",
            "value": {"start": start, "end": end, "text": text[start:end], "labels": [label]},
        }
        for name, start, end, label in regions
    ]
    stamp = WHEN.isoformat()
    event = {
        "action": "ANNOTATION_CREATED",
        "annotation": {"id": 5, "result": result, "updated_at": stamp, "created_at": stamp, "lead_time": 2.0},
        "task": {"id": 3, "data": {"content": text}, "created_at": stamp},
        "project": {"id": 7, "label_config": CONFIG, "title": "t", "sampling": "Uniform sampling"},
    }
    store_event(store, event)
    assert process_events(store, Ingest(lambda *_: ("PER", "LOC")).process, worker="w") == 1
    for arguments, label in ([], "Person"), (["--classes"], "PER"):
        out = run(store, "--project", "7", *arguments)
        assert json.loads(out.stdout)["label"] == [{"start": 0, "end": 4, "text": "Anna", "labels": [label]}]


def score(store: Store, project: ProjectRecord, task: str, *, exclusion: str | None) -> None:
    with store.write() as session:
        model = ensure_model(session, "m", "ab" * 32, classes=["PER", "LOC"])
        kept = session.execute(sa.select(Task.id).where(Task.external_id == task)).scalar_one()
        record_scores(
            session,
            project.id,
            model_id=model.id,
            task_id=kept,
            label_revision=1,
            stratum="en",
            evidence="blind",
            scores=SequenceScores(1.0, 1.0, 1.0),
            entities=[],
            exclusion=exclusion,
        )


def test_provenance_columns_say_where_a_label_comes_from(store: Store, tmp_path: Path) -> None:
    project = confirm(store, [("Anna", (TextSpan(0, 4, "PER"),)), ("Bob", ())])
    with store.write() as session:
        task = ensure_task(session, project.id, external_id="1", text="Anna")
        record_annotation(session, task.id, AnnotationRecord(50, WHEN, (), completed_by=4))
        odd = ensure_task(session, project.id, external_id="x\ty z", text="Cy")
        record_annotation(session, odd.id, AnnotationRecord(51, WHEN, ()))
    score(store, project, "2", exclusion="queue")
    written(store, project, Format.CONLL, tmp_path / "out.conll", provenance=True)
    lines = (tmp_path / "out.conll").read_text().splitlines()
    assert lines[0] == "# columns = " + " ".join(COLUMNS)
    when = WHEN.isoformat()
    assert lines[2].split("\t") == ["Anna", "1", "1", "3", when, "_", "_", "1/2", "B-PER"]
    assert lines[5].split("\t") == ["Bob", "2", "2", "3", when, "blind", "queue", "1/1", "O"]
    assert lines[7].split("\t") == ["Cy", "x%09y%20z", "51", "_", when, "_", "_", "1/1", "O"]
    assert [each.words for each in read_labelled(tmp_path / "out.conll").texts] == [("Anna",), ("Bob",), ("Cy",)]


def test_memory_does_not_grow_with_the_project(store: Store) -> None:
    project = confirm(store, [("x", ())])
    with store.write() as session:
        row = session.execute(sa.select(Task)).scalar_one()
        blank = {"project_id": project.id, "external_id": "", "created_at": WHEN}
        session.execute(
            sa.insert(Task),
            [blank | {"external_id": f"t{i}", "text": "word " * 200, "text_hash": b"%032d" % i} for i in range(3000)],
        )
        ids = session.execute(sa.select(Task.id).where(Task.id != row.id)).scalars().all()
        label = {"project_id": project.id, "policy": "majority", "spans": [], "changed_at": WHEN}
        session.execute(sa.insert(Label), [label | {"task_id": task} for task in ids])
    peaks = []
    for count in (600, 3001):
        tracemalloc.start()
        with store.read() as session:
            lines, report = export(session, project, form=Format.JSONL)
            for _, _line in zip(range(count), lines, strict=False):
                pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert report.texts == 3001
    assert peaks[1] < 1.5 * peaks[0]


def run(store: Store, *arguments: str) -> Any:
    name = store.url.render_as_string(hide_password=False)
    return CliRunner().invoke(main, ["export", *arguments], env={"SURESPAN_DATABASE_URL": name})


def test_the_command_writes_files_and_stdout(store: Store, tmp_path: Path) -> None:
    text = "Anna 🙂\r\nmet Bob"
    confirm(store, [(text, (TextSpan(0, 4, "PER"),)), ("Annamaria", (TextSpan(0, 4, "PER"),))])
    out = run(store, "--project", "7")
    assert out.exit_code == 0, out.output
    assert [json.loads(line)["text"] for line in out.stdout.splitlines()] == [text, "Annamaria"]
    assert out.stderr == "2 texts, 2 entities\n"
    target = tmp_path / "labels.conll.gz"
    out = run(store, "--project", "7.1", "--output", str(target))
    assert (out.exit_code, out.stdout) == (0, "")
    assert "left out: 1 (a span of it cannot be said in words: it cuts a token): task 2" in out.stderr
    assert gzip.decompress(target.read_bytes()).decode().splitlines()[1] == "Anna\tB-PER"
    assert [each.words for each in read_labelled(target).texts] == [("Anna", "🙂", "met", "Bob")]
    assert sorted(path.name for path in tmp_path.iterdir() if "labels" in path.name) == ["labels.conll.gz"]


def test_the_command_refuses_what_could_not_be_read_again(store: Store, tmp_path: Path) -> None:
    confirm(store, [("Anna", ())], uid="local")
    for arguments, reason in [
        (["--output", str(tmp_path / "a.json")], "expected a file named .jsonl"),
        (["--output", str(tmp_path / "a.conll"), "--format", "jsonl"], "expected a file named .jsonl"),
        (["--output", str(tmp_path / "a.jsonl"), "--format", "conll"], "expected a name without .jsonl"),
        (["--project", "99"], "expected a project of this database, got '99'; known: local"),
        (["--output", str(tmp_path / "no" / "a.conll")], "expected a file that can be written"),
    ]:
        refused = run(store, *arguments)
        assert refused.exit_code != 0
        assert reason in refused.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".a", "a"))]


def test_a_failure_half_way_keeps_the_old_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    confirm(store, [("Anna", ()), ("Bob", ())], uid="local")
    target = tmp_path / "kept.jsonl"
    assert run(store, "--output", str(target)).exit_code == 0
    before = target.read_bytes()

    def failing(*_arguments: object, **_more: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("backend.labels.export._minimal", failing)
    broken = run(store, "--output", str(target))
    assert broken.exit_code == 1
    assert "No space left on device" in broken.stderr
    assert target.read_bytes() == before
    assert not list(tmp_path.glob(".*partial"))


def test_a_loaded_file_comes_out_as_it_went_in(tmp_path: Path) -> None:
    sample = SAMPLE
    with open_store(f"sqlite:///{tmp_path / 'kept.db'}") as store:
        from backend.calibration.local import load_file  # noqa: PLC0415 - brings the model's libraries in

        with store.write() as session:
            project = ensure_project(session, "local")
        load_file(store, project, sample, language="en")
        with store.read() as session:
            assert find_project(session, "local") is not None
        report = written(store, project, Format.JSONL, tmp_path / "out.jsonl")
    read = read_labelled(tmp_path / "out.jsonl").texts
    expected = read_labelled(sample, language="en").texts
    assert report.texts == len(expected)
    assert [(each.text, set(each.spans)) for each in read] == [(each.text, set(each.spans)) for each in expected]
