"""The order of samples: every window once in each epoch, known at any step without the earlier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.data.batches import batch_of
from executor.data.dataset import CYCLE, mixture_of
from executor.data.shuffle import shuffled
from executor.data.sources import check_data, dataset_of, mixed, read_data
from executor.errors import TextError
from tests.executor.data.megatron import write_indexed
from tests.messages import names
from workload.gpt import find_model

TINY = replace(find_model("tiny-30k"), sequence=4, vocab=1000)


@given(count=st.integers(1, 300), key=st.text(max_size=3))
def test_a_shuffle_is_a_permutation(count: int, key: str) -> None:
    assert sorted(shuffled(np.arange(count), count, key).tolist()) == list(range(count))


def test_a_shuffle_differs_by_its_key_and_leaves_few_in_place() -> None:
    one, two = (shuffled(np.arange(10_000), 10_000, key) for key in ("0/0/0", "0/0/1"))
    for found, other in ((one, np.arange(10_000)), (two, np.arange(10_000)), (one, two)):
        assert (found == other).sum() < 10  # of a random one 1 is expected
    # Neighbours part: their distance is a third of all on average.
    assert np.abs(np.diff(one)).mean() == pytest.approx(10_000 / 3, rel=0.05)


def test_a_shuffle_of_more_than_memory_holds_works_out_what_is_asked_for() -> None:
    found = shuffled(np.arange(1000), 10**13, "0")
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0
    assert found.max() < 10**13


def test_every_window_comes_once_in_each_epoch_in_an_order_of_its_own(tmp_path: Path) -> None:
    data = dataset_of(write_indexed(tmp_path / "a", [list(range(41))]))  # 10 windows
    batches = [batch_of(data, TINY, 5, step, seed=3)[:, 0].tolist() for step in range(6)]
    epochs = [batches[at] + batches[at + 1] for at in (0, 2, 4)]
    assert all(sorted(epoch) == list(range(0, 40, 4)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_step_is_known_without_the_steps_before_and_whatever_the_batch(tmp_path: Path) -> None:
    data = dataset_of(write_indexed(tmp_path / "a", [list(range(41))]))
    one_by_one = torch.cat([batch_of(data, TINY, 1, step, seed=0) for step in range(24)])
    assert torch.equal(
        torch.cat([batch_of(data, TINY, 8, step, 0) for step in (0, 1, 2)]), one_by_one
    )
    assert torch.equal(batch_of(data, TINY, 8, 2, 0), one_by_one[16:])
    assert not torch.equal(batch_of(data, TINY, 8, 2, 1), one_by_one[16:])


@pytest.mark.parametrize("examples", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_a_mixture_has_each_share_at_every_point_to_less_than_the_number_of_sources(
    examples: int,
) -> None:
    drawn = given(st.lists(st.integers(1, 99), min_size=2, max_size=5))
    settings(max_examples=examples)(drawn(has_each_share))()


def has_each_share(weights: list[int]) -> None:
    """Each source's share at every point, and its texts in order."""
    mixture = mixture_of(weights)
    shares = np.asarray(weights) / sum(weights)
    taken = np.cumsum(mixture.order[:, None] == np.arange(len(weights)), axis=0)
    expected = np.arange(1, CYCLE + 1)[:, None] * shares
    assert np.abs(taken - expected).max() < len(weights)
    assert mixture.counts.tolist() == taken[-1].tolist()
    own = [mixture.before[mixture.order == at].tolist() for at in range(len(weights))]
    assert own == [list(range(count)) for count in mixture.counts]


def test_a_mixture_takes_from_each_source_in_its_share_and_its_own_order(tmp_path: Path) -> None:
    a = write_indexed(tmp_path / "a", [list(range(41))])
    b = write_indexed(tmp_path / "b", [list(range(500, 541))])
    data = dataset_of(f"{a}=0.75,{b}=0.25")
    firsts = batch_of(data, TINY, 40, 0, seed=0)[:, 0].tolist()
    of_a, of_b = ([n for n in firsts if (n < 500) == is_a] for is_a in (True, False))
    assert (len(of_a), len(of_b)) == (30, 10)
    assert sorted(of_a) == sorted([*range(0, 40, 4)] * 3)
    assert sorted(of_b) == list(range(500, 540, 4))
    assert max(at for at, n in enumerate(firsts) if n >= 500) > 30
    again = dataset_of(f"0.75 {a} 0.25 {b}")
    assert torch.equal(batch_of(again, TINY, 40, 3, 0), batch_of(data, TINY, 40, 3, 0))


def test_texts_mix_with_indexed_files_as_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(200, 221)))
    a = write_indexed(tmp_path / "a", [list(range(21))])
    data = dataset_of(f"{a}=1,{tmp_path}/text=1")
    check_data(data, TINY)
    assert sorted(batch_of(data, TINY, 10, 0, 0)[:, 0].tolist()) == [
        0,
        4,
        8,
        12,
        16,
        *range(200, 220, 4),
    ]
    with pytest.raises(TextError, check=names("vocab=100", "256")):
        check_data(data, replace(TINY, vocab=100))


def test_a_file_whose_name_looks_like_a_mixture_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=1").write_bytes(bytes(10))
    assert mixed("a=1") is None
    assert len(read_data("a=1")) == 10  # type: ignore[arg-type]
    assert mixed("b=1") == [("b", 1.0)]
    assert mixed("some text") is None is mixed("a=b")


@pytest.mark.parametrize("text", ["a=1,b=0", "a=1,b=1e-5", "a=1e400,b=1"])
def test_a_weight_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(TextError, check=names("--data")):
        mixed(text)


def test_an_evaluation_takes_the_first_windows_of_all_sources_in_turn(tmp_path: Path) -> None:
    a = write_indexed(tmp_path / "a", [list(range(13))])  # 3 windows
    b = write_indexed(tmp_path / "b", [list(range(500, 541))])
    data = dataset_of(f"{a}=1,{b}=1")
    assert data.first_windows(TINY, 0, 2)[:, 0].tolist() == [0, 4]
    assert data.first_windows(TINY, 2, 4)[:, 0].tolist() == [8, 500, 504, 508]
