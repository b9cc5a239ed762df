"""What the documentation says is true as far as a program can tell: links, commands, code, generated pages."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from backend.commands.reference import PAGES, contexts, root
from backend.settings import Settings, variable_of

ROOT = Path(__file__).parents[1]
PLACES = ("README.md", "CHANGELOG.md", "benchmarks/README.md", "docs/**/*.md", "backend/**/*.md")
FILES = sorted(path for place in PLACES for path in ROOT.glob(place))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`((?:backend|conformal|docs|tests|benchmarks|migrations)/[\w./-]+\.\w+)`")
# What may stand before `surespan` in a line: a prompt, where it is installed, a variable, a container.
BEFORE = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=(?:'[^']*'|\"[^\"]*\"|\S*) )*"
    r"(?:docker compose (?:exec|run)(?: -\S+)* (?:service|worker|migrate) )?(?:\.venv/bin/)?(?=surespan(?: |$))"
)


class Line(NamedTuple):
    file: str
    text: str


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def slugs(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for found in LINK.finditer(prose(path)):
        link = found[1] or found[2]
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        place = (path.parent / target).resolve() if target else path
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in slugs(place)):
            broken.append(link)
        assert place.is_relative_to(ROOT), f"{link} leads out of the repository"
    assert broken == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_that_are_named_are_there(path: Path) -> None:
    assert [name for name in PATH.findall(prose(path)) if not (ROOT / name).exists()] == []


def command_lines() -> Iterator[Line]:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            if block["language"] in {"", "bash", "console", "sh"}:
                for line in block["body"].replace("\\\n", " ").splitlines():
                    if BEFORE.match(line.strip()):
                        yield Line(name_of(path), line.strip())
        for inline in re.findall(r"`(surespan [^`\n]+)`", FENCE.sub("", text)):
            yield Line(name_of(path), inline)


LINES = list(dict.fromkeys(command_lines()))


def test_there_are_command_lines_to_check() -> None:
    assert len([line for line in LINES if line.file == "README.md"]) > 5


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.file}: {line.text}")
def test_command_lines_are_understood(line: Line) -> None:
    text = BEFORE.sub("", line.text)
    words = shlex.split(re.split(r"\s(?:\||>|<|&&|2>)", text)[0], comments=True)[1:]
    # `surespan db upgrade|check`, `surespan connect / disconnect --project N`: each of the words is a command.
    for choice in expand(words):
        check(choice, line.text)


def expand(words: list[str]) -> list[list[str]]:
    for place, word in enumerate(words):
        if "|" in word and not word.startswith("-"):
            return [each for part in word.split("|") for each in expand([*words[:place], part, *words[place + 1 :]])]
        if word == "/" and place:
            rest = words[place + 2 :]
            return [[*words[: place - 1], words[place - 1], *rest], [*words[: place - 1], words[place + 1], *rest]]
    return [words]


def check(words: list[str], shown: str) -> None:
    context = root()
    while isinstance(context.command, click.Group) and words and not words[0].startswith("-"):
        inner = context.command.get_command(context, words[0])
        assert inner is not None, f"{shown}: there is no command {words[0]!r}"
        context = click.Context(inner, info_name=words[0], parent=context)
        words = words[1:]
    # The parser alone: files of examples need not exist, and a command named in prose need not be complete.
    values, rest, _ = context.command.make_parser(context).parse_args(list(words))
    assert isinstance(context.command, click.Group) or not rest, f"{shown}: what is {rest}?"
    for option in context.command.params:
        value = values.get(option.name or "")
        if isinstance(option.type, click.Choice | click.IntRange) and isinstance(value, str) and not value.isupper():
            option.type.convert(value, option, context)


def test_a_wrong_command_line_is_noticed() -> None:
    for wrong in ("surespan fly", "surespan export --formt conll", "surespan export --format xml", "surespan db mend"):
        with pytest.raises((AssertionError, click.UsageError)):
            check(wrong.split()[1:], wrong)


def python_files() -> list[Path]:
    return [path for path in FILES if "```python" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_python_in_the_documentation_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in FENCE.finditer(path.read_text(encoding="utf-8")):
        if block["language"] == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block["body"], name_of(path), "exec"), namespace)  # noqa: S102 - our own pages


@pytest.mark.parametrize("page", sorted(PAGES))
def test_generated_pages_are_up_to_date(page: str) -> None:
    kept = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert kept == PAGES[page](), "run: make docs"


def test_every_command_and_setting_is_documented() -> None:
    cli = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for context in contexts(root()):
        assert f"## {context.command_path}\n" in cli
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        assert f"`{variable_of(name)}`" in settings
        assert field.description, name
