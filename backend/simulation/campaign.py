"""One campaign: a corpus worked through to its end under a policy, with the work and the errors left on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from backend.acceptance.decision import Wish
from backend.domain.records import TextSpan
from backend.errors import BackendError
from backend.models.loading import ModelLoader
from backend.settings import Settings
from backend.simulation.annotators import Costs, Done, Habits, Shown, by_hand, work_on
from backend.simulation.loop import running
from backend.simulation.losses import Left, errors_left, quality
from backend.simulation.policies import Policy
from backend.simulation.policies import Sequence as Way
from backend.simulation.project import Corpus, PlayedProject
from conformal.risk.acceptance import labels_needed, next_count, spend

STEP = 20  # tasks that are labelled between two turns of the worker
AGAIN = 0.1  # share of the corpus after whose labels acceptance is asked for again
_MORE_BLIND = 1.1
_BLIND = (0.02, 0.6)  # the least and the greatest share that is drawn blind unless one is given


@dataclass(frozen=True)
class Point:
    """Where a campaign stood: seconds of work, tasks opened and accepted, errors left if it ended here.

    Tasks that nobody has opened have what the model says then. `loss` is a task's on average (METHODS 11.1), `whole`
    that of all entities.
    """

    seconds: float
    opened: int
    accepted: int
    loss: float
    whole: float


@dataclass(frozen=True)
class Played:
    """A campaign at its end.

    `by_hand` are the seconds of all tasks without any help; `blind` counts tasks in which nothing was suggested, and
    `promised` those that losses are averaged over. `accepted_wrong` is the share of all tasks that are accepted and
    have an error: at most `max_error` is promised with 95 % certainty (METHODS 12.2).
    """

    policy: str
    seed: int
    tasks: int
    max_error: str
    by_hand: float
    blind: int
    places: int
    trained: int
    accepted_wrong: float
    promised: int
    points: tuple[Point, ...]
    decisions: tuple[dict[str, Any], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The work that was done, as a share of the work by hand."""
        return self.points[-1].seconds / self.by_hand

    @property
    def end(self) -> Point:
        """Where it ended."""
        return self.points[-1]

    def share_in_hindsight(self, max_error: float) -> float:
        """Return the share of the work by hand after which no more than `max_error` was ever wrong again.

        Nobody who does not know the true labels could have stopped there.
        """
        last = self.points[-1].seconds
        for point in reversed(self.points):
            if point.loss > max_error:
                break
            last = point.seconds
        return last / self.by_hand

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self) | {"share": self.share}

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Played:
        """Read what `as_dict` wrote."""
        values = {name: value for name, value in kept.items() if name != "share"}
        values["points"] = tuple(Point(**each) for each in kept["points"])
        return cls(**values | {name: tuple(kept[name]) for name in ("decisions", "remarks")})


@dataclass(frozen=True)
class Rules:
    """What campaigns share. `blind` is the share of tasks without prelabels, None for what `max_error` asks for."""

    max_error: str = "0.05"
    habits: Habits = field(default_factory=Habits)
    costs: Costs = field(default_factory=Costs)
    blind: float | None = None
    step: int = STEP

    def blind_share(self, tasks: int) -> float:
        """Return the share that is drawn blind: a little more than the first decision about acceptance needs.

        >>> Rules("0.05").blind_share(4000), Rules("0.02").blind_share(1000), Rules("0.02").blind_share(300)
        (0.034375, 0.275, 0.6)
        """
        if self.blind is not None:
            return self.blind
        needed = next_count(0, needed=labels_needed(float(self.max_error), delta=spend(1)))
        least, most = _BLIND
        return round(min(most, max(least, _MORE_BLIND * needed / max(1, tasks))), 6)


