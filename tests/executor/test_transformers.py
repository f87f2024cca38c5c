"""Published weights as transformers writes and reads them: the same loss, training and logits."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from executor.data.batches import batch_of
from executor.data.corpus import read_text
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from workload.descriptions.read import described_model

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SEQUENCE, BATCH, STEPS, LR = 16, 4, 2, 2e-4
DEVIATION = 0.2  # of what is added to the weights: attention is far from uniform then
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 32,
    "n_head": 4,
    "n_positions": SEQUENCE,
    "vocab_size": 259,  # which two ranks of x do not divide
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "vocab_size": 259,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED = {**LLAMA, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 12}}
LINEAR = {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
# `norm_eps` is as large as the squares that the norms see, so that another one would show.
QWEN2 = {**LLAMA, "model_type": "qwen2", "rms_norm_eps": 1e-3, "rope_theta": 1000.0}
QWEN3 = {**LLAMA, "model_type": "qwen3", "rms_norm_eps": 1e-2, "head_dim": 16}
OF_EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, **OF_EXPERTS}
QWEN3_MOE = {**QWEN3, "model_type": "qwen3_moe", "num_experts": 6, **OF_EXPERTS}
QWEN3_MOE |= {"moe_intermediate_size": 24, "norm_topk_prob": True}
DEEPSEEK_V2 = {**LLAMA, "model_type": "deepseek_v2", "rms_norm_eps": 1e-6, **OF_EXPERTS}
DEEPSEEK_V2 |= {"num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 20}
DEEPSEEK_V2 |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
DEEPSEEK_V2 |= {"n_routed_experts": 6, "n_shared_experts": 2, "moe_intermediate_size": 16}
DEEPSEEK_V2 |= {"first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
DEEPSEEK_V3 = {**DEEPSEEK_V2, "model_type": "deepseek_v3", "q_lora_rank": 12, "v_head_dim": 8}
DEEPSEEK_V3 |= {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0}
# Two of three groups of experts, and scores that a scaled RoPE makes sharper.
SHARPER = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}
GROUPED_V2 = {**DEEPSEEK_V2, "n_group": 3, "topk_group": 2, "topk_method": "group_limited_greedy"}
GROUPED_V3 = {**DEEPSEEK_V3, "n_group": 3, "topk_group": 2, "rope_scaling": SHARPER}
MISTRAL = {**LLAMA, "model_type": "mistral", "head_dim": 16, "sliding_window": 32}
CASES = [
    (GPT2, "tp=2"),
    (GPT2, "dp=2,zero=2"),
    (LLAMA, "z=2"),
    ({**LLAMA, "tie_word_embeddings": True}, "pp=2"),
    ({**LLAMA, "attention_bias": True, "mlp_bias": True}, "y=2"),
    (MISTRAL, "tp=2"),
    (SCALED, "tp=2"),
    (LINEAR, "y=2"),
    (QWEN2, "tp=2"),
    ({**QWEN2, "rope_scaling": YARN, "tie_word_embeddings": True}, "dp=2,zero=3"),
    (QWEN3, "tp=2,sp=true"),
    ({**QWEN3, **SCALED, "model_type": "qwen3"}, "pp=2"),
    ({**GPT2, "layer_norm_epsilon": 1e-2}, "y=2"),
    (MIXTRAL, "tp=2"),
    (MIXTRAL, "dp=2,ep=2"),
    (MIXTRAL, "tp=2,ep=2,etp=1,sp=true"),
    ({**MIXTRAL, "tie_word_embeddings": True}, "pp=2"),
    (QWEN3_MOE, "dp=2,ep=2,zero=1"),
    ({**QWEN3_MOE, "norm_topk_prob": False, "mlp_only_layers": [0]}, "z=2"),
    (DEEPSEEK_V2, "tp=2"),
    (DEEPSEEK_V3, "dp=2,ep=2"),
    (DEEPSEEK_V3, "tp=2,ep=2,etp=1,sp=true"),
    ({**GROUPED_V2, "rope_scaling": SHARPER}, "dp=2,ep=2"),
    (GROUPED_V3, "tp=2"),
    (GROUPED_V3, "dp=2,ep=2,zero=1"),
]


def written(config: dict[str, Any], folder: Path, **how: Any) -> Any:
    """A model with random weights, the norms and biases among them, and its checkpoint."""
    kept = dict(config)
    described = transformers.AutoConfig.for_model(kept.pop("model_type"), **kept)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(described)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(DEVIATION * torch.randn_like(tensor))
        for name, tensor in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                tensor.add_(DEVIATION * torch.randn_like(tensor))
    model.save_pretrained(folder, **how)
    return model.eval()


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=batch[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def trained(model: Any, batches: list[torch.Tensor]) -> list[float]:
    """The losses of steps of AdamW as a run takes them; the model is changed."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw, losses = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95)), []
    for batch in batches:
        adamw.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("config", "plan"), CASES)
