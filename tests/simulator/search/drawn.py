"""Small problems to search, drawn by hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import Phase, reject, settings
from hypothesis import strategies as st

from simulator.search.problem import SearchProblem
from simulator.search.space import Space, space_of
from topologies.machine_files import load_machine, with_settings
from workload.errors import PlanCannotRunError
from workload.gpt import GPT

NAMES = ("perlmutter", "frontier", "alps", "lumi", "dgx-a100", "dgx-h100", "kestrel")
MACHINES = {name: load_machine(name) for name in NAMES}
MACHINES["busy"] = with_settings(MACHINES["frontier"], {"network.background": "0.2"})
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking would take minutes
DRAWN = settings(deadline=None, phases=UNSHRUNK)
FIELDS: dict[str, list[Any]] = {
    "reshard": [True, False],
    "offload": ["none", "optimizer", "update"],
    "loss_chunks": [4, 48],
    "moments": ["bf16", "fp8", "int8"],
    "master": ["remainders"],
    "optimizer": ["adamw", "sgd-momentum", "muon"],
    "attention": ["flash", "unfused"],
    "gradients": ["fp32", "bf16"],
    "precision": ["bf16", "fp32"],
    "zero": [3],
    "cp": [2, 4],
    "context_kind": ["all_gather", "ulysses"],
    "pp": [2],
    "shard": [2],
    "order": ["tp-dp-pp", "pp-dp-z-tp-y"],
}


MIXTURE = GPT.of(
    name="mixture",
    layers=6,
    hidden=512,
    heads=8,
    ffn=2048,
    sequence=1024,
    vocab=1000,
    kv_heads=4,
    activation="swiglu",
    positions="rope",
    experts=8,
    topk=2,
    expert_ffn=512,
    dense_layers=1,
)
LONG = 8192  # tokens, of which each may be split over two or four ranks


@st.composite
def models(draw: st.DrawFn, layers: tuple[int, ...] = (2, 4, 12, 24, 36)) -> GPT:
    """Models of all kinds, none of them large."""
    heads = draw(st.sampled_from([2, 4, 6, 8]))
    norm, biases = draw(st.sampled_from(["layernorm", "rmsnorm"])), draw(st.booleans())
    gpt = GPT.of(
        name="drawn",
        layers=draw(st.sampled_from(layers)),
        hidden=heads * draw(st.sampled_from([16, 64, 128, 512])),
        heads=heads,
        ffn=heads * 512,
        sequence=draw(st.sampled_from([256, 2048])),
        vocab=draw(st.sampled_from([1000, 50257, 128256])),
        tied=draw(st.booleans()),
        activation=draw(st.sampled_from(["gelu", "swiglu"])),
        norm=norm,
        qk_norm=norm == "rmsnorm" and draw(st.booleans()),
        positions=draw(st.sampled_from(["learned", "rope"])),
        biases=biases,
        qkv_bias=not biases and draw(st.booleans()),
        kv_heads=draw(st.sampled_from([0, 2])),
        dropout=draw(st.sampled_from([0.0, 0.1])),
    )
    plain = gpt.changed(kv_heads=0, biases=False, positions="rope", qkv_bias=False, qk_norm=False)
    latent = plain.changed(kv_rank=96, q_rank=64, rope_width=32)
    depths, shared = draw(st.sampled_from([1, 2])), draw(st.booleans())
    further = gpt.changed(positions="rope", dropout=0.0, mtp_layers=depths, mtp_shared=shared)
    return draw(st.sampled_from([gpt, gpt, gpt, latent, further]))


@st.composite
def mixtures(draw: st.DrawFn, layers: tuple[int, ...] = (2, 3, 5, 7, 12, 13, 27, 40)) -> GPT:
    """Models some or all of whose layers have experts."""
    gpt = draw(models(layers=layers))
    few, every = draw(st.sampled_from([0, 1, 1, 3])), draw(st.sampled_from([1, 1, 2, 3]))
    return gpt.changed(
        biases=False,
        activation="swiglu",
        experts=draw(st.sampled_from([4, 8])),
        topk=2,
        expert_ffn=draw(st.sampled_from([128, 1024])),
        shared_ffn=draw(st.sampled_from([0, 512])),
        dense_layers=min(few, gpt.layers - 1),
        expert_every=1 if gpt.mtp.layers else every,
        capacity=draw(st.sampled_from([0.0, 1.25])),
    )


@st.composite
def spaces(
    draw: st.DrawFn,
    devices: tuple[int, ...] = (4, 6, 8, 12, 16, 24, 32, 48, 64),
    gpts: st.SearchStrategy[GPT] = models(),  # noqa: B008
) -> Space:
    """The plans of some model on some devices."""
    keys = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=2))
    fixed = {key: draw(st.sampled_from(FIELDS[key])) for key in sorted(keys)}
    if fixed.get("precision") == "fp32":
        fixed.pop("gradients", None)
    if {"moments", "master"} & keys or fixed.get("offload") == "update":
        fixed = {key: fixed[key] for key in fixed if key not in ("precision", "optimizer")}
    if {"moments", "master"} & keys:
        fixed.pop("offload", None)
    gpt, batch = draw(gpts), draw(st.sampled_from([8, 24, 64, 128]))
    gpt = replace(gpt, sequence=LONG) if draw(st.booleans()) else gpt
    problem = SearchProblem(gpt, draw(st.sampled_from(devices)), batch, fixed)
    try:
        return space_of(problem)
    except PlanCannotRunError:
        reject()


@st.composite
def few_plans(draw: st.DrawFn, most: int = 60) -> SearchProblem:
    """A question with some plans, but not many: some fields of the plan are fixed."""
    gpt, devices = draw(models(layers=(2, 4, 12))), draw(st.sampled_from([2, 4, 8]))
    fixed: dict[str, Any] = {}
    values: dict[str, list[Any]] = {
        "overlap": [(), ("oar", "ors", "oag", "dp", "pp"), ("oag", "dp")],
        "schedule": ["1f1b", "zb-h1"],
        "recompute": ["none", "full"],
        "zero": [0, 1, 2, 3],
        "vpp": [1],
        "tp": [1, 2],
        "z": [1, 2],
        "order": ["tp-dp-pp"],
    }
    order = draw(st.permutations(sorted(values)))
    for key in ("none yet", *order):
        if key in values:
            fixed[key] = draw(st.sampled_from(values[key]))
        problem = SearchProblem(gpt, devices, draw(st.sampled_from([4, 8])), fixed)
        try:
            if 1 < space_of(problem).plans <= most:
                return problem
        except PlanCannotRunError:
            break
    return SearchProblem(gpt, 2, 4, {"pp": 1, "overlap": (), "recompute": "none"})