def play(
    corpus: Corpus,
    policy: Policy,
    rules: Rules,
    *,
    settings: Settings,
    loader: ModelLoader,
    seed: int,
    order: Sequence[int] | None = None,
    tell: Callable[[int], object] = lambda done: None,  # noqa: ARG005
) -> Played:
    """Play a campaign.

    Args:
        order: in which tasks are opened at random; drawn by the seed otherwise.
        tell: is told how many tasks are done, labelled or accepted.
    """
    if not policy.prelabels:
        return play_on(None, corpus, policy, rules, seed=seed, order=order, tell=tell)
    share = rules.blind_share(len(corpus.texts))
    chosen = settings.model_copy(
        update={
            "max_error": rules.max_error,
            "flags": "risk",
            "blind": share,
            "audit_share": share,
            "learn": "auto" if policy.learns else "off",
        }
    )
    with (
        TemporaryDirectory(prefix="surespan-simulation-") as folder,
        running(chosen, corpus, order=policy.order, loader=loader, directory=Path(folder)) as loop,
    ):
        return play_on(loop, corpus, policy, rules, seed=seed, order=order, tell=tell)


def play_on(
    project: PlayedProject | None,
    corpus: Corpus,
    policy: Policy,
    rules: Rules,
    *,
    seed: int,
    order: Sequence[int] | None = None,
    tell: Callable[[int], object] = lambda done: None,  # noqa: ARG005
) -> Played:
    """Play a campaign on a project that somebody serves; None for a policy without prelabels."""
    rng = np.random.default_rng([seed, 7])
    numbers = sorted(corpus.texts)
    waiting = list(order) if order is not None else [numbers[i] for i in rng.permutation(len(numbers)).tolist()]
    work = _Work(corpus, policy, rules, rng, waiting, seed)
    if project is not None:
        _Turns(work, project, rules, policy).run(tell)
        return work.played(project)
    while work.waiting:
        work.do(dict.fromkeys(work.waiting[: rules.step], Shown()))
        work.note()
        tell(len(work.done))
    return work.played()


class _Work:
    """What people have done so far, and what is left."""

    def __init__(
        self,
        corpus: Corpus,
        policy: Policy,
        rules: Rules,
        rng: np.random.Generator,
        waiting: list[int],
        seed: int,
    ) -> None:
        self.waiting = waiting
        self.done: set[int] = set()
        self.accepted: dict[int, tuple[TextSpan, ...]] = {}
        self.blind = self.places = 0
        self.remarks: list[str] = []
        self._corpus, self._policy, self._rules, self._rng, self._seed = corpus, policy, rules, rng, seed
        self._seconds, self._opened = 0.0, 0
        self._guesses: dict[int, tuple[TextSpan, ...]] = {}
        self._left: dict[int, Left] = {}
        for number in waiting:
            self._judge(number, ())
        self.points: list[Point] = []
        self.note()

    def do(self, shown: dict[int, Shown]) -> dict[int, Done]:
        """Have tasks labelled."""
        made = {}
        for number, seen in shown.items():
            text = self._corpus.texts[number]
            done = made[number] = work_on(
                text.text, text.spans, seen, look=self._policy.look, habits=self._rules.habits,
                costs=self._rules.costs, rng=self._rng,
            )  # fmt: skip
            self._judge(number, done.spans, seen.spans)
            self._seconds += done.seconds
            self._opened += 1
            self.places += done.places
            self.blind += not seen.prelabelled
        self.done |= shown.keys()
        self.waiting = [number for number in self.waiting if number not in shown]
        return made

    def guess(self, guesses: dict[int, tuple[TextSpan, ...]]) -> None:
        """Note what tasks that wait would be left with."""
        self._guesses |= guesses
        for number, spans in guesses.items():
            self._judge(number, spans)

    def accept(self, accepted: dict[int, tuple[TextSpan, ...]]) -> None:
        """Note which tasks are accepted now; what was taken back waits again."""
        for number in self.accepted.keys() - accepted.keys():
            self.waiting.append(number)
            self.done.discard(number)
            self._judge(number, self._guesses.get(number, ()))
        for number, spans in accepted.items():
            self._judge(number, spans, spans)
        self.accepted = accepted
        self.done |= accepted.keys()
        self.waiting = [number for number in self.waiting if number not in accepted]

    def note(self) -> None:
        """Keep where the work stands."""
        now = quality(self._left.values())
        self.points.append(Point(self._seconds, self._opened, len(self.accepted), now.loss, now.whole))

    def played(self, project: PlayedProject | None = None) -> Played:
        """Return the campaign."""
        texts = self._corpus.texts
        wrong = sum(set(spans) != set(texts[number].spans) for number, spans in self.accepted.items())
        return Played(
            policy=self._policy.name,
            seed=self._seed,
            tasks=len(texts),
            max_error=self._rules.max_error,
            by_hand=sum(by_hand(each.text, each.spans, self._rules.costs) for each in texts.values()),
            blind=self.blind if self._policy.prelabels else 0,
            places=self.places,
            trained=0 if project is None else project.trained(),
            accepted_wrong=wrong / len(texts),
            promised=quality(self._left.values()).tasks,
            points=tuple(self.points),
            decisions=() if project is None else tuple(
                {"labels": each.labels, "level": each.level, "bound": each.bound, "withdrawn": each.withdrawn_why or ""}
                for each in project.decisions()
            ),
            remarks=tuple(dict.fromkeys(self.remarks)),
        )  # fmt: skip

    def _judge(self, number: int, final: Sequence[TextSpan], shown: Sequence[TextSpan] = ()) -> None:
        self._left[number] = errors_left(self._corpus.texts[number].spans, final, shown=shown)


