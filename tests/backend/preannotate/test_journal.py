from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.errors import InvalidInput
from backend.preannotate.journal import Journal

ABOUT = {"input": "abc", "model version": "m@1+cal.0"}


def lines(first: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": "Zoë"} for n in range(first, first + count)]


def begun(output: Path, count: int) -> None:
    """A run that was killed after `count` lines."""
    with Journal(output, ABOUT).open() as journal:
        journal.append(lines(0, count))


@pytest.mark.parametrize("name", ["out.json", "out.jsonl"])
def test_a_run_goes_on_behind_the_last_whole_line(tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    begun(output, 3)
    part = tmp_path / f"{name}.part"
    part.write_bytes(part.read_bytes()[:-4])  # the third line was cut off
    with Journal(output, ABOUT).open() as journal:
        assert journal.done == 2
        journal.append(lines(2, 2))
        assert not output.exists()
        journal.finish()
    text = output.read_text()
    written = json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    assert written == lines(0, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"{name}.run.json"])


def test_what_was_not_on_disk_when_the_machine_went_down_is_cut_off(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    begun(output, 4)
    part = tmp_path / "out.jsonl.part"
    whole = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(whole[0] + b"\0" * (len(whole[1]) - 1) + b"\n" + whole[2])
    with Journal(output, ABOUT).open() as journal:
        assert journal.done == 1


def test_a_finished_output_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with Journal(output, ABOUT).open() as journal:
        journal.append(lines(0, 2))
        journal.finish()
    before = output.read_bytes()
    with Journal(output, ABOUT).open() as again:
        assert (again.complete, again.done) == (True, 2)
    assert output.read_bytes() == before


@pytest.mark.parametrize("name", ["out.json", "out.jsonl"])
def test_a_kill_between_the_last_two_steps_costs_nothing(tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    begun(output, 2)
    notes = tmp_path / f"{name}.run.json"
    notes.write_text(json.dumps(ABOUT | {"complete": True, "lines": 2}))  # written, and the output not yet in place
    with Journal(output, ABOUT).open() as journal:
        assert (journal.complete, journal.done) == (False, 2)
        journal.finish()
    assert output.exists()
    (tmp_path / f"{name}.part").write_bytes(b"left behind")
    with Journal(output, ABOUT).open() as again:
        assert again.complete
    assert not (tmp_path / f"{name}.part").exists()


@pytest.mark.parametrize("finished", [False, True])
def test_an_output_of_something_else_is_refused_and_kept(tmp_path: Path, finished: bool) -> None:
    output = tmp_path / "out.jsonl"
    with Journal(output, ABOUT).open() as journal:
        journal.append(lines(0, 2))
        if finished:
            journal.finish()
    kept = output if finished else tmp_path / "out.jsonl.part"
    before = kept.read_bytes()
    with pytest.raises(InvalidInput, match=r"model version 'm@1\+cal\.0', got 'm@2\+cal\.7': choose another --output"):
        Journal(output, ABOUT | {"model version": "m@2+cal.7"}).open()
    assert kept.read_bytes() == before


def test_a_file_of_somebody_else_is_never_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("precious\n")
    with pytest.raises(InvalidInput, match="did not finish: remove it or choose another name"):
        Journal(output, ABOUT).open()
    assert output.read_text() == "precious\n"


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with (
        Journal(output, ABOUT).open(),
        pytest.raises(InvalidInput, match="expected to be alone, got another run"),
    ):
        Journal(output, ABOUT).open()


def test_notes_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    (tmp_path / "out.jsonl.run.json").write_text("not json")
    with pytest.raises(InvalidInput, match="remove it"):
        Journal(output, ABOUT).open()


def test_a_directory_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file or directory"):
        Journal(tmp_path / "nowhere" / "out.jsonl", ABOUT).open()
