"""What the tree promises: `conformal` stands alone, and `backend` is built in layers without a cycle."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import conformal
from tests.support.paths import ROOT

FOREIGN = {"alembic", "backend", "flask", "label_studio_sdk", "pydantic", "sqlalchemy", "torch", "transformers"}

# The parts of backend, lowest layer first, as the map has them: each may import what stands in a layer before its own.
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Layers")[2].partition("\n## ")[0]
LAYERS = [
    re.findall(r"`(\w+)`", line.partition(", which")[0]) for line in re.findall(r"^\d+\. (.+)$", MAP, re.MULTILINE)
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names} | {"__main__": len(LAYERS)}
MOST_LOOSE = 8

# Imports inside functions, outside commands: what is imported so, and why it may not be imported at the top.
LATE = {
    ("backend.calibration.local_predictor", "backend.calibration.local"): "without a database nobody waits for it",
    ("backend.ml_sdk", "backend.app"): "the SDK forks after it has imported the module; the service is made after that",
    ("backend.preannotate.cluster", "ray"): "Ray is an extra that most installations do not have",
    ("backend.preannotate.cluster", "ray.data"): "the same",
    ("backend.preannotate.cluster", "ray.exceptions"): "the same",
    ("backend.preannotate.engines", "backend.preannotate.cluster"): "the engine on Ray, imported when it is asked for",
    ("backend.settings", "conformal.errors"): "numba takes a second to import, and the default method needs none of it",
    ("backend.settings", "conformal.scores"): "the same",
    ("backend.settings", "sqlalchemy.engine"): "a command that finds no database does not wait for it",
    ("backend.settings", "sqlalchemy.exc"): "the same",
    ("backend.store", "backend.store.schema"): "Alembic is needed only where a store is opened",
    ("backend.tagger.hf.checkpoint", "huggingface_hub"): "only a model that is named by its hub id needs it",
    ("backend.tagger.language", "backend.tagger.identifier"): "a task that names its language needs no guess",
    ("backend.tagger.loading", "backend.tagger.encoder.saved"): "transformers takes seconds to import",
    ("backend.tagger.loading", "backend.tagger.hf.loading"): "the same",
}
MOST_LATE = 15


@dataclass(frozen=True)
class Import:
    """`module` imports `imported`, at the top of the file or late: inside a function."""

    module: str
    imported: str
    late: bool


def modules_of(folder: str) -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def imports_of(module: str, path: Path, *, known: frozenset[str] = frozenset()) -> Iterator[Import]:
    """Yield what a file imports; `from a.b import c` is an import of a.b.c where that is a module of ours."""

    def visit(node: ast.AST, *, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(module, alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
                for name in dict.fromkeys(
                    full if (full := f"{child.module}.{alias.name}") in known else child.module for alias in child.names
                ):
                    yield Import(module, name, inside)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, inside=inside or function)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), inside=False)


def backend_imports() -> list[Import]:
    files = modules_of("backend")
    known = frozenset(files)
    return [each for module, path in files.items() for each in imports_of(module, path, known=known)]


def layer_of(module: str) -> str:
    """Return the package directly below backend (or the loose module) that a module belongs to."""
    return module.split(".")[1] if "." in module else "backend"


def edges_between_layers() -> dict[str, dict[str, list[Import]]]:
    edges: dict[str, dict[str, list[Import]]] = defaultdict(lambda: defaultdict(list))
    for each in backend_imports():
        if each.imported.startswith("backend."):
            above, below = layer_of(each.module), layer_of(each.imported)
            if above != below:
                edges[above][below].append(each)
    return edges


def test_every_package_of_backend_has_its_layer() -> None:
    assert {layer_of(module) for module in modules_of("backend")} - {"backend"} == set(HEIGHT)


def test_layers_import_only_what_stands_below_them() -> None:
    wrong = [
        f"{each.module} imports {each.imported}"
        for above, targets in edges_between_layers().items()
        for below, imports in targets.items()
        for each in imports
        if HEIGHT[above] <= HEIGHT[below]
    ]
    assert not wrong


def test_there_is_no_cycle_of_packages() -> None:
    """By search, not by the order above: it names the way round if there is one."""
    edges = edges_between_layers()
    finished: set[str] = set()

    def search(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in finished:
            for other in edges[name]:
                search(other, (*way, name))
            finished.add(name)

    for name in list(edges):
        search(name, ())


def test_domain_imports_nothing_of_backend() -> None:
    outside = [
        each
        for each in backend_imports()
        if layer_of(each.module) == "domain" and layer_of(each.imported) != "domain" and "backend" in each.imported
    ]
    assert not outside


def test_few_modules_lie_loose_in_backend() -> None:
    loose = [path.name for path in (ROOT / "backend").glob("*.py")]
    assert len(loose) <= MOST_LOOSE, loose


def test_imports_inside_functions_are_few_and_have_a_reason() -> None:
    late = {
        (each.module, each.imported)
        for each in backend_imports()
        if each.late and not each.module.startswith("backend.commands.")
    }
    assert late == set(LATE), "imports inside functions, and the list of those that may be"
    assert len(late) <= MOST_LATE


@pytest.mark.parametrize("module", sorted(modules_of("conformal")))
def test_conformal_imports_only_numpy_numba_and_the_standard_library(module: str) -> None:
    allowed = {"conformal", "numba", "numpy", *sys.stdlib_module_names}
    assert {each.imported.split(".")[0] for each in imports_of(module, modules_of("conformal")[module])} <= allowed


def test_importing_conformal_brings_nothing_foreign_in() -> None:
    script = "import conformal, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    assert not FOREIGN & set(done.stdout.split())


def packages_with_all() -> list[str]:
    names = ["conformal"]
    names += [info.name for info in pkgutil.walk_packages(conformal.__path__, "conformal.") if info.ispkg]
    return [name for name in names if hasattr(importlib.import_module(name), "__all__")]


@pytest.mark.parametrize("name", packages_with_all())
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    public = [key for key, value in vars(module).items() if key[0] != "_" and not isinstance(value, types.ModuleType)]
    assert list(module.__all__) == sorted(public, key=lambda key: (not key.isupper(), key))  # constants first


def test_no_module_outgrows_a_screenful_of_ideas() -> None:
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for folder in ("conformal", "backend", "migrations")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert not long
