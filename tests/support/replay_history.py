"""A made-up Label Studio: people work on a project, and every action leaves the webhook that the real server sends.

Deterministic by its seed. `World.deliveries` is the whole truth in order; `deliver_badly` is what a bad day makes of
it; `World.healing` is what `sync` puts into the inbox afterwards.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)
PROJECT = 31
CONFIG = """<View>
  <Labels name="label" toName="text">
    <Label value="Person" predicted_values="PER"/><Label value="LOC"/><Label value="ORG"/><Label value="Planet"/>
  </Labels>
  <Labels name="flag" toName="text"><Label value="Needs review" background="#ffb000"/></Labels>
  <Text name="text" value="$text" showLabels="true"/>
</View>"""

PEOPLE = ["Anna Berg", "Giulia Conti", "O'Neil", "José", "Ωmega Κώστας", "王芳", "Lars", "Nadia Petrova 🎉"]
PLACES = ["Wien", "New York", "Torino", "Boston", "São Paulo", "Saturn", "Nowhere"]
FIRMS = ["Acme", "Nordbank AG", "Contoso", "the Red Cross", "Blue Ltd."]
SHAPES = [
    "{p} lives in {l}.",
    "Yesterday {p} left {f} and moved to {l}, \r\nas {q} had said.",
    "{f} opens an office in {l} 👍🏽.",
    "  {p} e {q} lavorano per {f} a {l}.",
    "nothing to see here, number {n}",
    "{p}, {q}, {f}: {l}",
    "In {l} wohnt seit {n} Jahren {p}.",
]


@dataclass(frozen=True)
class Delivery:
    """A webhook, when it was sent, and whether losing it would lose what nothing else can tell."""

    at: datetime
    payload: dict[str, Any]
    protected: bool = False


def wire(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class World:
    """The server: tasks, annotations, the project's sampling, a clock, and what was sent."""

    def __init__(self, seed: int, *, tasks: int) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.sampling = "Uniform sampling"
        self.project_changed = START
        self.tasks: dict[int, dict[str, Any]] = {}
        self.annotations: dict[int, dict[str, Any]] = {}
        self.ever_tasks: set[int] = set()
        self.ever_annotations: set[int] = set()
        self.next_annotation = 1
        self.deliveries: list[Delivery] = []
        self.send("PROJECT_UPDATED", protected=True)
        self.create_tasks(tasks)
        self.first = {number: task["data"]["text"] for number, task in self.tasks.items()}

    def live(self, steps: int) -> None:
        """Let people work: more annotations than anything else, and every other kind of action now and then."""
        changes = {
            steps // 4: "Sequential sampling",
            steps // 3: "Uniform sampling",
            2 * steps // 3: "Uncertainty sampling",
            5 * steps // 6: "Uniform sampling",
        }
        actions = [
            (self.annotate, 60),
            (self.edit, 14),
            (self.skip, 5),
            (self.delete_annotations, 6),
            (self.copy_predictions, 3),
            (self.delete_tasks, 3),
            (lambda: self.create_tasks(self.random.randint(1, 3)), 4),
            (lambda: self.send("START_TRAINING"), 1),
            (lambda: self.send("PROJECT_BAPTISED", planet={"id": 3}), 1),
        ]
        for step in range(steps):
            self.now += timedelta(seconds=self.random.uniform(2, 20))
            if step in changes:
                self.change_sampling(changes[step])
            [action] = self.random.choices([each for each, _ in actions], [weight for _, weight in actions])
            action()

    def create_tasks(self, count: int) -> None:
        made = []
        for _ in range(count):
            number = max(self.tasks, default=0) + 1  # as SQLite does it: the number of a deleted last task comes again
            self.tasks[number] = self.task(number, self.text())
            self.ever_tasks.add(number)
            made.append(copy.deepcopy(self.tasks[number]))
        self.send("TASKS_CREATED", tasks=made)

    def annotate(self) -> None:
        number = self.pick_task()
        if number is not None:
            self.add_annotation(number, self.regions(number))

    def skip(self) -> None:
        number = self.pick_task()
        if number is not None:
            self.add_annotation(number, self.regions(number), was_cancelled=True)

    def edit(self) -> None:
        if self.annotations:
            annotation = self.annotations[self.random.choice(sorted(self.annotations))]
            annotation["result"] = self.regions(annotation["task"])
            annotation["ground_truth"] = self.random.random() < 0.2
            annotation["was_cancelled"] = self.random.random() < 0.1
            annotation |= {"updated_at": wire(self.now), "updated_by": 2, "lead_time": 4.5}
            self.send_annotation("ANNOTATION_UPDATED", annotation)

    def copy_predictions(self) -> None:
        """Create annotations from predictions: a list, and nobody looked."""
        made = []
        for _ in range(self.random.randint(1, 4)):
            number = self.pick_task()
            if number is not None:
                made.append(self.annotation(number, self.regions(number), lead_time=None, updated_by=None))
                made[-1]["parent_prediction"] = 900 + number
        if made:
            tasks = [copy.deepcopy(self.tasks[each["task"]]) for each in made]
            self.send("ANNOTATIONS_CREATED", annotation=copy.deepcopy(made), task=tasks)

    def delete_annotations(self) -> None:
        gone = self.random.sample(sorted(self.annotations), min(len(self.annotations), self.random.randint(1, 2)))
        for number in gone:
            del self.annotations[number]
        if gone:
            self.send("ANNOTATIONS_DELETED", annotations=[{"id": number} for number in gone])

    def delete_tasks(self) -> None:
        last = max(self.tasks)
        gone = {last} if self.random.random() < 0.5 else set(self.random.sample(sorted(self.tasks), 2))
        for number in gone:
            del self.tasks[number]
        for number in [each for each, annotation in self.annotations.items() if annotation["task"] in gone]:
            del self.annotations[number]
        self.send("TASKS_DELETED", tasks=[{"id": number} for number in sorted(gone)])

    def change_sampling(self, sampling: str) -> None:
        # What was last sent under the old order, and the word of the change, tell when it was.
        self.deliveries[-1] = replace(self.deliveries[-1], protected=True)
        spoken = [i for i, each in enumerate(self.deliveries) if "annotation" in each.payload]
        self.deliveries[spoken[-1]] = replace(self.deliveries[spoken[-1]], protected=True)
        self.sampling, self.project_changed = sampling, self.now
        self.send("PROJECT_UPDATED", protected=True)
        self.now += timedelta(seconds=1)

    def healing(self) -> list[dict[str, Any]]:
        """What a poll of the whole server tells: every annotation there is, and what there is no longer."""
        at = self.now + timedelta(minutes=5)
        note = {"surespan": {"source": "sync", "at": wire(at)}, "project": self.project()}
        told: list[dict[str, Any]] = []
        for annotation in self.annotations.values():
            seen = copy.deepcopy(annotation) | {"parent_prediction": None}  # predictions were refreshed meanwhile
            task = copy.deepcopy(self.tasks[annotation["task"]])
            told.append({"action": "ANNOTATION_UPDATED", "annotation": seen, "task": task, **note})
        gone = sorted(self.ever_annotations - set(self.annotations))
        told.append({"action": "ANNOTATIONS_DELETED", "annotations": [{"id": each} for each in gone], **note})
        lost = sorted(self.ever_tasks - set(self.tasks))
        told.append({"action": "TASKS_DELETED", "tasks": [{"id": each} for each in lost], **note})
        self.random.shuffle(told)
        return told

    def send(self, action: str, *, protected: bool = False, **content: Any) -> None:
        payload = {"action": action, "project": self.project(), **content}
        self.deliveries.append(Delivery(self.now, payload, protected))

    def send_annotation(self, action: str, annotation: dict[str, Any]) -> None:
        task = copy.deepcopy(self.tasks[annotation["task"]])
        self.send(action, annotation=copy.deepcopy(annotation), task=task)

    def add_annotation(self, task: int, regions: list[dict[str, Any]], **more: Any) -> None:
        self.send_annotation("ANNOTATION_CREATED", self.annotation(task, regions, **more))

    def annotation(self, task: int, regions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        # Now and then the number of a deleted last annotation comes again.
        again = self.random.random() < 0.05 and self.annotations
        number = max(self.annotations) + 1 if again else self.next_annotation
        self.next_annotation = max(self.next_annotation, number + 1)
        made = {
            "id": number,
            "result": regions,
            "was_cancelled": False,
            "ground_truth": False,
            "created_at": wire(self.now),
            "updated_at": wire(self.now + timedelta(microseconds=29)),
            "lead_time": round(self.random.uniform(1, 30), 3),
            "prediction": {},
            "result_count": len(regions),
            "unique_id": f"00000000-0000-4000-8000-{self.random.getrandbits(48):012x}",
            "import_id": None,
            "bulk_created": False,
            "task": task,
            "project": PROJECT,
            "completed_by": self.random.randint(1, 3),
            "updated_by": 1,
            "parent_prediction": None,
            "parent_annotation": None,
            **more,
        }
        self.annotations[number] = made
        self.ever_annotations.add(number)
        return made

    def regions(self, task: int) -> list[dict[str, Any]]:
        """Some names of the text, mostly right; now and then a doubtful mark, an overlap, a cut word, nothing."""
        text = self.tasks[task]["data"]["text"]
        found = []
        for label, names in (("Person", PEOPLE), ("LOC", PLACES), ("ORG", FIRMS)):
            for name in names:
                start = text.find(name)
                if start >= 0 and self.random.random() < 0.85:
                    kind = label if self.random.random() < 0.93 else self.random.choice(["ORG", "LOC", "Planet"])
                    end = start + len(name) - (self.random.random() < 0.03)
                    found += self.region(text, start, end, kind)
        return [] if self.random.random() < 0.05 else found

    def region(self, text: str, start: int, end: int, label: str) -> list[dict[str, Any]]:
        number = f"r{start}{label}"
        origin = self.random.choice(["manual", "prediction", "prediction-changed"])
        common = {"id": number, "to_name": "text", "type": "labels", "origin": origin}
        value = {"start": start, "end": end, "text": text[start:end]}
        flag = common | {"from_name": "flag", "value": value | {"labels": ["Needs review"]}}
        said = common | {"from_name": "label", "value": value | {"labels": [label]}}
        drawn = self.random.random()
        return [flag] if drawn < 0.03 else [flag, said] if drawn < 0.2 else [said]

    def pick_task(self) -> int | None:
        return self.random.choice(sorted(self.tasks)) if self.tasks else None

    def text(self) -> str:
        choose = self.random.choice
        shape = choose(SHAPES)
        n = self.random.randint(1, 60)
        return shape.format(p=choose(PEOPLE), q=choose(PEOPLE), l=choose(PLACES), f=choose(FIRMS), n=n)

    def task(self, number: int, text: str) -> dict[str, Any]:
        return {
            "id": number,
            "data": {"text": text},
            "meta": {},
            "created_at": wire(self.now),
            "updated_at": wire(self.now),
            "is_labeled": False,
            "total_annotations": 0,
            "total_predictions": 5,
            "project": PROJECT,
        }

    def project(self) -> dict[str, Any]:
        return {
            "id": PROJECT,
            "title": "Letters",
            "label_config": CONFIG,
            "sampling": self.sampling,
            "created_at": wire(START - timedelta(days=1)),
            "updated_at": wire(self.project_changed),
        }


MALFORMED: list[dict[str, Any]] = [
    {"action": "ANNOTATION_CREATED"},
    {"action": "ANNOTATION_CREATED", "annotation": None, "task": None, "project": {"id": PROJECT}},
    {"action": "ANNOTATION_CREATED", "annotation": [7, None, {"id": "x"}], "task": 3, "project": {"id": PROJECT}},
    {"action": "ANNOTATIONS_DELETED", "annotations": {"id": 1}, "project": {"id": PROJECT}},
    {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 1}, {"id": None}], "project": {"id": PROJECT}},
    {"action": "TASKS_DELETED", "tasks": [1, 2], "project": {"id": PROJECT}},
    {"action": "TASKS_CREATED", "tasks": "all", "project": {"id": PROJECT}},
    {"action": "PROJECT_UPDATED", "project": []},
    {"action": "START_TRAINING", "project": {"id": "one"}},
]


