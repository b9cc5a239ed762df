"""Campaigns by policy and seed: each is kept when it is done, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from backend.models.loading import ModelLoader
from backend.settings import Settings
from backend.simulation.campaign import Played, Rules, play
from backend.simulation.policies import Policy
from backend.simulation.project import Corpus
from backend.tagger.errors import InvalidData
from backend.tagger.readers import LabelledText

LEAST = 50
FORMAT = 1  # of kept campaigns; another one when what is played changes
_SETTINGS = ("alpha", "method", "n_min", "max_sequences", "unit", "learn_from", "max_error_sure", "evidence")


@dataclass(frozen=True)
class Plan:
    """Which campaigns a study plays: every policy at every share of errors, seed by seed.

    `tasks` texts are drawn for each seed, None for all. After so many `minutes` no campaign is begun; None for never.
    """

    policies: tuple[Policy, ...]
    rules: tuple[Rules, ...]
    seeds: tuple[int, ...]
    tasks: int | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Studied:
    """The campaigns that were played, and how many of the plan were not."""

    played: tuple[Played, ...]
    missing: int


Tell = Callable[[Policy, Rules, int, int, int], object]
"""Is told how far a campaign is: policy, rules, seed, how many tasks it has, and how many are done."""


def study(
    texts: Sequence[LabelledText],
    plan: Plan,
    *,
    settings: Settings,
    loader: ModelLoader,
    kept: Path,
    tell: Tell = lambda *said: None,  # noqa: ARG005
    clock: Callable[[], float] = time.monotonic,
) -> Studied:
    """Play what is not kept in a directory yet, and return all of it.

    Raises:
        InvalidData: when there are too few texts, or none has an entity.
    """
    labels = tuple(sorted({span.label for text in texts for span in text.spans}))
    if len(texts) < LEAST or not labels:
        raise InvalidData(
            f"expected at least {LEAST} labelled texts with entities, got {len(texts):,} with {len(labels)} labels"
        )
    kept.mkdir(parents=True, exist_ok=True)
    begun = clock()
    played: list[Played] = []
    missing = 0
    for seed, rules, policy in _campaigns(plan):
        file = (
            kept / f"{policy.name}-{rules.max_error}-{seed}-{_key(texts, plan, rules, policy, settings, loader)}.json"
        )
        if file.exists():
            played.append(Played.from_dict(json.loads(file.read_text(encoding="utf-8"))))
            continue
        if plan.minutes is not None and clock() - begun >= 60 * plan.minutes:
            missing += 1
            continue
        corpus = sample(texts, labels, tasks=plan.tasks, seed=seed)
        size = len(corpus.texts)
        one = play(
            corpus,
            policy,
            rules,
            settings=settings,
            loader=loader,
            seed=seed,
            tell=partial(tell, policy, rules, seed, size),
        )
        begun_file = file.with_suffix(".partial")
        begun_file.write_text(json.dumps(one.as_dict()), encoding="utf-8")
        begun_file.replace(file)
        played.append(one)
    return Studied(tuple(played), missing)


def sample(texts: Sequence[LabelledText], labels: tuple[str, ...], *, tasks: int | None, seed: int) -> Corpus:
    """Return the tasks of a seed: drawn from the texts, in their order, under numbers from 1.

    >>> texts = [LabelledText(name, ()) for name in "abcdef"]
    >>> len(sample(texts, (), tasks=3, seed=0).texts), sample(texts, (), tasks=None, seed=0).texts[6].text
    (3, 'f')
    """
    chosen = np.sort(np.random.default_rng([seed, 3]).permutation(len(texts))[:tasks]).tolist()
    return Corpus({number: texts[i] for number, i in enumerate(chosen, start=1)}, labels, salt=f"simulation {seed}")


def _campaigns(plan: Plan) -> Iterator[tuple[int, Rules, Policy]]:
    """Yield the campaigns, all policies of a seed before the next one: a study that ends early compares them fairly."""
    for seed in plan.seeds:
        for rules in plan.rules:
            for policy in plan.policies:
                yield seed, rules, policy


def _key(
    texts: Sequence[LabelledText], plan: Plan, rules: Rules, policy: Policy, settings: Settings, loader: ModelLoader
) -> str:
    """Return what tells a campaign from others that share its name: texts, habits, costs, settings, model."""
    about = {
        "format": FORMAT,
        "tasks": plan.tasks,
        "rules": asdict(rules),
        "policy": asdict(policy),
        "settings": {name: getattr(settings, name) for name in _SETTINGS},
        "refit": settings.refit_every_labels,
        "model": loader.header().hash,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for text in texts:
        digest.update(json.dumps([text.text, text.language, *map(list, text.spans)]).encode())
    return digest.hexdigest()[:12]
