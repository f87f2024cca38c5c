"""A row as what we predict: a model, a plan and the kernels of its framework."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from simulator.explain.nearest_fit import (
    DOUBTED,
    does_fit,
    fitting_change,
    share_of_memory,
    text_of_change,
)
from simulator.stacks.job import Job, job_of
from simulator.stacks.stage_split import SPLIT
from topologies.errors import SimgptError
from topologies.machine import Machine
from topologies.records import record
from validation.moe.expert_columns import (
    expert_words,
    overlap_words,
    own_fields,
    recipe_words,
)
from validation.published.dialect import Dialect, dialect_of
from validation.published.run_machine import machine_of
from validation.published.runs import NARROW, PublishedRun
from workload.gpt import GPT
from workload.grid import USUAL
from workload.plan import Plan

GRID = {"tp": "x", "y": "y", "z": "z"}  # an axis by its letter in columns
NO_PLAN, UNSUPPORTED = "no plan", "unsupported"
OUT_OF_MEMORY = "oom"  # the status of a row whose run did not fit
# From a model, a machine, a number of devices, a batch, and the keys of a plan that the framework
# or the row fixes, the best plan: what stands for a row that says no more.
FindPlan = Callable[[GPT, Machine, int, int, Mapping[str, Any]], Plan]


@record
class Case:
    """What stands for a row: the job that `simgpt predict` makes of these `words` of a plan, and
    the model that it is asked of, with whole sequences and the stack's vocabulary.

    `scale` is the row's batch over that of the plan, where they differ, `remarks` say what was
    taken for what, `searched` that the plan is the best one found, and `fits` whether it fits into
    a device as it is read.
    """

    asked: GPT
    words: Mapping[str, Any]
    job: Job
    scale: float
    remarks: tuple[str, ...]
    searched: bool = False
    fits: bool = True


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
    gpt = dialect.stack.model(gpt, run.whole("tp") or 1)
    plan = find_plan(gpt, machine_of(run), devices, batch, fixed)
    return Case(gpt, {}, Job(gpt, plan, dialect.stack), 1.0, tuple(remarks), searched=True)


def _fixed(run: PublishedRun, dialect: Dialect, gpt: GPT) -> dict[str, Any]:
    """What a search keeps of the plan: all that the row or its dialect says, and that a framework
    has no y and no z unless its dialect says so."""
    keys = _plan_keys(run, dialect, gpt, run.whole("tp") or 1)
    keys.pop("precision", None)
    fixed = {"schedule": "1f1b", "vpp": run.whole("vpp") or 1, "sp": False}
    fixed |= {"order": USUAL}  # as all these frameworks number their ranks
    fixed |= {} if dialect.has_grid else {"y": 1, "z": 1}
    columns = {"tp": "tp", "pp": "pp", "dp": "dp", "mbs": "micro_batch"}
    known = {key: run.whole(column) for key, column in columns.items()}
    return fixed | {key: size for key, size in known.items() if size} | keys


def case_as_read(run: PublishedRun) -> Case:
    """The case of a row as it is read, whether it fits into memory or not: what its plan needs of
    memory, which takes seconds to count, is not asked."""
    dialect = dialect_of(run)
    remarks: list[str] = []
    gpt = _gpt(run, dialect, remarks)
    words, scale = _plan_words(run, dialect, gpt, remarks)
    job = job_of(gpt, words, dialect.stack)
    gpt = dialect.stack.model(gpt, job.plan.tp)
    return Case(gpt, words, job, scale, tuple(remarks))


def _case_as_published(run: PublishedRun) -> Case:
    """What a row says. A run that ran is believed unless its plan is predicted to need far more
    memory than there is: then the nearest plan that fits stands for it."""
    read, machine = case_as_read(run), machine_of(run)
    words, job, remarks = read.words, read.job, list(read.remarks)
    doubted = share_of_memory(job, machine) > DOUBTED and run.text("status") != OUT_OF_MEMORY
    if doubted and (change := fitting_change(job, machine)):
        remarks.append(f"it ran, but does not fit as it is read: {text_of_change(change)}")
        words = {**words, **change}
        job = job_of(read.asked, words, dialect_of(run).stack)
    fits = does_fit(read.job, machine)
    return Case(read.asked, words, job, read.scale, (*remarks, *job.remarks), fits=fits)


def _gpt(run: PublishedRun, dialect: Dialect, remarks: list[str]) -> GPT:
    layers, hidden, heads = (_needed(run, key) for key in ("layers", "hidden", "heads"))
    keys = dict(dialect.model)
    default = keys.pop("vocab")
    vocab = run.whole("vocab")
    if vocab is None:
        remarks.append(f"vocabulary unknown, taken as {default}")
    noted = re.search(r"head_dim (\d+)", run.text("notes"))
    width = run.whole("head_width") or (int(noted[1]) if noted else 0)
    kv_heads = run.whole("kv_heads") or heads
    own = own_fields(run)
    if width and width * heads != hidden:
        own["head_width"] = width
    return GPT.of(
        name=run.text("model") or run.id,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=0 if kv_heads == heads else kv_heads,
        ffn=run.whole("ffn_hidden") or 4 * hidden,
        sequence=_needed(run, "seq_len"),
        vocab=vocab or default,
        source=run.source,
        **(keys | own),
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
        degrees = {axis: run.whole(f"g{word}") or 1 for axis, word in GRID.items()}
        degrees |= {"pp": run.whole("pp") or 1, "cp": 1}
    else:
        degrees = {"tp": _needed(run, "tp"), "y": 1, "z": 1, "pp": _needed(run, "pp")}
        degrees["cp"] = run.whole("cp") or 1
    used = math.prod(degrees.values())
    degrees["dp"] = run.whole("dp") or gpus // used
    if used * degrees["dp"] != gpus:
        raise NoCaseError(NO_PLAN, f"the degrees' product is not gpus_total = {gpus}")
    return degrees


def _plan_words(
    run: PublishedRun, dialect: Dialect, gpt: GPT, remarks: list[str]
) -> tuple[dict[str, Any], float]:
    """The words of the row's plan, and its batch over theirs."""
    degrees = _degrees(run)
    if gpt.moe.experts:
        _needed(run, "ep")
    batch, micro = _needed(run, "global_batch_seqs"), _needed(run, "micro_batch")
    pp, cp, dp = degrees["pp"], degrees["cp"], degrees["dp"]
    if gpt.sequence % cp:
        raise NoCaseError(UNSUPPORTED, f"cp={cp} does not divide the sequence of {gpt.sequence}")
    per_cell = batch / (degrees["z"] * dp)
    count = max(math.ceil(per_cell / micro), 1)
    scale = per_cell / (count * micro)
    if scale != 1:
        remarks.append(f"{per_cell:g} sequences of a rank are not a multiple of {micro}")
    keys = _plan_keys(run, dialect, gpt, degrees["tp"])
    vpp = run.whole("vpp") or 1
    uneven = _stage_layers(gpt.layers, pp * vpp)
    if "stage_layers" not in keys and uneven and SPLIT not in dialect.stack.plan:
        keys |= uneven
    if keys.get("ends_as_layers") and (gpt.layers + 2) % (pp * vpp):
        keys["ends_as_layers"] = False
        keys |= _stage_layers(gpt.layers, pp * vpp)
    sizes = {**degrees, "vpp": vpp if pp > 1 else 1}
    sizes |= {"batch": count * micro * degrees["z"] * dp, "mbs": micro}
    sizes |= expert_words(run, degrees["tp"])
    keys |= overlap_words(run, keys)
    return {**sizes, **keys}, scale


