import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.domain.records import TextSpan
from backend.tagger.errors import InvalidData
from backend.tagger.readers import (
    LabelledText,
    read_conll,
    read_label_studio,
    read_labelled,
    write_conll,
    write_label_studio,
)
from backend.tagger.readers.types import from_words
from conformal.labels import LabelSpace, Scheme
from tests.support.data import require_benchmark_data
from tests.support.paths import SAMPLE


def write(tmp_path: Path, name: str, content: str) -> Path:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    return path


def pairs(reading: object) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(t.text, [(t.text[s.start : s.end], s.label) for s in t.spans]) for t in reading.texts]  # type: ignore[attr-defined]


CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
1996 CD B-NP O

# # O O
Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_conll_2003(tmp_path: Path) -> None:
    reading = read_conll(write(tmp_path, "train.txt", CONLL_2003))
    assert pairs(reading) == [
        ("EU rejects 1996", [("EU", "ORG")]),
        ("# Peter Blackburn", [("Peter Blackburn", "PER")]),
    ]
    assert reading.skipped == {"-DOCSTART- lines": 1}
    assert [text.line for text in reading.texts] == [3, 7]
    assert reading.classes == ("ORG", "PER")


def test_conll_2003_with_tabs_whose_first_word_is_a_number(tmp_path: Path) -> None:
    reading = read_conll(write(tmp_path, "x.txt", "1996\tCD\tB-NP\tO\nOslo\tNNP\tI-NP\tB-LOC\n"))
    assert pairs(reading) == [("1996 Oslo", [("Oslo", "LOC")])]


def test_wikineural_repairs_and_language_from_the_name(tmp_path: Path) -> None:
    content = "0\tIn\tO\n1\tRom\tI-LOC\n2\tNord\tI-LOC\n3\tX\tI-PER\n\n0\tJa\tO\n"
    reading = read_conll(write(tmp_path, "de.val.conllu", content))
    assert pairs(reading) == [("In Rom Nord X", [("Rom Nord", "LOC"), ("X", "PER")]), ("Ja", [])]
    assert reading.repairs == 2
    assert {text.language for text in reading.texts} == {"de"}
    assert "2 illegal IOB2 moves repaired" in reading.summary()


def test_comments_of_universal_ner(tmp_path: Path) -> None:
    content = "# sent_id = 1\n# text = Rom ruft\n1\tRom\tB-LOC\t-\tann\n2\truft\tO\t-\tann\n\n"
    content += "# text = O\n# lang = IT\n1\tSì\tO\t-\tann\n"
    reading = read_conll(write(tmp_path, "dev.iob2", content))
    assert pairs(reading) == [("Rom ruft", [("Rom", "LOC")]), ("Sì", [])]
    assert [text.language for text in reading.texts] == [None, "it"]


def test_two_columns_crlf_bom_gz_and_no_last_blank_line(tmp_path: Path) -> None:
    path = tmp_path / "two.txt.gz"
    path.write_bytes(gzip.compress("\ufeffNew B-LOC\r\nYork I-LOC\r\n\r\nHi O".encode()))
    assert pairs(read_labelled(path)) == [("New York", [("New York", "LOC")]), ("Hi", [])]


