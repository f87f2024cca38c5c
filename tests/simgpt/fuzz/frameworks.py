"""Command lines about frameworks: their recipes and configurations, stacks, routing, whole runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import yaml

from simulator.stacks import stack_names
from tests.simgpt.fuzz.damage import as_bytes, as_toml, chewed, mutated
from tests.simgpt.fuzz.foreign import FORMATS, TRACE, Foreign
from tests.simgpt.fuzz.values import EVIL, NUMBERS, ROUTING, WEIRD

FILES = Path(__file__).parents[1] / "foreign_files"  # of other programs, none of them long
GOOD = "good_"  # those that are read
YAML = (".yaml", ".yml")
BOMBS = [
    "a: &a [1, 2]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "a: !!python/object/apply:os.system ['true']\n",
    "a: !!binary x\nb: !!timestamp 2001-01-01\n",
    "? [a, b]\n: c\n",
    "<<: {a: 1}\na: 2\na: 3\n",
    "a: " + "[" * 20_000,
    "a:\n" + "".join(" " * depth + "- a:\n" for depth in range(1, 300)),
    "%YAML 9.9\n---\na: 1\n---\nb: 2\n",
    "a: 0o17\nb: 1_000\nc: 190:20:30\nd: .inf\ne: ~\nf: yes\n",
]
STACK = {
    "base": "megatron-core",
    "title": "ours",
    "source": "s",
    "plan": {"overlap": ["oar", "dp"], "zero": 1},
    "kernels": {"pace": 0.94},
    "vocabulary": {"multiple": 128},
    "memory": {"step_copies": True},
}
LLAMA = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"},
    **{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256},
    **{"intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False},
}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}
CONFIGS = [
    LLAMA | {"rope_scaling": LLAMA3},
    LLAMA | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 64},
    LLAMA | {"model_type": "qwen3", "head_dim": 16, "attention_bias": False},
    LLAMA
    | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"router_aux_loss_coef": 0.02},
    LLAMA
    | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    | {"moe_intermediate_size": 32, "decoder_sparse_step": 1, "norm_topk_prob": True},
    LLAMA
    | {
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "v_head_dim": 16,
    }
    | {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "n_routed_experts": 4, "n_group": 2}
    | {"topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1, "topk_method": "noaux_tc"}
    | {"moe_intermediate_size": 32, "first_k_dense_replace": 1, "scoring_func": "sigmoid"}
    | {"num_nextn_predict_layers": 1, "rope_scaling": YARN, "routed_scaling_factor": 2.5},
    {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64}
    | {"vocab_size": 256, "activation_function": "gelu_new", "n_inner": None},
]
DURATIONS = [
    *(
        "10min",
        "1h",
        "400d",
        "0s",
        "-1h",
        "1e300d",
        "nan h",
        "1",
        "h",
        "",
        "1h30m",
        "9" * 400 + "s",
    ),
    *("9" * 400 + "s", "5e-324s", "inf s", "١h", "1 h", "1e5d"),
]
CALENDAR = {
    "--tokens": ["1B", "300B", "15T", "0", "1e300", "nan", "1"],
    "--start": ["2026-11-01", "9999-12-31", "0001-01-01", "2026-02-30", "today", ""],
    "--nodes": ["2,4", "1,1", "0", "", "x", "2," * 500 + "2", "9" * 400, "1,10000000"],
    "--storage": ["2 TB/s", "1 GB/s:2 GB/s", "0 B/s", "1 B/s", "1 EB/s:", ":", "x", "nan B/s"],
    "--spares": ["0", "4", "1000000", "-1"],
    "--draws": ["10", "100", "100000", "9"],
    **dict.fromkeys(["--save-every", "--save-time", "--mtbf", "--detection"], DURATIONS),
    **dict.fromkeys(["--restart", "--repair", "--walltime", "--queue-wait"], DURATIONS),
}

RUN = {"--tokens": "1B", "--draws": "10", "--storage": "2 TB/s", "--mtbf": "400d"}
TOGETHER = {
    **{"--walltime": "--queue-wait", "--queue-wait": "--walltime"},
    **{"--spares": "--repair", "--repair": "--spares"},
}


class Frameworks(Foreign):
    """Draws what else reads or writes the files of frameworks."""

    def _recipe(self) -> list[str]:
        """A short file of another program, by its text or by its structure, imported."""
        rng = self.rng
        paths = sorted(each for each in FILES.iterdir() if each.name != "expected.toml")
        paths += 3 * [each for each in paths if each.name.startswith(GOOD)]
        path = rng.choice(paths)
        name, text = f"t{path.suffix}", path.read_text(encoding="utf-8")
        self.files[name] = self._content(name, text)
        if path.suffix in YAML and self.odds(0.5):
            document = mutated(rng, yaml.load(text, yaml.BaseLoader), rng.randint(1, 3), WEIRD)
            self.files[name] = yaml.safe_dump(document).encode()
        elif path.suffix in YAML and self.odds(0.1):
            self.files[name] = (text * self.odds(0.5) + rng.choice(BOMBS)).encode()
        args = ["import", name, *(["-n", self.whole()] if self.odds(0.5) else [])]
        args += ["--model", self.model()] if self.odds(0.3) else []
        args += ["-m", self.machine()] if self.odds(0.3) else []
        args += ["--predict"] if self.odds(0.2) else []
        return [*args, *(["--from", rng.choice(FORMATS)] if self.odds(0.2) else []), *self.out()]

    def _config(self) -> list[str]:
        """A `config.json` of one of several families."""
        name = self.file(".json", self.rng.choice(CONFIGS), [*WEIRD, 1, 2, 3, 4, 8, 16, 64, 1024])
        if self.odds(0.5):
            return ["models", name, *self.out()]
        words = ["predict", name, "-m", "dgx-h100", "-n", "8", "--plan", self.plan()]
        return [*words, "--batch", self.whole(), *self.out()]

    def asked(self) -> list[str]:
        """A question, every other time one that is answered, so that what is drawn besides counts
        too."""
        if self.odds(0.5):
            return super().asked()
        model = self.rng.choice(["tiny-2m", "tiny-10m", "gpt2", "tiny-mixtral-2m"])
        plan = self.rng.choice(["dp=rest", "tp=2,dp=rest", "z=2,dp=rest,mbs=1"])
        machine = self.rng.choice(["frontier", "perlmutter", "dgx-h100"])
        return [model, "-m", machine, "-n", "8", "--plan", plan, "--batch", "16"]

    def _stack(self) -> str:
        """A stack by name, or a file of one."""
        if self.odds(0.6):
            return self.rng.choice(stack_names())
        if self.odds(0.1):
            return self.rng.choice(["", "nope", "nope.toml", "x" * 300, *EVIL])
        rng, rules = self.rng, [{"when": {"x": ">1"}, "sequence_parallel": True}]
        document = json.loads(json.dumps(STACK))
        document["base"] = rng.choice([*stack_names(), "f0.toml", "nope"])
        if self.odds(0.2):
            document["plan"]["where"] = rules
        if self.odds(0.3):
            del document[rng.choice(list(document))]
        return self.file(".toml", document, [*WEIRD, 1, 2, ["oar"], {"x": ">1"}])

    def _stacks(self) -> list[str]:
        if self.odds(0.4):
            return ["stacks", self._stack(), *self.out()]
        return ["predict", *self.asked(), "--stack", self._stack(), *self.out()]

    def _routing(self) -> list[str]:
        """Experts with a measured histogram."""
        rng = self.rng
        model = rng.choice(["tiny-mixtral-130k", "tiny-mixtral-2m", "tiny-deepseek-2m", "tiny-1m"])
        document = json.loads(json.dumps(ROUTING))
        if self.odds(0.4):
            values = [rng.choice([1, 2, *NUMBERS]) for _ in range(rng.choice([1, 4, 8, 64, 1000]))]
            document[rng.choice(["tokens", "layers"])] = values
        name = self.file(rng.choice([".toml", ".json"]), document, WEIRD)
        words = ["predict", model, "-m", "dgx-h100", "-n", "8", "--routing", name]
        words += ["--plan", f"ep={rng.choice([1, 2, 4, 8])},dp=rest,{self.plan()}".strip(",")]
        return [*words, "--batch", "16", *self.out()]

    def _plan_run(self) -> list[str]:
        """Mostly a run that is answered, but for one to three of its options."""
        rng, given = self.rng, dict(RUN)
        for flag in rng.sample(list(CALENDAR), rng.choice([0, 1, 1, 2, 3])):
            usual = CALENDAR[flag][:3] if self.odds(0.6) else CALENDAR[flag]
            given |= {flag: rng.choice(usual)}
            given |= {TOGETHER[flag]: "1h"} if flag in TOGETHER and self.odds(0.9) else {}
        if self.odds(0.1):
            del given[rng.choice(list(given))]
        words = [word for pair in given.items() for word in pair]
        words += ["--async-save"] if self.odds(0.1) else []
        return ["plan-run", *self.asked(), *words, *self.out()]

    def _export(self) -> list[str]:
        args = super()._export()
        if self.odds(0.5):
            to = self.rng.choice(FORMATS[:4])
            model = self.rng.choice(["llama-3.1-8b", "tiny-2m", "gpt2"])
            args = ["export", model, "--plan", self.plan(), "--to", to, "-n", "8", "--batch", "16"]
        args += ["--stack", self._stack()] if self.odds(0.4) else []
        return args + (["--model-set", f"sequence={self.whole()}"] if self.odds(0.2) else [])

    def _sbatch(self) -> list[str]:
        rng, args = self.rng, super()._sbatch()
        if self.odds(0.5):
            args = ["sbatch", *self.asked(), *self.out()]
        args += ["--stack", self._stack()] if self.odds(0.3) else []
        if self.odds(0.3):
            args += ["--launch", rng.choice(["megatron", "torchtitan", "deepspeed", "x"])]
            args += ["--script", rng.choice(["train.py", *EVIL])] if self.odds(0.5) else []
        return args

    def _gzip(self) -> list[str]:
        """A compressed trace, whole, damaged within, damaged without, or of many bytes."""
        rng = self.rng
        content = self._content("trace.json", json.dumps(TRACE))
        packed = gzip.compress(content, mtime=0)
        if self.odds(0.3):
            packed = chewed(rng, packed)
        elif self.odds(0.1):
            packed = gzip.compress(rng.choice([b" ", b"[", b'{"a":', b"\0"]) * 10**7, mtime=0)
        elif self.odds(0.1):
            packed += rng.choice([packed, b"\0" * 100, b"x"])
        name = rng.choice(["t.json.gz", "t.json.gz", "t.json.gz", "t.json", "t.gz"])
        self.files[name] = packed
        return ["compare", name, *self.asked(), *self.out()]

    def _titan(self) -> list[str]:
        """torchtitan's TOML or DeepSpeed's JSON, by their structure."""
        rng = self.rng
        document = rng.choice([TORCHTITAN, DEEPSPEED])
        values = [*WEIRD, 1, 2, 8, "full", "selective", "fp32", "bfloat16", "auto"]
        drawn = mutated(rng, document, rng.randint(0, 3), values)
        is_toml = document is TORCHTITAN
        name = "t.toml" if is_toml else "t.json"
        self.files[name] = _tables(drawn).encode(errors="replace") if is_toml else as_bytes(drawn)
        args = ["import", name, "-n", self.whole(), *self.out()]
        args += ["--model", self.model()] if not is_toml or self.odds(0.2) else []
        return args + (["-m", "dgx-h100", "--predict"] if self.odds(0.2) else [])


TORCHTITAN = {
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "training": {
        **{"local_batch_size": 2, "global_batch_size": 16, "seq_len": 2048, "steps": 10},
        **{"mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32"},
    },
    "parallelism": {
        **{"data_parallel_shard_degree": -1, "data_parallel_replicate_degree": 1},
        **{"tensor_parallel_degree": 2, "pipeline_parallel_degree": 1},
        **{"context_parallel_degree": 1, "expert_parallel_degree": 1},
        **{"pipeline_parallel_schedule": "1F1B", "enable_async_tensor_parallel": False},
    },
    "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    "compile": {"enable": True},
    "optimizer": {"name": "AdamW", "implementation": "fused"},
}
DEEPSPEED = {
    **{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 16},
    **{"gradient_accumulation_steps": "auto", "bf16": {"enabled": True}, "steps_per_print": 10},
    "fp16": {"enabled": False, "loss_scale": 0},
    "zero_optimization": {
        **{"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8},
        **{"offload_optimizer": {"device": "none", "pin_memory": True}},
        **{"zero_hpz_partition_size": 1, "contiguous_gradients": True},
    },
    "activation_checkpointing": {"partition_activations": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
}


def _tables(document: dict[str, object]) -> str:
    """TOML with a head for each table, as people write it."""
    parts = []
    for name, table in document.items():
        if isinstance(table, dict):
            parts.append(f"[{json.dumps(name)}]\n{as_toml(table)}")
        else:
            parts.insert(0, as_toml({name: table}))
    return "\n".join(parts)