def _plan_keys(run: PublishedRun, dialect: Dialect, gpt: GPT, tp: int) -> dict[str, Any]:
    """The plan's switches: the notes' come before the columns', those before the stack's."""
    stack = dialect.stack
    layers = max(gpt.layers // (run.whole("pp") or 1) // (run.whole("vpp") or 1), 1)
    own = {"tp": tp} | ({"zero": run.whole("zero_stage")} if run.text("zero_stage") else {})
    keys = stack.plan_defaults(layers, own) | {key: own[key] for key in own if key != "tp"}
    if run.text("recompute"):
        keys["recompute"] = stack.recompute(run.text("recompute"))
    if run.text("flash_attention"):
        keys["attention"] = "unfused" if run.text("flash_attention") == "no" else "flash"
    for key in ("gradients", "optimizer"):
        if run.text(key):
            keys[key] = run.text(key)
    if run.text("moments") and run.text("precision") == "bf16":  # elsewhere no plan has others
        keys["moments"] = run.text("moments")
    keys["sp"] = run.text("sequence_parallel") == "yes" and tp > 1
    keys |= dialect.noted
    if keys["zero"] and (shard := _shard(run)):
        keys["shard"] = 0 if shard == (run.whole("dp") or 0) else shard
    if run.text("precision") == "fp32":
        keys |= {"precision": "fp32", "gradients": "fp32"}
    if run.text("precision") in NARROW:
        keys["recipe"] = run.text("precision")
    return keys | recipe_words(run)


def _shard(run: PublishedRun) -> int:
    """The ranks that ZeRO shards over, as the notes say it; 0 where they do not. Hybrid sharding
    without a number is within nodes (PyTorch's HYBRID_SHARD, pytorch/pytorch,
    torch/distributed/fsdp/api.py, ShardingStrategy)."""
    notes = run.text("notes")
    if said := re.search(r"zero1 group =? ?(\d+)|shard (\d+)", notes):
        return int(said[1] or said[2])
    return run.whole("gpus_per_node") or 0 if re.search(r"\bHSDP\b", notes) else 0


def _stage_layers(layers: int, chunks: int) -> dict[str, Any]:
    """How layers that do not divide are spread: the ends count as layers where that divides."""
    each, more = divmod(layers, chunks)
    if not more:
        return {}
    if (layers + 2) % chunks == 0:
        return {"ends_as_layers": True}
    return {"stage_layers": tuple(each + (number < more) for number in range(chunks))}
