"""The history of a project's order is as long as its changes, and says what all sightings together say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import sqlalchemy as sa

from backend.domain.streams import Order, Sighting, order_history, orders_at
from backend.store import Store
from backend.store.projects import ensure_project
from backend.store.sampling import add_sighting, load_history
from backend.store.tables import SamplingPeriod

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def test_slots_amid_their_like_are_not_read_and_not_missed(store: Store) -> None:
    rng = np.random.default_rng(7)
    order = Order.UNIFORM
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        for minute in sorted(rng.choice(3_000, size=400, replace=False).tolist()):
            if rng.random() < 0.05:
                order = Order(rng.choice([each.value for each in Order if each is not Order.SHUFFLED]))
            add_sighting(session, project, order=order, at=BEGIN + timedelta(minutes=minute), source="test")
    with store.read() as session:
        rows = session.execute(sa.select(SamplingPeriod)).scalars().all()
        every = [Sighting(at, Order(row.order)) for row in rows for at in (row.first_at, row.last_at)]
        found = load_history(session, project)
    known = order_history(every, since=found.since)
    assert len(found.sightings) < len(set(every)) / 2
    for minute in range(-10, 3_010):
        moment = BEGIN + timedelta(minutes=minute, seconds=30 * (minute % 2))
        assert orders_at(found, moment) == orders_at(known, moment)
