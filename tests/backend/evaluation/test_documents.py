"""`surespan evaluate --documents`: what is read as a document, and the table."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from backend.cli import main
from backend.tagger.readers import join_documents, read_conll

LINES = """-DOCSTART-\tO

Anna\tB-PER
sleeps\tO
.\tO

She\tO
left\tO
Rome\tB-LOC
.\tO

-DOCSTART-\tO

Bob\tB-PER
stays\tO
.\tO

"""


def test_sentences_between_marks_are_one_document(tmp_path: Path) -> None:
    for name, mark in (("a.conll", "-DOCSTART-\tO\n"), ("b.conllu", "# newdoc id = x\n")):
        file = tmp_path / name
        file.write_text(LINES.replace("-DOCSTART-\tO\n", mark))
        documents = join_documents(read_conll(file).texts)
        assert [each.text for each in documents] == ["Anna sleeps . She left Rome .", "Bob stays ."]
        assert [documents[0].text[span.start : span.end] for span in documents[0].spans] == ["Anna", "Rome"]
    plain = tmp_path / "c.conll"
    plain.write_text(LINES.replace("-DOCSTART-\tO\n\n", ""))
    assert len(join_documents(read_conll(plain).texts)) == 3


def test_the_command_writes_the_table(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "documents.conll"
    file.write_text(LINES * 12)
    options = ["--splits", "2", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "figures.json")]
    asked = ["evaluate", "--documents", "--model", str(tiny_model), "--data", str(file), *options]
    done = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "documents.md").read_text()
    assert "## Sentences as units" in page
    assert "## Whole texts as units" in page
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["documents"], figures["sentence"]["units"], figures["task"]["units"]) == (24, 36, 24)
    for level in figures["sentence"]["levels"]:
        assert level["open"] == 1.0  # far fewer than a hundred documents: nothing is promised
        assert level["promise"]["coverage"] == 1.0
    few = tmp_path / "few.conll"
    few.write_text(LINES)
    refused = CliRunner().invoke(main, ["evaluate", "--documents", "--model", str(tiny_model), "--data", str(few)])
    assert refused.exit_code != 0
    assert "at least four documents" in refused.output
