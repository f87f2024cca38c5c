"""Command lines about files of others: scripts, configurations, logs and traces; job scripts."""

from __future__ import annotations

import json

from tests.simgpt.fuzz.costly import COSTLY, command
from tests.simgpt.fuzz.damage import as_bytes, chewed, mutated
from tests.simgpt.fuzz.pieces import Pieces
from tests.simgpt.fuzz.values import EVIL, WEIRD

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
TP=${TP:-2}
ARGS=(--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512
  --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 16 --vocab-size 1000)
EXTRA="--tensor-model-parallel-size $TP --use-distributed-optimizer --bf16 --lr 1e-4"
torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" $EXTRA --log-interval $((2 * 5))
"""
ARGUMENTS = """MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 256
  --num-attention-heads: 8
  --seq-length: 512
  --micro-batch-size: 1
  --global-batch-size: 8
  --bf16: true
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""
DEEPSPEED = {
    **{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 16, "bf16": {"enabled": True}},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
}
MEGATRON_LOG = "".join(
    f" iteration {number:8d}/ 100 | consumed samples: {16 * number} | elapsed time per iteration "
    f"(ms): {500 + number}.1 | throughput per GPU (TFLOP/s/GPU): 20{number}.5 | "
    "lm loss: 9.1E+00 |\n"
    for number in range(1, 12)
)
TITAN_LOG = "".join(
    f"[rank0]:step: {number:2d} loss: 8.{number} memory: 20.10GiB(25.1%) tps: {7000 + number} "
    f"tflops: 401.2 mfu: 40.6%\n"
    for number in range(1, 12)
)
LINES = "".join(json.dumps({"step": n, "step_s": 0.5 + n / 100}) + "\n" for n in range(1, 12))
TRACE = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": n * 1000,
         "dur": 900, "pid": 1, "tid": 1}
        for n in range(4)
    ]
    + [
        {"ph": "X", "cat": "kernel", "name": name, "ts": n * 1000 + 10, "dur": 100, "pid": 0,
         "tid": 7, "args": {"stream": 7}}
        for n in range(4)
        for name in ("ampere_bf16_s16816gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    ],
}  # fmt: skip
CONFIGS = {"t.sh": SCRIPT, "t.yaml": ARGUMENTS, "t.toml": TITAN, "t.json": json.dumps(DEEPSPEED)}
TRAINED = {  # as `simgpt run --json` has it, but for what is not read
    **{"model": "m", "plan_string": "dp=8", "ranks": 8, "step_s": 0.1, "tokens_per_s": 1.0},
    **{"steps_s": [0.1] * 12, "losses": [5.0] * 12},
}
LOGS = {"megatron.log": MEGATRON_LOG, "titan.log": TITAN_LOG, "steps.jsonl": LINES}
LOGS |= {"run.json": json.dumps(TRAINED)}
FORMATS = ["megatron", "torchtitan", "deepspeed", "megatron-bridge", "nemo", "axonn", "x", ""]


class Foreign(Pieces):
    """Draws what reads or writes the files of other programs."""

    def _content(self, name: str, text: str) -> bytes:
        """A good file, or a damaged one."""
        rng = self.rng
        if self.odds(0.25):
            return text.encode()
        if name.endswith("json") and self.odds(0.5):
            return as_bytes(mutated(rng, json.loads(text), rng.randint(1, 3), WEIRD))
        if self.odds(0.4):
            words = text.split(" ")
            words[rng.randrange(len(words))] = str(rng.choice([*WEIRD, *EVIL]))
            return " ".join(words).encode(errors="surrogatepass")
        return chewed(rng, text.encode())

    def _import(self) -> list[str]:
        rng, args = self.rng, ["import"]
        for name in rng.sample(list(CONFIGS), rng.choice([1, 1, 1, 2])):
            self.files[name] = self._content(name, CONFIGS[name])
            args.append(name)
        args += ["--from", rng.choice(FORMATS)] if self.odds(0.3) else []
        args += ["-m", self.machine()] if self.odds(0.3) else []
        args += ["-n", self.whole()] if self.odds(0.4) else []
        args += ["--model", self.model()] if self.odds(0.3) else []
        defined = ["TP=4", "TP=", "=1", "TP", f"TP={EVIL[0]}", "X=" + "9" * 400]
        args += ["--define", rng.choice(defined)] if self.odds(0.2) else []
        return [*args, *(["-v"] if self.odds(0.2) else []), *self.out()]

    def _export(self) -> list[str]:
        rng = self.rng
        to = rng.choice([*FORMATS[:4], "axonn", "axonn", "megatron", "x"])
        args = ["export", self.model(), "--plan", self.plan(), "--to", to]
        args += ["-n", self.whole()] if self.odds(0.6) else []
        args += ["--batch", self.whole()] if self.odds(0.6) else []
        return args + self.out()

    def _compare(self) -> list[str]:
        rng = self.rng
        name = rng.choice([*LOGS, "trace.json"])
        self.files[name] = self._content(name, LOGS.get(name) or json.dumps(TRACE))
        args = ["compare", name, *self.asked(), *self.out()]
        return args + (["--warm-up", rng.choice(["0", "1", "99", "-1"])] if self.odds(0.3) else [])

    def _costly(self) -> list[str]:
        """A file that asks for much work, whole or its beginning."""
        name = self.rng.choice(list(COSTLY))
        content = COSTLY[name]()
        share = 1.0 if self.odds(0.5) else self.rng.random()
        self.files[name] = content[: max(int(len(content) * share), 1)]
        return command(name)

    def _sbatch(self) -> list[str]:
        args = ["sbatch", *self.asked(), *self.out()]
        words = [*EVIL, "abc123", "", "a b", "a\nb", "$(reboot)", "02:00:00", "1-00:00", "0", "x"]
        for flag in ("--account", "--partition", "--time", "--steps", "--site", "--setup"):
            args += [flag, self.rng.choice(words)] if self.odds(0.2) else []
        return args
