"""A row as what we predict: a model, a plan and the kernels of its framework."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.costs.stack import SoftwareStack
from topologies.build import family_of, gpu_of
from topologies.errors import SimgptError
from topologies.files.units import quantity
from topologies.machine import Machine
from validation.published.dialect import Dialect, dialect_of
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun
from workload.gpt import GPT
from workload.grid import USUAL
from workload.passes.stack import Habits
from workload.plan import Plan

NO_PLAN, UNSUPPORTED = "no plan", "unsupported"
# From a model, a machine, a number of devices, a batch, and the keys of a plan that the framework
# or the row fixes, the best plan: what stands for a row that says no more.
FindPlan = Callable[[GPT, Machine, int, int, Mapping[str, Any]], Plan]


@dataclass(frozen=True, slots=True)
class Case:
    """What stands for a row. `scale` is the row's batch over that of the plan, where they differ,
    `remarks` say what was taken for what, and `searched` that the plan is the best one found."""

    gpt: GPT
    plan: Plan
    kernels: SoftwareStack
    dialect: str
    scale: float
    remarks: tuple[str, ...]
    searched: bool = False

    @property
    def whole(self) -> GPT:
        """The model with its whole sequence, of which a device may get a part."""
        return replace(self.gpt, sequence=int(self.gpt.sequence * self.kernels.attention_work))


class NoCaseError(SimgptError):
    """A row that nothing can stand for; `status` says in a word why not."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def case_of(run: PublishedRun, find_plan: FindPlan | None = None) -> Case:
    """The case of a row, or a NoCaseError with the reason why there is none.

    Where a row's plan is unknown, `find_plan` finds one, if it is given.
    """
    try:
        return _case_as_published(run)
    except NoCaseError as error:
        if find_plan is None or error.status != NO_PLAN:
            raise
        return _case_searched(run, find_plan, str(error))


def _case_searched(run: PublishedRun, find_plan: FindPlan, why: str) -> Case:
    dialect, remarks = dialect_of(run), [f"{why}: the best plan found"]
    gpt, devices = _gpt(run, dialect, remarks), _needed(run, "gpus_total")
    batch = _needed(run, "global_batch_seqs")
    fixed = _fixed(run, dialect, gpt)
    plan = find_plan(gpt, machine_of(run), devices, batch, fixed)
    kernels = _kernels(dialect, run.text("gpu"), fp8=run.text("precision") == "fp8", cp=1)
    return Case(gpt, plan, kernels, dialect.name, 1.0, tuple(remarks), searched=True)


def _fixed(run: PublishedRun, dialect: Dialect, gpt: GPT) -> dict[str, Any]:
    """What a search keeps of the plan: all that the row or its dialect says, and that a framework
    has no y and no z unless its dialect says so."""
    keys = _plan_keys(run, dialect, gpt, run.whole("tp") or 1)
    fixed = {"schedule": "1f1b", "interleave": run.whole("vpp") or 1, "sequence_parallel": False}
    fixed |= {"order": USUAL}  # as all these frameworks number their ranks
    fixed |= {} if dialect.has_grid else {"y": 1, "z": 1}
    columns = {"tp": "x", "pp": "pipe", "dp": "data", "micro_batch": "micro_batch"}
    known = {key: run.whole(column) for column, key in columns.items()}
    return fixed | {key: size for key, size in known.items() if size} | keys


