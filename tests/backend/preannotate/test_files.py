from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from backend.cli import main
from backend.demo.sample import sample_texts
from backend.preannotate.engine import Answers, Group, Inline
from backend.preannotate.files import Wanted, preannotate_file
from backend.preannotate.recipe import Recipe
from backend.preannotate.texts import Format
from backend.prediction.predictor import Predictor
from backend.settings import load_settings

TEXTS = 12


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


class CutOff(Inline):
    """Ends the run after some groups."""

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def run(self, recipe: Recipe, groups: Iterator[Group], *, own: Predictor) -> Iterator[Answers]:
        for number, answers in enumerate(super().run(recipe, groups, own=own)):
            if number == self.groups:
                raise Killed
            yield answers


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", f"sqlite:///{tmp_path / 'surespan.db'}")
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in sample_texts()[:TEXTS]))
    return path


def surespan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["preannotate", "--jobs", "1", *arguments])


def read(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    found = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    return [dict(each) for each in found]


def test_a_run_that_is_cut_off_goes_on(texts: Path, tmp_path: Path) -> None:
    settings = load_settings()
    whole, parts = (Wanted(texts, tmp_path / name, Format.JSONL, batch=3) for name in ("whole.jsonl", "parts.json"))
    told: list[tuple[int, int]] = []
    made = preannotate_file(settings, whole, engine=Inline(), progress=lambda *each: told.append(each))
    assert (made.tasks, made.resumed, made.blank) == (TEXTS, 0, 0)
    assert told == [(done, TEXTS) for done in range(0, TEXTS + 1, 3)]
    for groups in (2, 1):
        with pytest.raises(Killed):
            preannotate_file(settings, parts, engine=CutOff(groups), progress=lambda *_: None)
        assert not parts.output.exists()
    again = preannotate_file(settings, parts, engine=Inline(), progress=lambda *_: None)
    assert (again.tasks, again.resumed) == (TEXTS, 9)
    assert read(parts.output) == read(whole.output)
    assert [each["data"] for each in read(whole.output)] == [dict(each) for each in sample_texts()[:TEXTS]]


def test_tasks_fit_the_label_config(texts: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.xml"
    config.write_text(
        '<View><Labels name="ner" toName="body"><Label value="Person"/><Label value="Place"/></Labels>'
        '<Text name="body" value="$text"/></View>'
    )
    output = tmp_path / "out.json"
    done = surespan("--input", str(texts), "--output", str(output), "--label-config", str(config), "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["tasks"], report["labels"], report["guarantee"]) == (TEXTS, ["LOC", "PER"], "none")
    results = [each for task in read(output) for made in task["predictions"] for each in made["result"]]
    assert {(each["from_name"], each["to_name"], *each["value"]["labels"]) for each in results} == {
        ("ner", "body", "Person"),
        ("ner", "body", "Place"),
    }
    for task in read(output):
        names = [made["model_version"] for made in task["predictions"]]
        assert names[-1] == report["model_version"], "the best comes last"
        assert len(set(names)) == len(names)
        for made in task["predictions"]:
            for each in made["result"]:
                value = each["value"]
                assert task["data"]["text"][value["start"] : value["end"]] == value["text"]


def test_run_twice_and_with_something_else(texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    first = surespan("--input", str(texts), "--output", str(output))
    assert first.exit_code == 0, first.output
    assert f"{TEXTS} tasks with predictions of" in first.stdout
    assert "LOC, MISC, ORG, PER in a control 'label'" in first.stdout
    before = output.read_bytes()
    again = surespan("--input", str(texts), "--output", str(output))
    assert again.stdout == f"{output}: all {TEXTS} tasks were there already.\n"
    texts.write_text('{"text": "Another."}\n')
    other = surespan("--input", str(texts), "--output", str(output))
    assert other.exit_code == 1
    assert "expected" in other.stderr
    assert "with input" in other.stderr
    assert "choose another --output" in other.stderr
    assert output.read_bytes() == before


def test_a_text_that_is_too_long_keeps_its_place(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_MAX_TEXT", "1000")
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("Anna.", "long " * 300, "Rome.")))
    output = tmp_path / "out.jsonl"
    done = surespan("--input", str(texts), "--output", str(output))
    assert "1 texts have no prediction: longer than SURESPAN_MAX_TEXT" in done.stdout
    assert [len(task["data"]["text"]) for task in read(output)] == [5, 1500, 5]
    assert read(output)[1]["predictions"] == [
        {"model_version": read(output)[0]["predictions"][-1]["model_version"], "score": 0.0, "result": []}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected --project or --input, got neither"),
        (["--project", "1", "--input", "{}"], "expected --project or --input, got both"),
        (["--input", "{}"], "expected --input and --output together"),
        (["--project", "1", "--language", "de"], "with --input only"),
    ],
)
def test_options_that_do_not_go_together(texts: Path, arguments: list[str], message: str) -> None:
    done = surespan(*(each.format(texts) if each == "{}" else each for each in arguments))
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_bad_line_is_found_before_anything_is_predicted(texts: Path, tmp_path: Path) -> None:
    with texts.open("a") as stream:
        stream.write('{"body": "no text"}\n')
    output = tmp_path / "out.jsonl"
    done = surespan("--input", str(texts), "--output", str(output))
    assert done.exit_code == 1
    assert f"texts.jsonl:{TEXTS + 1}: expected text under 'text'" in done.stderr
    assert not list(tmp_path.glob("out*"))