class _Turns:
    """People and loop take turns until nothing waits."""

    def __init__(self, work: _Work, project: PlayedProject, rules: Rules, policy: Policy) -> None:
        self._work, self._project, self._rules, self._policy = work, project, rules, policy
        self._wish = Wish(rules.max_error)
        self._model = ""
        self._asked = 0  # tasks that were done when acceptance was last asked for
        self._refused = False

    def run(self, tell: Callable[[int], object]) -> None:
        work = self._work
        self._look()
        while work.waiting:
            batch = self._next()
            made = work.do(self._project.show(batch))
            self._project.submit({number: (done.spans, done.seconds) for number, done in made.items()})
            self._look()
            if self._policy.accepts and work.waiting:
                self._accept()
            work.note()
            tell(len(work.done))

    def _look(self) -> None:
        """See whether another model serves: what waits is left with its guesses then, and the queue is made again."""
        model = self._project.view().model.hash
        if model == self._model:
            return
        self._model = model
        self._work.guess(self._project.guesses(self._work.waiting))
        if self._policy.sequence is not Way.RANDOM:
            self._project.publish()

    def _next(self) -> list[int]:
        work, size = self._work, self._rules.step
        if self._policy.sequence is Way.RANDOM or self._project.view().target.blank:
            return work.waiting[:size]
        chosen: list[int] = []
        if self._policy.accepts and self._wants_evidence():
            # Where a model is still to be learnt, its labels are needed as much as the evidence.
            part = size // 2 if self._policy.learns else size
            chosen = [int(each.task) for each in self._project.queue(part, evidence_first=True) if each.blind]
        if self._policy.sequence is Way.QUEUE:
            rest = [int(each.task) for each in self._project.queue(size + len(chosen))]
        else:
            rest = self._least_confident()
        chosen += [number for number in rest if number not in chosen][: size - len(chosen)]
        if not chosen:
            raise BackendError("expected the queue to hold every task that waits, got none of them")
        return chosen

    def _least_confident(self) -> list[int]:
        """Return the queue's tasks by their probability; blind ones, of which nothing is known, keep their places."""
        queue = self._project.queue(len(self._work.waiting))
        known = iter(sorted((each for each in queue if not each.blind), key=lambda each: each.probability or 0.0))
        return [int(each.task if each.blind else next(known).task) for each in queue]

    def _wants_evidence(self) -> bool:
        standing = self._project.standing(self._wish)
        return standing is not None and standing.labels < standing.next and standing.decision is None

    def _accept(self) -> None:
        """Ask for a decision when one is due, and again for what has become sure meanwhile."""
        standing = self._project.standing(self._wish)
        if standing is None:
            return
        done = len(self._work.done)
        decided = standing.decision is not None and standing.decision.level is not None
        again = decided and not self._refused and done - self._asked >= AGAIN * self._size()
        if standing.count is None and not again:
            self._work.accept(self._project.accepted())  # something may have been taken back
            return
        said = self._project.accept(self._wish)
        if "refused" in said:
            self._refused = True
            self._work.remarks.append(str(said["refused"]))
        self._asked = done
        self._work.accept(self._project.accepted())

    def _size(self) -> int:
        return len(self._work.done) + len(self._work.waiting)