def deliver_badly(world: World, seed: int) -> list[Delivery]:
    """Lose a fifth, repeat a seventh, mix up what is near, bring some very late, and add what cannot be read.

    The time of arrival is kept close to the time of sending where it matters, which is for deletions: Label Studio
    gives up on a delivery after a second.
    """
    chance = random.Random(seed)
    placed: list[tuple[float, Delivery]] = []
    for place, each in enumerate(world.deliveries):
        if not each.protected and chance.random() < 0.2:
            continue
        times = 1 + (chance.random() < 0.15)
        for _ in range(times):
            late = chance.random() < 0.05
            shift = chance.uniform(0, len(world.deliveries)) if late else chance.uniform(-20, 20)
            placed.append((place + shift, replace(each, at=each.at + timedelta(seconds=chance.random()))))
        if chance.random() < 0.05:
            placed.append((place + chance.random(), Delivery(each.at, chance.choice(MALFORMED))))
        if "annotation" in each.payload and chance.random() < 0.02:
            placed.append((place + chance.random(), Delivery(each.at, _spoilt(each.payload, chance))))
    return [each for _, each in sorted(placed, key=lambda item: item[0])]


def _spoilt(payload: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """An event that looks right until its middle."""
    spoilt = copy.deepcopy(payload)
    annotation = spoilt["annotation"][0] if isinstance(spoilt["annotation"], list) else spoilt["annotation"]
    annotation["updated_at"] = wire(START + timedelta(days=30))  # it would win over everything, if it were believed
    broken = chance.choice(["result", "offset", "id", "labels"])
    if broken == "result":
        annotation["result"] = "none"
    elif broken == "id":
        annotation["id"] = None
    else:
        value = {"start": 5, "end": 2, "labels": ["LOC"]} if broken == "offset" else {"start": 0, "end": 1, "labels": 3}
        annotation["result"] = [{"from_name": "label", "type": "labels", "value": value}]
    return spoilt
