"""AxoNN's published group bandwidths: where the graph explains them, and where it does not."""

from __future__ import annotations

import pytest

from topologies.machine_files import load_machine
from validation.axonn_groups import MEASURED_ON, GroupBandwidth, axonn_group_bandwidths
from validation.seeds.other_figures import groups


def rows(name: str) -> dict[tuple[int, int], GroupBandwidth]:
    found = axonn_group_bandwidths(load_machine(name))
    return {(row.inner, row.size): row for row in found}


def test_on_perlmutter_one_efficiency_explains_every_row() -> None:
    # Published from 20 to 225 GB/s; all are 75 to 80 % of what links and NICs allow.
    shares = [row.share for row in rows("perlmutter").values()]
    assert len(shares) == 9
    assert min(shares) >= 0.75
    assert max(shares) <= 0.80


@pytest.mark.parametrize(("machine", "share"), [("frontier", 0.4), ("frontier:no-gdr", 0.955)])
def test_on_frontier_one_efficiency_explains_every_row_across_nodes(
    machine: str, share: float
) -> None:
    """With GPUDirect 40 % of what the NICs have; staged in the hosts' memory it is all of it."""
    across = [row.share for (inner, size), row in rows(machine).items() if inner * size > 8]
    assert across == pytest.approx([share] * 10, rel=0.01)


def test_rows_are_shown_for_the_environment_of_the_authors_jobs() -> None:
    assert MEASURED_ON == ("perlmutter", "frontier:no-gdr")
    found = {name: published for name, published, *_ in groups()}
    assert len(found) == 25
    assert found["axonn-group-frontier-16-ranks-8-apart"] == 5


def test_on_frontier_the_graph_explains_the_order_in_the_node_but_not_one_efficiency() -> None:
    inside = {key: row for key, row in rows("frontier").items() if key[0] * key[1] <= 8}
    # Two and eight GCDs have rings over four links, four of them over two: 129, 52, 135 GB/s.
    nominal = {key: row.nominal_bytes_per_s / 1e9 for key, row in inside.items()}
    assert nominal == {(1, 2): 200, (1, 4): 100, (1, 8): 200, (2, 2): 50, (2, 4): 100, (4, 2): 50}
    shares = sorted(round(row.share, 2) for row in inside.values())
    assert shares == [0.52, 0.65, 0.68, 0.72, 0.72, 1.0]


@pytest.mark.parametrize(("group", "published"), [((1, 2), 129), ((2, 2), 50), ((4, 2), 36)])
def test_on_frontier_two_gcds_reach_what_the_links_between_them_were_measured_to(
    group: tuple[int, int], published: float
) -> None:
    assert rows("frontier")[group].reached_bytes_per_s / 1e9 == pytest.approx(published, rel=0.01)


def test_machines_without_published_rows_have_none() -> None:
    assert axonn_group_bandwidths(load_machine("alps")) == []