def test_other_schemes(tmp_path: Path) -> None:
    bioes = write(tmp_path, "bioes.txt", "A S-PER\nB B-LOC\nC E-LOC\n")
    assert pairs(read_conll(bioes)) == [("A B C", [("A", "PER"), ("B C", "LOC")])]
    iob1 = write(tmp_path, "iob1.txt", "A I-PER\nB B-PER\nC I-PER\n")
    reading = read_conll(iob1, scheme=Scheme.IOB1)
    assert pairs(reading) == [("A B C", [("A", "PER"), ("B C", "PER")])]
    assert reading.repairs == 0


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("A O\nB\n", 2),
        ("A O\nB X-LOC\n", 2),
        ("A O\nB b O\n", 2),
        ("word\n", 1),
        ("0\tA\tO\n1\t\tO\n", 2),
        ("\nA\tO\nB O\n", 3),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, content: str, line: int) -> None:
    with pytest.raises(InvalidData, match=rf"^bad\.txt:{line}: expected"):
        read_conll(write(tmp_path, "bad.txt", content))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="expected a readable file"):
        read_conll(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes("Köln O\n".encode("latin-1"))
    with pytest.raises(InvalidData, match="expected a UTF-8 text file"):
        read_conll(tmp_path / "latin.txt")
    (tmp_path / "not.txt.gz").write_bytes(b"plain")
    with pytest.raises(InvalidData, match="expected a UTF-8 text file"):
        read_conll(tmp_path / "not.txt.gz")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"[" * 5000)[:20])
    with pytest.raises(InvalidData, match="expected a UTF-8 text file"):
        read_labelled(tmp_path / "cut.json.gz")


def test_an_illegal_tag_sequence_is_not_taken_for_spans() -> None:
    with pytest.raises(InvalidData, match="without a beginning"):
        from_words(["a", "b"], ["O", "I-X"])
    with pytest.raises(InvalidData, match="one tag a word"):
        from_words(["a"], [])


SPACE = LabelSpace(["PER", "event-sports"])
word = st.text(st.characters(exclude_categories=["Z", "Cc", "Cs", "Cf"]), min_size=1, max_size=8).filter(
    lambda w: not w.isspace() and len(w.split()) == 1 and w != "-DOCSTART-"
)
sentence = st.lists(st.tuples(word, st.integers(0, 4)), min_size=1, max_size=8).map(
    lambda rows: from_words([w for w, _ in rows], SPACE.decode(SPACE.repair([i for _, i in rows])[0]))
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(sentence, min_size=1, max_size=4), language=st.sampled_from([None, "de", "pt"]))
def test_column_files_round_trip(tmp_path: Path, texts: list[LabelledText], language: str | None) -> None:
    path = tmp_path / "out.conll"
    assert write_conll([LabelledText(t.text, t.spans, language, t.words) for t in texts], path) == len(texts)
    back = read_conll(path)
    assert [(t.text, t.spans, t.words, t.language) for t in back.texts] == [
        (t.text, t.spans, t.words, language) for t in texts
    ]
    assert back.repairs == 0


any_text = st.text(st.characters(), min_size=1, max_size=30)


@st.composite
def labelled(draw: st.DrawFn) -> LabelledText:
    text = draw(any_text)
    spans = draw(st.lists(st.tuples(st.integers(0, len(text)), st.integers(0, len(text))), max_size=3))
    return LabelledText(
        text, tuple(TextSpan(min(s), max(s), "PER") for s in spans), draw(st.sampled_from([None, "ru"]))
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(labelled(), max_size=4), lines=st.booleans())
def test_label_studio_exports_round_trip(tmp_path: Path, texts: list[LabelledText], lines: bool) -> None:
    path = tmp_path / ("out.jsonl" if lines else "out.json")
    assert write_label_studio(texts, path, lines=lines) == len(texts)
    back = read_labelled(path)
    assert [(t.text, t.spans, t.language) for t in back.texts] == [(t.text, t.spans, t.language) for t in texts]


def test_running_text_is_written_in_live_tokens(tmp_path: Path) -> None:
    path = tmp_path / "out.conll"
    write_conll([LabelledText("l'Italia vince!", (TextSpan(2, 8, "LOC"),))], path)
    assert path.read_text(encoding="utf-8") == "l\tO\n'\tO\nItalia\tB-LOC\nvince\tO\n!\tO\n\n"
    with pytest.raises(InvalidData, match="it cuts a token"):
        write_conll([LabelledText("Italia", (TextSpan(0, 2, "LOC"),))], path)


def task(text: str, *annotations: dict, **data: str) -> dict:
    return {"id": 1, "data": {"text": text, **data}, "annotations": list(annotations)}


