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
from tests.support.paths import ROOT

PLACES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "docs/**/*.md", "backend/**/*.md")
FILES = sorted(path for place in PLACES for path in ROOT.glob(place))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`((?:backend|conformal|docs|tests|benchmarks|migrations)/[\w./-]+\.\w+)`")
# What may stand before `surespan` in a line: a prompt, where it is installed, a variable, a container.
BEFORE = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=(?:'[^']*'|\"[^\"]*\"|\S*) )*"
    r"(?:docker compose (?:exec|run)(?: -\S+)* (?:service|worker|migrate) )?(?:\.venv/bin/)?(?=surespan(?: |$))"
)


# All that is written by hand, or made from it: what the tree says about itself.
TREES = ("backend", "benchmarks", "conformal", "docs", "examples", "migrations", "tests", ".ci")
WRITTEN = {".cfg", ".css", ".html", ".js", ".mako", ".md", ".py", ".sh", ".toml", ".txt", ".xml", ".yaml", ".yml"}
LOOSE = {"Makefile", "Dockerfile", ".dockerignore", ".env.example", ".gitignore"}
# "METHODS 4.1", "METHODS 3.3, 6.2", "METHODS 3 and 4", "METHODS 4.4 to 4.7", also over the end of a line or a comment.
_NUMBER = r"\d+(?:\.\d+)?"
_GAP = r"(?:\s+#)?\s+"
QUOTED = re.compile(rf"\bMETHODS{_GAP}({_NUMBER}(?:(?:,{_GAP}|{_GAP}and{_GAP}|{_GAP}to{_GAP}|-){_NUMBER})*)(?![\w%])")
NUMBERED = re.compile(r"^(?:## (\d+)\.|- (\d+\.\d+)) ", re.MULTILINE)
# Documents that readers of the project do not have. Class names of data sets stand in quotes and are none of them.
ABSENT = re.compile(
    r"""(?<!["\w])(?:PRODUCT|STYLE)\b(?!")|LABEL_STUDIO\.md|\.\./shared|shared["'/\s]+data\b|/wor[k]/"""
)
DATA_SETTING = re.compile(r"""\.\./shared/data|shared["'/\s]+data\b""")


class Line(NamedTuple):
    file: str
    text: str


def written_files() -> list[Path]:
    """Return every file of the project that says something, this one aside: it names what it forbids."""
    loose = [path for path in ROOT.iterdir() if path.suffix in WRITTEN or path.name in LOOSE]
    inside = [path for tree in TREES for path in (ROOT / tree).rglob("*") if path.suffix in WRITTEN]
    return sorted(path for path in loose + inside if path.is_file() and path != Path(__file__).resolve())


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


def packages() -> list[str]:
    """Return every package of the tree, as the map spells it."""
    found = (path.parent for top in ("backend", "conformal") for path in (ROOT / top).rglob("__init__.py"))
    return sorted(f"{name_of(path)}/" for path in found)


def map_section(heading: str) -> str:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_package_stands_in_the_map() -> None:
    row = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
    mapped = [name for top in ("conformal", "backend") for name in row.findall(map_section(top))]
    assert sorted([*mapped, "backend/"]) == packages()


def test_every_part_of_backend_stands_in_one_layer_of_the_map() -> None:
    layers = re.findall(r"^\d+\. (.+)$", map_section("Layers"), re.MULTILINE)
    mapped = [name for layer in layers for name in re.findall(r"`(\w+)`", layer)]
    there = [path.parent.name for path in (ROOT / "backend").glob("*/__init__.py")]
    there += [path.stem for path in (ROOT / "backend").glob("*.py") if path.stem not in {"__init__", "__main__"}]
    assert sorted(mapped) == sorted(there)


def test_every_page_stands_in_an_index() -> None:
    listed = {
        (index.parent / (found[1] or found[2]).partition("#")[0]).resolve()
        for index in (ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md")
        for found in LINK.finditer(prose(index))
    }
    generated = (ROOT / "docs" / "results" / "evaluation").glob("*/*.md")
    pages = set((ROOT / "docs").rglob("*.md")) - set(generated) - {ROOT / "docs" / "README.md"}
    assert [name_of(page) for page in sorted(pages) if page not in listed] == []


def quoted_numbers(text: str) -> Iterator[str]:
    """Yield the items of the methods that a text quotes; of a range all that lie in it."""
    for found in QUOTED.finditer(text):
        for part in re.split(r",\s|\band\b", re.sub(r"\s#\s", " ", found[1])):
            ends = re.findall(_NUMBER, part)
            yield from ends
            section, low, high = ends[0].partition(".")[0], ends[0].partition(".")[2], ends[-1].partition(".")[2]
            if low and high and ends[-1].startswith(f"{section}."):
                yield from (f"{section}.{item}" for item in range(int(low), int(high)))


def test_numbers_of_methods_are_read() -> None:
    text = "(METHODS 3.3, 6.2) METHODS 4.4 to 4.6 and METHODS 8.2-8.4; METHODS 3 and 4, METHODS\n    # 9.1. METHODS = 5"
    assert sorted(set(quoted_numbers(text))) == [
        *("3", "3.3", "4", "4.4", "4.5", "4.6", "6.2", "8.2", "8.3", "8.4", "9.1"),
    ]  # fmt: skip


def test_methods_that_are_quoted_exist() -> None:
    methods = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    known = [found[1] or found[2] for found in NUMBERED.finditer(methods)]
    assert len(known) == len(set(known))
    quoted = {
        (name_of(path), number)
        for path in written_files()
        for number in quoted_numbers(path.read_text(encoding="utf-8"))
    }
    assert len(quoted) > 100
    assert sorted((file, number) for file, number in quoted if number not in known) == []


def test_nothing_refers_to_documents_that_readers_do_not_have() -> None:
    """The optional data of the tests has a default place, said once, by the tests' own setting."""
    refused = []
    for path in written_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            rest = DATA_SETTING.sub("", line) if name_of(path).startswith("tests/support/") else line
            if found := ABSENT.search(rest):
                refused.append(f"{name_of(path)}:{number}: {found[0]}")
    assert refused == []


def test_the_place_of_the_data_is_said_once() -> None:
    support = [path for path in written_files() if name_of(path).startswith("tests/support/")]
    said = [name_of(path) for path in support if DATA_SETTING.search(path.read_text(encoding="utf-8"))]
    assert len(said) <= 1
    assert all("SURESPAN_TEST_DATA" in (ROOT / name).read_text(encoding="utf-8") for name in said)


def test_kept_results_are_small() -> None:
    size = sum(path.stat().st_size for path in (ROOT / "docs" / "results").rglob("*") if path.is_file())
    assert size < 2_000_000
    assert list((ROOT / "docs" / "results").rglob("*.html")) == []
