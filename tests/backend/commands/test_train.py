import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from backend import __version__
from backend.cli import main
from backend.tagger.model import MODEL_FILE
from backend.tagger.model_files import Kind, model_kind
from tests.support.paths import SAMPLE


def test_help_and_version_do_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from backend.cli import main\n"
        "for option in ('--help', '--version'):\n"
        "    answer = CliRunner().invoke(main, [option])\n"
        "    assert answer.exit_code == 0, answer.output\n"
        "    print(answer.output)\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Train a tagger on labelled files." in done.stdout
    assert __version__ in done.stdout


def test_every_command_answers_help() -> None:
    for name in main.list_commands(None):  # type: ignore[arg-type]
        answer = CliRunner().invoke(main, [name, "--help"])
        assert answer.exit_code == 0, answer.output


def test_unknown_commands_are_refused() -> None:
    assert "No such command 'nothing'" in CliRunner().invoke(main, ["nothing"]).output


def test_train_writes_a_model_and_says_how_good_it_is(tmp_path: Path) -> None:
    args = ["train", "--data", str(SAMPLE), "--out", str(tmp_path / "m"), "--epochs", "1", "--dev-share", "0.2"]
    answer = CliRunner().invoke(main, args)
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / "m" / MODEL_FILE).is_file()
    assert "saved m (" in answer.output


def test_train_names_the_broken_line(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("a O\nb\n")
    answer = CliRunner().invoke(main, ["train", "--data", str(tmp_path / "bad.txt"), "--out", str(tmp_path / "m")])
    assert answer.exit_code == 1
    assert "bad.txt:2: expected" in answer.output
    assert "Traceback" not in answer.output


def test_few_texts_are_learnt_by_the_linear_chain_unless_the_network_is_asked_for(tmp_path: Path) -> None:
    common = ["train", "--data", str(SAMPLE), "--start-from", "nothing"]
    answer = CliRunner().invoke(main, [*common, "--out", str(tmp_path / "auto")])
    assert answer.exit_code == 0, answer.output
    assert model_kind(tmp_path / "auto") is Kind.LINEAR
    assert "held-out labels F1" in " ".join(answer.output.split())
    answer = CliRunner().invoke(main, [*common, "--out", str(tmp_path / "network"), "--epochs", "1"])
    assert answer.exit_code == 0, answer.output
    assert model_kind(tmp_path / "network") is Kind.NETWORK
    answer = CliRunner().invoke(main, [*common, "--out", str(tmp_path / "m"), "--learner", "linear", "--epochs", "1"])
    assert answer.exit_code == 2
    assert "--epochs cannot be used with --learner linear" in answer.output


def test_a_handful_of_texts_is_enough(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("Anna B-PER\nslept O\n\nBob B-PER\nslept O\n")
    args = ["train", "--data", str(tmp_path / "few.txt"), "--out", str(tmp_path / "m"), "--start-from", "nothing"]
    answer = CliRunner().invoke(main, args)
    assert answer.exit_code == 0, answer.output
    assert "too few texts to hold any out" in " ".join(answer.output.split())


def test_no_entity_is_said(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("Anna O\nslept O\n")
    answer = CliRunner().invoke(main, ["train", "--data", str(tmp_path / "none.txt"), "--out", str(tmp_path / "m")])
    assert answer.exit_code == 1
    assert "expected at least one labelled entity, got none" in answer.output