def result(start: int, end: int, label: str, control: str = "label") -> dict:
    return {
        "from_name": control,
        "to_name": "text",
        "type": "labels",
        "value": {"start": start, "end": end, "labels": [label]},
    }


def test_label_studio_choices(tmp_path: Path) -> None:
    tasks = [
        task("Anna x", {"id": 2, "result": [result(0, 1, "LOC")]}, {"id": 1, "result": [result(0, 4, "PER")]}),
        task("Anna x", {"id": 1, "result": []}, {"id": 2, "ground_truth": True, "result": [result(5, 6, "LOC")]}),
        task("Anna", {"id": 1, "was_cancelled": True, "result": [result(0, 4, "PER")]}),
        task("Anna"),
        task("Anna", {"id": 1, "result": [result(0, 4, "Needs review", "flag"), result(0, 4, "PER")]}, language="de"),
        task("Anna", {"id": 1, "result": [{"type": "choices", "value": {"choices": ["a"]}}]}),
        {"id": 9, "text": "Bob", "label": [{"start": 0, "end": 3, "labels": ["PER"]}]},
    ]
    reading = read_label_studio(write(tmp_path, "x.json", json.dumps(tasks)))
    assert [[(s.start, s.end, s.label) for s in text.spans] for text in reading.texts] == [
        [(0, 4, "PER")], [(5, 6, "LOC")], [(0, 4, "PER")], [], [(0, 3, "PER")]
    ]  # fmt: skip
    assert reading.skipped == {"skipped tasks": 1, "tasks without annotations": 1}
    assert [text.language for text in reading.texts] == [None, None, "de", None, None]
    only = read_label_studio(tmp_path / "x.json", label_control="flag")
    assert [len(text.spans) for text in only.texts] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", "{}", r"x\.json: expected a JSON list of tasks, got dict"),
        ("x.json", "[1]", r"x\.json: task 1: expected a task object, got int"),
        ("x.jsonl", '\n{"data": ', r"x\.jsonl:2: expected JSON"),
        (
            "x.jsonl",
            json.dumps(task("ab", {"result": [result(0, 9, "X")]})),
            r"x\.jsonl:1: expected a span inside 0\.\.2",
        ),
        (
            "x.jsonl",
            json.dumps(task("ab", {"result": [{"type": "labels", "value": {}}]})),
            "expected start, end and labels",
        ),
        ("x.jsonl", json.dumps(task("ab", {"result": 3})), "expected a list of results"),
        (
            "x.jsonl",
            json.dumps(task("ab", {"result": [{"type": "hypertextlabels", "value": {}}]})),
            "got labels over a dialogue or an HTML page",
        ),
        (
            "x.jsonl",
            json.dumps(task("ab", {"result": [{"type": "labels", "value": {"start": "0", "startOffset": 0}}]})),
            "expected labels over a plain text",
        ),
        (
            "x.jsonl",
            '{"data": {"a": "x", "b": "y"}, "annotations": [{"result": []}]}',
            "expected a text in the data field",
        ),
        ("x.jsonl", '{"data": 3, "annotations": [{"result": []}]}', "expected the task's data to be an object"),
        ("x.jsonl", '{"data": {"text": "x"}, "annotations": 3}', "expected annotations to be a list"),
    ],
)
def test_malformed_exports_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        read_labelled(write(tmp_path, name, content))


def test_the_sample_is_legal_and_in_nine_languages() -> None:
    reading = read_conll(SAMPLE)
    assert reading.repairs == 0
    assert len(reading.texts) == 54
    assert {text.language for text in reading.texts} == {"de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru"}
    assert reading.classes == ("LOC", "MISC", "ORG", "PER")


def test_the_benchmark_files_have_the_known_numbers_of_repairs() -> None:
    place = require_benchmark_data()
    assert read_labelled(place / "wikineural" / "en.val.conllu.gz").repairs == 439
    reading = read_labelled(place / "conllpp" / "dev.txt.gz")
    assert (len(reading.texts), reading.repairs) == (3250, 0)
