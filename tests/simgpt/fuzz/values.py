"""What inputs are drawn from: hostile texts and numbers, and documents that are right."""

from __future__ import annotations

import math
from typing import Any

MARK = "zq7"  # stands in what a page must never run
EVIL = [
    f"<script>alert('{MARK}')</script>",
    f'"><img src=x onerror="{MARK}()">',
    f"</script><b id={MARK}>",
    f"<!--{MARK}",
    f"javascript:{MARK}()",
    f"'-{MARK}-'",
    "=cmd|'/C calc'!A0",
    "+1+1",
    "@SUM(1)",
    "$\\frac{1}{0}$",
    "$x",
    "{{7*7}}{% for %}",
    "[bold]x[/nope]",
    "\x1b[31mred\x07",
    "\x1b[2J\x1b]0;owned\x07",
    "a\u202eb",
    "\u0000nul",
    "\ud800",
    "\U0001f600" * 20,
    "a\nb",
    "x" * 5000,
    "../../etc/passwd",
    "%s%n{0}",
    "",
    "</style><svg onload=1>",
    "]]>",
    "&amp;&lt;",
    "NaN",
    "\u2028",
]
NUMBERS: list[Any] = [
    *(0, 1, 2, 3, 7, -1, -0.0, 0.5, 1.5, 1e-300, 5e-324, 1e300, 1e308, -1e308),
    *(2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, math.nan, math.inf, -math.inf, True, False),
]
WEIRD: list[Any] = [
    *(None, "", " ", "x", [], {}, [[]], [1, "a", None], {"value": 1}, {"a": {"b": 1}}),
    *NUMBERS,
    *EVIL,
]
QUANTITIES = [
    *("25 GB/s", "0 B/s", "-1 GB/s", "1e-300 GB/s", "1e300 EB/s", "nan GB/s", "inf s", "25"),
    *("GB/s", "1e9999999 s", "1e99999999999999999999 s", "5 us", "0 s", "-5 us", "1e-30 s"),
    *("1e30 s", "64 GiB", "0 B", "1 B", "1 EiB", "312 TFLOP/s", "0 FLOP/s", "1 FLOP/s"),
    *("1e-9 FLOP/s", "1e30 EFLOP/s", "25 Gbit/s", "٣ GB/s", "1e5", "0x10 s", "1_000 s", "1 W"),
    *("0 W", "1e40 W", "5 μs", ".5 us", "5. us", "+5 us", "1" * 5000 + " s", "true", "[1]", "{}"),
    *("[" * 5000, "1" * 400, "NaN", "1e29 B/s", "1e-29 s"),
]
WHOLES: list[Any] = [
    *(1, 2, 4, 8, 8, 16, 3, 5, 64, 0, -1, 512, 10**6, 10**9, 10**12, 2**63, 10**30, "9" * 5000),
    *("1e3", "1.0", "0x8", "٤", " 2", "2 ", "nan", "", "1_0", "rest", "+4"),
]
MODELS = [
    *("tiny-30k", "tiny-1m", "tiny-2m", "tiny-10m", "gpt2", "gpt-5b", "gpt-10b"),
    *("tiny-mixtral-130k", "tiny-mixtral-2m", "tiny-deepseek-2m", "deepseek-v2-lite"),
    *("gpt-oss-20b", "nemotron-3-nano"),
]
MACHINES = ["host", "frontier", "perlmutter", "alps", "dgx-h100", "dgx-a100", "dgx-b200"]
COUNT, SMALL, SWITCH = "count", "small", "switch"
PLAN_KEYS: dict[str, Any] = {
    **dict.fromkeys(("tp", "y", "z", "dp", "pp", "vpp", "mbs", "batch"), COUNT),
    **dict.fromkeys(("ep", "etp", "cp", "context_heads"), COUNT),
    "loss_chunks": COUNT,
    **dict.fromkeys(("nope", "X"), COUNT),
    **dict.fromkeys(("zero", "shard"), SMALL),
    **dict.fromkeys(("sp", "ends_as_layers", "reshard", "fp8_dispatch"), SWITCH),
    **dict.fromkeys(("fp8_swiglu_input", "fp8_params"), SWITCH),
    "stage_layers": ["1+1", "2+0", "none", "-1", "+", "1+1+1+1", "9" * 30],
    "recompute": [
        *("none", "selective", "full", "full:1", "full:-1", "full:99", "full:", "per_op", "half"),
        *("layernorm+mlp", "+", "moe_act", "moe+shared_experts"),
    ],
    "schedule": ["1f1b", "gpipe", "zb-h1", "zb-1p", "zb-2p", "dualpipe"],
    "overlap": [
        *("all", "none", "oar+ors+oag", "dp", "oar+oar", "+", "pp+dp", "x"),
        *("all+a2a", "all+wgrad", "shared"),
    ],
    "precision": ["bf16", "fp32", "fp64", "fp16", "fp8", "int3", "mxfp8", "nvfp4"],
    "recipe": ["mxfp8", "fp8-blockwise", "fp8-delayed", "fp8-tensorwise", "nvfp4", "none", "x"],
    "dispatcher": ["usual", "hierarchical", "once_per_node", "all_gather", "dense", "sparse", "x"],
    "context_kind": ["ring", "all_gather", "ulysses", "x"],
    "context_latents": SWITCH,
    "optimizer": ["sgd", "muon", "adamw", "lomo", "mezo", "fedkseed-step", "x"],
    "attention": ["flash", "unfused", "x"],
    "gradients": ["bf16", "fp32", "x"],
    "moments": ["bf16", "fp32", "fp8", "int8", "x"],
    "master": ["fp32", "fp16", "remainders", "x"],
    "offload": ["optimizer", "update", "parameters", "activations", "none", "x"],
    "offload_share": [0.5, "0.25", 1, "1.0", 0, 1.5, "-1", "nan", "1e-3", True, "x"],
    "loss": ["fused", "plain", "x"],
    "matmul_forms": ["tuned", "plain", "x"],
    "order": ["tp-dp-pp", "pp-dp-z-y-tp", "x-x", "x", "-"],
}
PLANS = [
    *("", ",", "=", "x", "tp=", "=1", "tp=1,tp=2", "dp=rest,dp=rest", "x==1", "tp=1;y=2", "rest"),
    *("dp=REST", "tp=1,,y=1", " tp=1 , y=1", "p" * 300, *EVIL),
]
PLACEMENTS = [
    *("contiguous", "scheduler", "random", "scattered:3", "scattered:0", "scattered:99999999999"),
    *("scattered:", "random:seed=1", "random:seed=" + "9" * 5000, "scattered:" + "9" * 5000),
    *("scheduler:order=x", "hosts:", "hosts:a[1-4]", "hosts:a[4-1]", "hosts:a[1-99999999999]"),
    *("hosts:a1,a1", "hosts:[", "hosts:a[1-2]b[3]", "hosts:a[1-9],b[0-99999999]", "random:seed=٣"),
    *("hosts:a" + "9" * 5000, "x", "", *EVIL),
]
SETTABLE = [
    *("device.peak_flops.bf16", "device.memory", "device.memory_bandwidth", "device.launch"),
    *("device.memory_efficiency", "device.matmul.e_max", "device.matmul.m0", "device.power.max"),
    *("node.devices", "node.nics.bandwidth", "node.nics.count", "node.nics.of_device"),
    *("node.links.bandwidth", "node.links.all_pairs", "nodes", "interconnect.groups"),
    *("interconnect.nodes_per_group", "interconnect.switches_per_group", "network.background"),
    *("interconnect.global_links", "interconnect.link_bandwidth", "interconnect.switch_latency"),
    *("interconnect.background", "interconnect.routing", "interconnect.kind"),
    *("software.all_gather.launch", "software.all_gather.efficiency_across"),
    *("software.all_gather.overlap", "software.all_gather.chunk_pivot", "software.compute_share"),
    *("software.tuner", "software.all_reduce", "software.send_recv.launch", "name", "nope"),
    *("device", "device.", ".", "device.peak_flops.int3"),
]
COUNTED = [
    *("nodes", "node.devices", "node.nics.count", "interconnect.groups", "interconnect.units"),
    *("interconnect.nodes_per_group", "interconnect.switches_per_group", "interconnect.rails"),
]
MODEL = {"layers": 2, "hidden": 32, "heads": 8, "sequence": 16, "vocab": 256}
MODEL_KEYS = [
    *(*MODEL, "ffn", "name", "tied", "kv_heads", "head_width", "norm", "activation", "positions"),
    *("rope_base", "rope_scaling", "biases", "qkv_bias", "qk_norm", "norm_eps"),
    *("embedding_norm", "dropout", "source", "nope"),
    *("experts", "topk", "expert_ffn", "shared_ffn", "expert_latent", "dense_layers", "router"),
    *("expert_every", "router_groups", "router_topk_groups", "router_bias", "balance_loss"),
    *("capacity", "kv_rank", "q_rank", "rope_width", "value_width", "window", "sinks"),
    *("goldfish_k", "goldfish_h", "router_scale", "router_bias_rate", "balance_over"),
    *("global_every", "mtp_loss", "mtp_pattern", "mtp_shared", "ssm_groups", "ssm_conv"),
    *(
        "ssm_chunk",
        "mtp_layers",
        "document",
        "documents",
        "pattern",
        "ssm_heads",
        "ssm_width",
        "ssm_state",
    ),
]
ROUTING: dict[str, Any] = {"source": "s", "tokens": [4, 2, 1, 1], "layers": {"0": [1, 2, 3, 4]}}
CONFIG: dict[str, Any] = {
    **{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_act": "silu"},
    **{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256},
    **{"intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"sliding_window": 64, "rope_theta": 1e4, "num_experts": 0, "attention_dropout": 0.0},
}
CLUSTER: dict[str, Any] = {
    "name": "mine",
    "description": "two kinds of links",
    "nodes": {"value": 16, "source": "s"},
    "device": {
        "source": "s",
        "name": "A100",
        "memory": "80 GB",
        "memory_bandwidth": "2039 GB/s",
        "memory_efficiency": 0.8,
        "launch": "4.5 us",
        "peak_flops": {"source": "s", "bf16": "312 TFLOP/s", "fp32": "19.5 TFLOP/s"},
        "matmul": {
            **{"source": "s", "e_max": 0.765, "m0": 81.6, "n0": 77.9, "k0": 32.6},
            **{"launch": "6.65 us", "memory_fraction": 0.68},
        },
        "attention": {"source": "s", "forward": 0.58, "backward": 0.46},
    },
    "node": {
        "source": "s",
        "devices": 4,
        "links": {"source": "s", "bandwidth": "25 GB/s", "all_pairs": 4},
        "host": {"source": "s", "bandwidth": "25 GB/s"},
        "nics": {"source": "s", "count": 2, "bandwidth": "25 GB/s", "of_device": [0, 0, 1, 1]},
    },
    "interconnect": {
        **{"source": "s", "kind": "fat-tree", "units": 1, "nodes_per_unit": 16, "rails": 2},
        **{"uplinks_per_leaf": 16, "spines": 2, "link_bandwidth": "25 GB/s"},
        "switch_latency": "130 ns",
    },
    "software": {
        "name": "NCCL",
        "all_gather": {
            **{"source": "s", "launch": "20 us", "hop_small": "8 us", "hop_large": "20 us"},
            **{"chunk_pivot": "64 KiB", "overlap": 3.0, "efficiency_across": 0.9},
            "efficiency_within": 0.75,
        },
    },
}
STUDY: dict[str, Any] = {
    **{"title": "t", "model": "tiny-2m", "machine": "perlmutter", "devices": 8, "batch": 16},
    "plan": "dp=rest",
    "set": {"network.background": 0.1},
    "sweep": {"plan.z": [1, 2, 3], "zero": [0, 1]},
}
STUDY_TEXT = (
    'title = "t"\nmodel = "tiny-2m"\nmachine = "perlmutter"\ndevices = 8\nbatch = 16\n'
    'plan = "dp=rest"\n[sweep]\nz = [1, 2, 3]\nzero = [0, 1]\n'
)
