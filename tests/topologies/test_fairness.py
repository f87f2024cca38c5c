"""Max-min fairness, by hand and by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.routing.max_min import max_min_rates


def solve(crossings: list[list[int]], capacity: list[float]) -> list[float]:
    flow = np.array([f for f, links in enumerate(crossings) for _ in links], dtype=np.int64)
    link = np.array([link for links in crossings for link in links], dtype=np.int64)
    rates = max_min_rates(flow, link, np.array(capacity), len(crossings))
    return [float(rate) for rate in rates]


def test_a_flow_held_back_elsewhere_leaves_its_share_to_the_others() -> None:
    # Link 0 (10) holds flows 0, 1 and 2 to 10/3; link 1 (20) leaves flow 3 the rest.
    assert solve([[0], [0], [0, 1], [1]], [10, 20]) == pytest.approx([10 / 3] * 3 + [50 / 3])


def test_a_flow_that_crosses_a_link_twice_uses_it_twice() -> None:
    assert solve([[0, 0]], [10]) == [5]


LINKS = 5
NETWORKS = st.tuples(
    st.lists(
        st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=4, unique=True),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.floats(0.5, 100), min_size=LINKS, max_size=LINKS),
)


@given(NETWORKS)
def test_no_link_carries_more_than_it_can(network: tuple[list[list[int]], list[float]]) -> None:
    crossings, capacity = network
    rates = solve(crossings, capacity)
    for link in range(LINKS):
        load = sum(rate for rate, links in zip(rates, crossings, strict=True) if link in links)
        assert load <= capacity[link] * (1 + 1e-6)


@given(NETWORKS)
def test_every_flow_has_a_full_link_on_which_none_is_faster(
    network: tuple[list[list[int]], list[float]],
) -> None:
    crossings, capacity = network
    rates = solve(crossings, capacity)
    for rate, links in zip(rates, crossings, strict=True):
        assert any(is_bottleneck(link, rate, rates, crossings, capacity[link]) for link in links)


def is_bottleneck(
    link: int, rate: float, rates: list[float], crossings: list[list[int]], capacity: float
) -> bool:
    users = [other for other, links in zip(rates, crossings, strict=True) if link in links]
    return sum(users) >= capacity * (1 - 1e-6) and max(users) <= rate * (1 + 1e-6)