def test_what_transformers_wrote_trains_as_there_and_is_read_there_again(
    config: dict[str, Any], plan: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    model = written(config, source)
    words: tuple[str, ...] = (
        "run",
        str(source / "config.json"),
        "--model-set",
        f"sequence={SEQUENCE}",
    )
    if config["model_type"] == "deepseek_v3":  # in transformers the biases do not move
        words += ("--model-set", "router_bias_rate=1e-12")
    words += ("--plan", f"{plan},precision=fp32", "--batch", str(BATCH), "--steps", str(STEPS))
    words += ("--from-weights", str(source), "--export-weights", str(target), "--lr", str(LR))
    said = simgpt(*words, "--no-predict", "--json", "--timeout", "250")
    assert said.status == 0, said.err
    assert_names(said.err, str(target))
    record = json.loads(said.out)
    assert record["exported_weights"] == str(target)

    gpt = replace(described_model(str(target / "config.json")).gpt, sequence=SEQUENCE)
    batches = [batch_of(read_text(None), gpt, BATCH, step, 0) for step in range(STEPS)]
    with torch.no_grad():
        before = model(input_ids=batches[0][:, :-1]).logits
    losses = trained(model, batches)
    assert record["losses"] == pytest.approx(losses, rel=1e-6)
    again = transformers.AutoModelForCausalLM.from_pretrained(target).eval()
    with torch.no_grad():
        found, expected = (each(input_ids=batches[0][:, :-1]).logits for each in (again, model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (found - before).abs().max() > 1e-3  # they were trained


@pytest.mark.parametrize("config", [GPT2, LLAMA, MIXTRAL])
def test_files_in_parts_and_in_bf16_are_read_and_leave_as_they_came(
    config: dict[str, Any], tmp_path: Path
) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    model = written(config, source).to(torch.bfloat16)
    model.save_pretrained(source, max_shard_size="20KB")
    (source / "model.safetensors").unlink()
    assert len(list(source.glob("*.safetensors"))) > 1
    words: tuple[str, ...] = (
        "run",
        str(source / "config.json"),
        "--model-set",
        f"sequence={SEQUENCE}",
    )
    words += ("--plan", "precision=bf16", "--batch", str(BATCH), "--steps", "1", "--lr", "0")
    words += ("--from-weights", str(source), "--export-weights", str(target), "--no-predict")
    said = simgpt(*words)
    assert said.status == 0, said.err
    again = transformers.AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert again.dtype == torch.bfloat16
    tensors = again.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize(
    "config", [SCALED, QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3, GROUPED_V3]
)
def test_what_was_converted_without_training_has_the_same_logits(
    config: dict[str, Any], tmp_path: Path
) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    model = written(config, source)
    words = ("--from-weights", str(source), "--export-weights", str(target), "--steps", "0")
    said = simgpt("run", str(source / "config.json"), *words, "--plan", "precision=fp32")
    assert said.status == 0, said.err
    again = transformers.AutoModelForCausalLM.from_pretrained(target).eval()
    assert type(again) is type(model)
    tokens = torch.arange(3 * SEQUENCE).view(3, SEQUENCE)
    with torch.no_grad():
        found, expected = (each(input_ids=tokens).logits for each in (again, model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
