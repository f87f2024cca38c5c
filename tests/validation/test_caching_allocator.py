"""The rules of PyTorch's caching allocator on sequences worked out by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from validation.memory.caching_allocator import KIB, MIB, CachingAllocator, allocator_after
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan import Plan


def test_small_blocks_share_a_segment_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    for number in range(3):
        allocator.take(f"b{number}", 700 * KIB)
    assert (allocator.allocated, allocator.reserved) == (2100 * KIB, 4 * MIB)


def test_sizes_are_rounded_up_to_512_bytes() -> None:
    allocator = CachingAllocator()
    allocator.take("a", 1)
    allocator.take("b", 513)
    allocator.take("empty", 0)
    assert allocator.allocated == 512 + 1024 + 512


def test_blocks_of_one_to_ten_mebibytes_come_out_of_segments_of_twenty() -> None:
    allocator = CachingAllocator()
    allocator.take("a", 6 * MIB)
    allocator.take("b", 6 * MIB)
    allocator.take("c", 6 * MIB)
    assert allocator.reserved == 20 * MIB
    allocator.take("d", 6 * MIB)
    assert allocator.reserved == 40 * MIB


def test_larger_blocks_have_segments_of_their_own_in_steps_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    allocator.take("a", 11 * MIB)
    assert (allocator.allocated, allocator.reserved) == (12 * MIB, 12 * MIB)
    allocator.take("b", 33 * MIB + 1)
    assert allocator.reserved == 12 * MIB + 34 * MIB


def test_a_large_block_is_not_split_for_a_rest_of_up_to_a_mebibyte() -> None:
    allocator = CachingAllocator()
    allocator.take("a", 12 * MIB)
    allocator.give_back("a")
    allocator.take("b", 11 * MIB)
    assert allocator.allocated == 12 * MIB
    allocator.give_back("b")
    allocator.take("c", 11 * MIB - 512)
    assert allocator.allocated == 11 * MIB - 512


def test_the_smallest_free_block_that_is_large_enough_serves() -> None:
    allocator = CachingAllocator()
    for name, size in (("a", 40), ("b", 20), ("c", 30)):
        allocator.take(name, size * MIB)
    for name in "abc":
        allocator.give_back(name)
    allocator.take("d", 19 * MIB)
    allocator.take("e", 40 * MIB)
    assert allocator.reserved == 90 * MIB


def test_free_neighbours_join() -> None:
    allocator = CachingAllocator()
    for name in "abc":
        allocator.take(name, 6 * MIB)
    allocator.give_back("a")
    allocator.give_back("c")
    allocator.give_back("b")
    allocator.take("whole", 20 * MIB)
    assert allocator.reserved == 20 * MIB


SIZES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 64 * MIB)), min_size=1, max_size=60)


@given(SIZES)
def test_no_more_is_given_out_than_is_reserved(events: list[tuple[int, int]]) -> None:
    allocator, held = CachingAllocator(), dict[str, int]()
    for slot, nbytes in events:
        name = f"b{slot}"
        if name in held:
            allocator.give_back(name)
            del held[name]
        else:
            allocator.take(name, nbytes)
            held[name] = nbytes
        assert sum(held.values()) <= allocator.allocated <= allocator.reserved
    for name in list(held):
        allocator.give_back(name)
    assert allocator.allocated == 0
    reserved = allocator.reserved
    free = sum(entry[0] for pool in allocator._free.values() for entry in pool)
    assert free == reserved


def test_a_step_gives_out_what_its_program_says_and_a_second_one_reserves_little_more() -> None:
    plan = Plan(batch=8, mbs=2)
    program = lower(find_model("tiny-2m"), plan)
    allocator = allocator_after(program)
    peak = program.peak.total_bytes
    assert peak <= allocator.most_allocated <= peak + 512 * len(program.buffers)
    assert allocator.most_reserved <= 1.5 * peak + 20 * MIB
    assert allocator_after(program, 3).most_reserved == allocator.most_reserved
