"""A step of one stage, simulated whole: all its layers, and micro-batches until they repeat.

The program of a few layers is lowered, all others are copies of these (`workload/repetition.py`);
every op of every layer is simulated. A step of many micro-batches is simulated with a few; the rest
is left out by the rule of `steady_state.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from simulator.attribution.breakdown import breakdown, last_to_end
from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import times_of
from simulator.engine.steady_state import Followed, Unit, followed, periods, recurring_unit
from simulator.engine.stream_graph import StreamGraph
from simulator.engine.streams import RankTask
from simulator.ranks.classes import Fabric, RankClasses, classes_of, until_consistent
from simulator.result import StepResult
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.lowering import lower, lower_again
from workload.lowering.recompute import layers_are_alike
from workload.memory import MemoryUse, use_of
from workload.naming import op_name
from workload.op import HOST, NONE, ROLES, Op, layer_part
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.plan import Plan
from workload.program import Program
from workload.repetition import IrregularError, OpTable, check_repeats, repeated
from workload.sizes.arrays import Bytes, Counts, Ticks
from workload.structure import Structure, memoized_on

LAYERS = 12  # the fewest in which collectives that are issued ahead do not reach both ends
MOST_OPS = 400_000  # lowered; some 400 MB and a quarter of a minute
MICRO_BATCHES = 7  # four units, and an end on either side
Lowered = Callable[[GPT, Plan], Program]


def simulate_step(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    fold: bool = True,
    forms: Forms = PLAIN,
    habits: Habits = NO_HABITS,
) -> StepResult:
    """Simulate a step; without `fold` its program is lowered whole, and nothing is left out."""
    lowered = partial(_lowered, forms=forms, habits=habits)
    count = min(MICRO_BATCHES, plan.micro_batches) if fold else plan.micro_batches
    while True:
        whole = _whole_program(lowered, gpt, plan.with_micro_batches(count), fold=fold)
        step = _attempt(whole, plan.micro_batches, costs, fabric)
        if step is not None:
            return step
        count = _more(whole, plan.micro_batches)


def _more(whole: WholeProgram, micro_batches: int) -> int:
    """How many micro-batches to simulate next: twice as many, or all where nothing recurs."""
    count = whole.program.plan.micro_batches
    recurs = whole.unit is not None or count == MICRO_BATCHES
    more = min(2 * count, micro_batches) if recurs else micro_batches
    ops = len(whole.program.ops) * more // count
    if ops > MOST_OPS:
        raise PlanCannotRunError(
            f"micro-batches do not come to repeat themselves here: some {ops:,} ops would be "
            f"simulated, more than {MOST_OPS:,}, for the first {more:,} of {micro_batches:,} "
            "micro-batches; give a larger micro_batch or a smaller batch"
        )
    return more


def step_bytes(gpt: GPT, plan: Plan) -> int:
    """What a device of a plan without a pipeline has in memory at most, to the byte, before
    anything is known of its time."""
    count = min(MICRO_BATCHES, plan.micro_batches)
    few = _whole_program(_lowered, gpt, plan.with_micro_batches(count))
    while few.unit is None and count < plan.micro_batches:
        count = _more(few, plan.micro_batches)
        few = _whole_program(_lowered, gpt, plan.with_micro_batches(count))
    return few.peak(plan.micro_batches - count).total_bytes


def _lowered(gpt: GPT, plan: Plan, *, forms: Forms = PLAIN, habits: Habits = NO_HABITS) -> Program:
    if forms:
        return lower(gpt, plan, forms=forms, habits=habits)
    return lower_again(gpt, plan, habits=habits)


def _whole_program(lowered: Lowered, gpt: GPT, plan: Plan, *, fold: bool = True) -> WholeProgram:
    """The program of all layers, from one of a few layers where these repeat."""
    kept = LAYERS
    while fold and 2 * kept < gpt.layers and layers_are_alike(plan, gpt.layers):
        few, more = (lowered(replace(gpt, layers=n), plan) for n in (kept, kept + 1))
        try:
            table = check_repeats(few.outline, more.outline)
            repeated(few.outline, gpt.layers)
        except IrregularError:
            kept *= 2
            continue
        return _grown(few, more, table, gpt.layers)
    program = lowered(gpt, plan)
    changes = program.outline.changes(program.nbytes)
    persistent = program.outline.persistent(program.nbytes)
    return WholeProgram(program, gpt.layers, program.ops, *changes, persistent)


def _grown(few: Program, more: Program, table: OpTable, layers: int) -> WholeProgram:
    """The program of all layers. What is of no layer grows evenly from `few` to `more`, by one
    layer: sums over all parameters, and what is freed behind them."""
    further = layers - few.gpt.layers
    (alone,) = np.nonzero(table.layer == NONE)
    ops = list(few.ops)
    born, gone = few.outline.changes(few.nbytes)
    born_more, gone_more = more.outline.changes(more.nbytes)
    base = table.base[alone]
    for changes, longer in ((born, born_more), (gone, gone_more)):
        changes[:, base] += further * (longer[:, alone] - changes[:, base])
    for at, other in zip(base.tolist(), alone.tolist(), strict=True):
        one, two = few.ops[at], more.ops[other]
        if (one.nbytes, one.flops) != (two.nbytes, two.flops):
            ops[at] = replace(
                one,
                nbytes=one.nbytes + further * (two.nbytes - one.nbytes),
                flops=one.flops + further * (two.flops - one.flops),
            )
    persistent = few.outline.persistent(few.nbytes)
    growth = more.outline.persistent(more.nbytes) - persistent
    return WholeProgram(few, layers, ops, born, gone, persistent + further * growth)


@dataclass(frozen=True)
class WholeProgram:
    """A program of many layers, given by one of a few, and the sizes that these ops have in it.

    `born` and `gone` are the bytes by role, (roles, ops of the few), that come with each op and are
    free after it; `persistent` those that are there all the time.
    """

    program: Program
    layers: int
    ops: Sequence[Op]
    born: Bytes
    gone: Bytes
    persistent: Bytes

    @property
    def table(self) -> OpTable:
        """All ops."""
        return repeated(self.program.outline, self.layers)

    @property
    def graph(self) -> StreamGraph:
        """Their stream graph."""
        return graph_of_layers(self.program.outline, self.layers)

    @property
    def unit(self) -> Unit | None:
        """The ops that recur from micro-batch to micro-batch."""
        return unit_of_layers(self.program.outline, self.layers)

    @property
    def recurring(self) -> Unit:
        """The same, where it is known that there are such."""
        assert self.unit is not None, "micro-batches are left out where they recur"
        return self.unit

    def copies(self, omitted: int) -> Counts:
        """How many ops each stands for, with so many micro-batches left out."""
        copies = np.ones(len(self.table.base), dtype=np.int64)
        if omitted:
            copies[self.recurring.copied] += omitted
        return copies

    def peak(self, omitted: int) -> MemoryUse:
        """The first op with the most memory in use, with so many micro-batches left out."""
        base = self.table.base
        born, gone = self.born[:, base], self.gone[:, base]
        levels = (born - gone).cumsum(axis=1) + gone + self.persistent[:, None]
        stop = levels.shape[1]
        if omitted:
            stop, own = self.recurring.stop, self.recurring.copied
            levels[:, stop:] += omitted * (born - gone)[:, own].sum(axis=1, keepdims=True)
            levels += omitted * self._inputs[:, None]
        at = int((levels.sum(axis=0) - levels[ROLES.index(HOST)]).argmax())
        return use_of(levels[:, at], self._name(at, omitted if at >= stop else 0))

    @cached_property
    def _inputs(self) -> Bytes:
        """Bytes by role that are there all the time for each micro-batch: its tokens."""
        level = np.zeros(len(ROLES), dtype=np.int64)
        pairs = zip(self.program.outline.buffers.values(), self.program.nbytes, strict=True)
        for buffer, nbytes in pairs:
            if buffer.persistent and buffer.micro_batch == 0:
                level[ROLES.index(buffer.role)] += nbytes
        return level

    def _name(self, at: int, later: int) -> str:
        """The name of an op, so many micro-batches later."""
        op = self.program.ops[int(self.table.base[at])]
        micro_batch, part, again, label = op.identity
        layer = int(self.table.layer[at])
        return op_name(
            micro_batch + later if micro_batch >= 0 else NONE,
            layer_part(layer) if layer >= 0 else part,
            label,
            recomputed=again,
        )


@memoized_on
def graph_of_layers(outline: Structure, layers: int) -> StreamGraph:
    """The stream graph of a program of many layers, from the outline of one of a few."""
    table = repeated(outline, layers)
    base = table.base.tolist()
    return StreamGraph([outline.ops[at] for at in base], table.wait_lists, base)


@memoized_on
def unit_of_layers(outline: Structure, layers: int) -> Unit | None:
    """What recurs from micro-batch to micro-batch in such a program."""
    return recurring_unit(repeated(outline, layers))


@memoized_on
def pairs_of_layers(outline: Structure, layers: int) -> Followed:
    """What ops of such a program follow."""
    return followed(repeated(outline, layers), graph_of_layers(outline, layers).streams)


def _attempt(
    whole: WholeProgram, micro_batches: int, costs: ComputeCosts, fabric: Fabric
) -> StepResult | None:
    return until_consistent(
        lambda contended: classes_of([whole.program], fabric, contended=contended),
        lambda network: _simulated(whole, micro_batches, costs, network),
    )


def _simulated(
    whole: WholeProgram, micro_batches: int, costs: ComputeCosts, network: RankClasses
) -> StepResult | None:
    """The step; None if it is not known how the micro-batches that were left out repeat."""
    omitted = micro_batches - whole.program.plan.micro_batches
    tasks = [RankTask(number, whole.graph, whole.ops) for number in range(len(network.ranks))]
    start, end = times_of(tasks, costs, network)
    delay = np.zeros((len(tasks), 1), dtype=np.int64)
    if omitted:
        each = _periods(whole, start, end)
        if each is None:
            return None
        delay = omitted * each
    if (delay != delay[0]).any():
        late = times_of(_begun_later(tasks, delay), costs, network)
        begun = slice(0, whole.recurring.last)
        if not all(
            (a + delay == b)[:, begun].all() for a, b in zip((start, end), late, strict=True)
        ):
            return None
        start, end = (times - delay for times in late)
    last, copies = last_to_end(end + delay), whole.copies(omitted)
    parts_ticks = breakdown(whole.graph, start[last], end[last], copies)
    over = int((end + delay).max())
    assert sum(parts_ticks.values()) == over, "every tick of a step goes to something"
    return _step(whole, copies, len(network.ranks), parts_ticks, whole.peak(omitted))


def _begun_later(tasks: Sequence[RankTask], delay: Ticks) -> list[RankTask]:
    return [
        replace(task, floors={stream[0]: int(ticks) for stream in task.graph.streams})
        for task, (ticks,) in zip(tasks, delay, strict=True)
    ]


def _periods(whole: WholeProgram, start: Ticks, end: Ticks) -> Ticks | None:
    if whole.unit is None:
        return None
    outline, layers = whole.program.outline, whole.layers
    pairs, collectives = pairs_of_layers(outline, layers), whole.graph.collectives
    return periods(whole.unit, pairs, collectives, start, end)


def _step(
    whole: WholeProgram,
    copies: Counts,
    rank_classes: int,
    parts_ticks: dict[str, int],
    memory: MemoryUse,
) -> StepResult:
    ranks = whole.program.plan.grid.ranks
    counts = np.zeros(len(whole.ops), dtype=np.int64)
    np.add.at(counts, whole.table.base, copies)
    comm_bytes: dict[str, int] = {}
    model = recomputed = 0
    for op, count in zip(whole.ops, counts.tolist(), strict=True):
        if op.communicates:
            comm_bytes[op.time_key] = comm_bytes.get(op.time_key, 0) + count * op.nbytes
        flops = count * (op.flops * ranks // op.replicas)
        if op.is_recomputed:
            recomputed += flops
        else:
            model += flops
    return StepResult(
        parts_ticks=parts_ticks,
        memory=memory,
        ops=int(counts.sum()),
        comm_bytes=comm_bytes,
        model_flops=model,
        hardware_flops=model + recomputed,
        rank_classes=rank_classes,
        micro_batches=whole.program.plan.micro_batches,
    )
