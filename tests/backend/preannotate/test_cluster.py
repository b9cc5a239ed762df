"""A real Ray cluster of two nodes on this machine, one of which is killed midway."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from backend.preannotate.cluster import RayCluster, RayMissing
from backend.preannotate.engines import make_engine

if TYPE_CHECKING:
    from tests.support.recipes import Known


def test_without_ray_the_command_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayMissing, match=r"pip install 'surespan\[ray\]', or use --engine local"):
        make_engine("ray", 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_killed_midway_costs_nothing(known: Known) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'surespan[ray]'): --engine ray untested")
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - as above

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        groups = [*known.groups(25)] * 4
        made = RayCluster(2).run(known.recipe, iter(groups), own=known.predictor)
        found = [next(made), next(made)]
        cluster.remove_node(other, allow_graceful=False)
        assert not other.any_processes_alive()
        found += list(made)
    finally:
        ray.shutdown()
        cluster.shutdown()
    spans = [[None if each is None else each.best.spans for each in group] for group in found]
    expected = [[None if each is None else each.best.spans for each in group] for group in known.expected(25)] * 4
    assert spans == expected, "complete, in order, nothing twice"
    assert ray.is_initialized() is False
