"""AxoNN's published group bandwidths: where the graph explains them, and where it does not."""

from __future__ import annotations

import pytest

from topologies.machine_files import load_machine
from validation.axonn_groups import GroupBandwidth, axonn_group_bandwidths


def rows(name: str) -> dict[tuple[int, int], GroupBandwidth]:
    found = axonn_group_bandwidths(load_machine(name))
    return {(row.inner, row.size): row for row in found}


def test_on_perlmutter_one_efficiency_explains_every_row() -> None:
    # Published from 20 to 225 GB/s; all are 75 to 80 % of what links and NICs allow.
    shares = [row.share for row in rows("perlmutter").values()]
    assert len(shares) == 9
    assert min(shares) >= 0.75
    assert max(shares) <= 0.80


def test_on_frontier_one_efficiency_explains_every_row_across_nodes() -> None:
    across = [row.share for (inner, size), row in rows("frontier").items() if inner * size > 8]
    assert across == pytest.approx([0.4] * 10)


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