def _case_as_published(run: PublishedRun) -> Case:
    dialect = dialect_of(run)
    remarks: list[str] = []
    gpt = _gpt(run, dialect, remarks)
    degrees = _degrees(run)
    plan, scale = _plan(run, dialect, gpt, degrees, remarks)
    cp, fp8 = degrees["cp"], run.text("precision") == "fp8"
    kernels = _kernels(dialect, run.text("gpu"), fp8=fp8, cp=cp)
    if fp8:
        remarks.append("fp8: the layers' linears at the device's fp8 rate, operands cast before")
    if cp > 1:
        gpt = replace(gpt, sequence=gpt.sequence // cp)
        remarks.append(f"cp={cp} as data parallelism over parts of sequences; key exchange hidden")
    if plan.attention == "unfused":
        kernels = _with_softmax(kernels, dialect.kernels["softmax"], gpt, plan)
    return Case(gpt, plan, kernels, dialect.name, scale, tuple(remarks))


def _kernels(dialect: Dialect, gpu: str, *, fp8: bool, cp: int) -> SoftwareStack:
    """What stands in the dialect by GPU is that of the row's GPU, or else of its family."""

    def of_gpu(key: str) -> Any:
        table = dialect.kernels.get(key, {})
        return table.get(str(gpu_of(gpu)["name"]), table.get(family_of(gpu)))

    shares, host = of_gpu("attention"), of_gpu("host")
    return SoftwareStack(
        host_s=0.0 if host is None else quantity(host, "s"),
        attention=None if shares is None else (shares[0], shares[1]),
        attention_work=float(cp),
        pace=of_gpu("pace") or dialect.kernels["usual_pace"],
        habits=Habits(
            fused=tuple(dialect.kernels["fused"]),
            fp8=fp8,
            passes=tuple(dialect.kernels.get("passes", {}).items()),
            payloads=tuple(dialect.kernels.get("fp8_payloads" if fp8 else "payloads", {}).items()),
            launches=tuple(dialect.kernels.get("launches", {}).items()),
            scatter_gather=bool(dialect.plan["scatter_gather"]),
            launches_of_slice=int(dialect.kernels.get("launches_of_slice", 0)),
        ),
    )


def _with_softmax(
    kernels: SoftwareStack, softmax: Mapping[str, Any], gpt: GPT, plan: Plan
) -> SoftwareStack:
    """The kernels with the fused softmax of causal squares, or with one in steps where that does
    not serve: it wants heads in multiples, those of all sequences of a micro-batch together, and
    short sequences."""
    heads, habits = plan.micro_batch * gpt.heads // plan.x, kernels.habits
    if not heads % softmax["multiple"] and gpt.sequence <= softmax["longest"]:
        passes, launches = softmax["fused"], {}
    else:
        passes, launches = softmax["steps"], softmax["launches"]
    habits = replace(
        habits,
        passes=(*habits.passes, *passes.items()),
        launches=(*habits.launches, *launches.items()),
    )
    return replace(kernels, habits=habits)


def _gpt(run: PublishedRun, dialect: Dialect, remarks: list[str]) -> GPT:
    layers, hidden, heads = (_needed(run, key) for key in ("layers", "hidden", "heads"))
    keys = dict(dialect.model)
    multiple, times = keys.pop("vocab_multiple"), keys.pop("vocab_times_x")
    rounded = math.floor if keys.pop("vocab_cut") else math.ceil
    default = keys.pop("vocab")
    vocab = run.whole("vocab")
    if vocab is None:
        remarks.append(f"vocabulary unknown, taken as {default}")
    multiple *= (run.whole("tp") or 1) if times else 1
    vocab = rounded((vocab or default) / multiple) * multiple
    width = re.search(r"head_dim (\d+)", run.text("notes"))
    kv_heads = run.whole("kv_heads") or heads
    return GPT(
        name=run.text("model") or run.id,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=0 if kv_heads == heads else kv_heads,
        head_width=int(width[1]) if width and int(width[1]) * heads != hidden else 0,
        ffn=run.whole("ffn_hidden") or 4 * hidden,
        sequence=_needed(run, "seq_len"),
        vocab=vocab,
        source=run.source,
        **keys,
    )


def _needed(run: PublishedRun, column: str) -> int:
    value = run.whole(column)
    if value is None:
        raise NoCaseError(NO_PLAN, f"{column} is unknown")
    return value


def _degrees(run: PublishedRun) -> dict[str, int]:
    """The row's parallel degrees; those that are not given are 1, but the last one follows."""
    gpus = _needed(run, "gpus_total")
    if run.text("gx"):
        grid = {axis: run.whole(f"g{axis}") or 1 for axis in "xyz"}
        degrees = {**grid, "pp": run.whole("pp") or 1, "cp": 1}
    else:
        degrees = {"x": _needed(run, "tp"), "y": 1, "z": 1, "pp": _needed(run, "pp")}
        degrees["cp"] = run.whole("cp") or 1
    used = math.prod(degrees.values())
    degrees["data"] = run.whole("dp") or gpus // used
    if used * degrees["data"] != gpus:
        raise NoCaseError(NO_PLAN, f"the degrees' product is not gpus_total = {gpus}")
    return degrees


def _plan(
    run: PublishedRun, dialect: Dialect, gpt: GPT, degrees: dict[str, int], remarks: list[str]
) -> tuple[Plan, float]:
    batch, micro = _needed(run, "global_batch_seqs"), _needed(run, "micro_batch")
    cp, data = degrees["cp"], degrees["data"] * degrees["cp"]
    if gpt.sequence % cp:
        raise NoCaseError(UNSUPPORTED, f"cp={cp} does not divide the sequence of {gpt.sequence}")
    cells = degrees["z"] * degrees["data"]
    per_cell = batch / cells
    count = max(math.ceil(per_cell / micro), 1)
    scale = 1.0
    if per_cell != count * micro:
        scale = per_cell / (count * micro)
        remarks.append(f"{per_cell:g} sequences of a rank are not a multiple of {micro}")
    keys = _plan_keys(run, dialect, gpt, degrees["x"])
    interleave = run.whole("vpp") or 1
    pipe = degrees["pp"]
    if "stage_layers" not in keys and (uneven := _stage_layers(gpt.layers, pipe * interleave)):
        keys |= uneven
    if keys.get("ends_as_layers") and (gpt.layers + 2) % (pipe * interleave):
        keys["ends_as_layers"] = False
        keys |= _stage_layers(gpt.layers, pipe * interleave)
    plan = Plan(
        x=degrees["x"],
        y=degrees["y"],
        z=degrees["z"],
        data=data,
        pipe=pipe,
        interleave=interleave if pipe > 1 else 1,
        batch=count * micro * degrees["z"] * data,
        micro_batch=micro,
        **keys,
    )
    return plan, scale


def _plan_keys(run: PublishedRun, dialect: Dialect, gpt: GPT, x: int) -> dict[str, Any]:
    """The plan's switches: the notes' come before the columns', those before the dialect's."""
    keys = dict(dialect.plan)
    selective, _ = keys.pop("selective"), keys.pop("scatter_gather")
    if run.text("zero_stage"):
        keys["zero"] = run.whole("zero_stage")
    if run.text("recompute"):
        keys["recompute"] = run.text("recompute")
    if keys["recompute"] == "selective":
        layers = max(gpt.layers // (run.whole("pp") or 1) // (run.whole("vpp") or 1), 1)
        keys["recompute"] = f"full:{max(layers // 2, 1)}" if selective == "half" else selective
    if run.text("flash_attention"):
        keys["attention"] = "unfused" if run.text("flash_attention") == "no" else "flash"
    keys["sequence_parallel"] = run.text("sequence_parallel") == "yes" and x > 1
    keys |= dialect.noted
    shard = re.search(r"zero1 group =? ?(\d+)|shard (\d+)", run.text("notes"))
    if shard and keys["zero"]:
        keys["shard"] = int(shard[1] or shard[2])
        if keys["shard"] == (run.whole("dp") or 0):
            keys["shard"] = 0
    if run.text("precision") == "fp32":
        keys |= {"precision": "fp32", "gradients": "fp32"}
    return {**keys, "overlap": tuple(keys["overlap"])}


def _stage_layers(layers: int, chunks: int) -> dict[str, Any]:
    """How layers that do not divide are spread: the ends count as layers where that divides."""
    each, more = divmod(layers, chunks)
    if not more:
        return {}
    if (layers + 2) % chunks == 0:
        return {"ends_as_layers": True}
    return {"stage_layers": tuple(each + (number < more) for number in range(chunks))}
