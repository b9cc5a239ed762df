"""What importing brings in: nobody waits for torch who does not need a model."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import backend.http
from tests.support.paths import ROOT

MODEL = {"torch", "transformers"}


def imported_by(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter has after a statement."""
    script = f"{statement}\nimport json, sys; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_model_is_imported_when_it_is_loaded_not_before() -> None:
    routes = [f"backend.http.{each.name}" for each in pkgutil.iter_modules(backend.http.__path__)]
    assert len(routes) > 5
    modules = ["backend.app", "backend.worker.worker", "backend.prediction.predictor", *routes]
    # All in one interpreter: a start takes longer than everything else here.
    if imported_by(f"import {', '.join(modules)}") & MODEL:
        assert [module for module in modules if imported_by(f"import {module}") & MODEL] == []
        raise AssertionError("together they bring the model in, and none of them alone")


def test_the_check_of_health_is_light() -> None:
    # It runs every few seconds beside the service, in a process of its own.
    asked = "import os; os.environ['SURESPAN_PORT'] = '1'\nfrom backend.doctor.health import main; main(['service'])"
    assert not imported_by(asked) & (MODEL | {"numba", "numpy"})
