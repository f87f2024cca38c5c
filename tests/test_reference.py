"""The reference itself behaves as a GPT must, so that parity with it means something."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.reference import ReferenceGPT, initial_weights, loss_and_gradients, train
from tests.reference_llama import RMSNorm, alibi, rotated, slopes

HEADS, SEQUENCE, VOCAB = 4, 8, 50


def weights(tied: bool = True, vocab: int = VOCAB) -> dict[str, Tensor]:
    return initial_weights(
        layers=2,
        hidden=16,
        ffn=64,
        heads=HEADS,
        sequence=SEQUENCE,
        vocab=vocab,
        tied=tied,
        seed=1,
    )


def batch(seed: int = 0, sequences: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(VOCAB, (sequences, SEQUENCE + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def test_it_holds_twelve_hidden_squared_a_layer_plus_tables_biases_and_norms() -> None:
    h, layers = 16, 2
    by_hand = layers * (12 * h * h + 13 * h) + VOCAB * h + SEQUENCE * h + 2 * h
    assert sum(w.numel() for w in weights().values()) == by_hand
    assert sum(w.numel() for w in weights(tied=False).values()) == by_hand + VOCAB * h


@pytest.mark.parametrize("tied", [True, False])
def test_it_learns_exactly_the_weights_it_was_given(tied: bool) -> None:
    given = weights(tied)
    held = ReferenceGPT(given, heads=HEADS).copy_of_weights()
    assert held.keys() == given.keys()
    assert all(torch.equal(held[name], given[name]) for name in given)


@pytest.mark.parametrize("tied", [True, False])
def test_an_untrained_model_guesses_evenly_among_the_vocabulary(tied: bool) -> None:
    loss, _ = loss_and_gradients(weights(tied), batch(), heads=HEADS)
    assert loss == pytest.approx(math.log(VOCAB), rel=0.02)


def test_a_tied_weight_gets_the_gradients_of_the_embedding_and_of_the_classifier() -> None:
    tied = weights()
    untied = {**tied, "head.w": tied["embed.w"]}
    loss, gradients = loss_and_gradients(tied, batch(), heads=HEADS)
    same_loss, apart = loss_and_gradients(untied, batch(), heads=HEADS)
    assert same_loss == loss
    both = apart["embed.w"] + apart["head.w"]
    torch.testing.assert_close(gradients["embed.w"], both, rtol=1e-12, atol=1e-15)


def test_twenty_steps_on_one_repeated_text_make_the_loss_fall_by_half() -> None:
    text = torch.arange(SEQUENCE + 1).repeat(4, 1)
    given = weights()
    losses = train(given, [(text[:, :-1], text[:, 1:])] * 20, heads=HEADS, lr=1e-2).losses
    assert losses[-1] < losses[0] / 2
    assert torch.equal(given["embed.w"], weights()["embed.w"])


@pytest.mark.parametrize("gelu", ["tanh", "none"])
def test_a_later_token_does_not_change_an_earlier_logit(gelu: str) -> None:
    model = ReferenceGPT(weights(), heads=HEADS, gelu=gelu)
    tokens, _ = batch()
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % VOCAB
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-15)
    assert (before[:, 5:] - after[:, 5:]).abs().amax(dim=(0, 2)).min() > 1e-6


def test_attention_is_torchs_own_with_queries_keys_and_values_side_by_side() -> None:
    model = ReferenceGPT(weights(), heads=HEADS)
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(2, SEQUENCE, 48, generator=generator, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (HEADS, 4)).transpose(1, 2) for part in qkv.split(16, dim=-1))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    layer = model.get_submodule("l0")
    layer.add_module("qkv", torch.nn.Identity())
    ours = layer.attention(qkv)
    torch.testing.assert_close(ours, theirs.transpose(1, 2).flatten(2))


def test_the_first_step_moves_a_weight_by_lr_against_its_gradient_after_decay() -> None:
    given, lr = weights(), 1e-3
    _, gradients = loss_and_gradients(given, batch(), heads=HEADS)
    moved = train(given, [batch()], heads=HEADS, lr=lr, clip=None).weights
    for name, decay in (("l0.up.w", 0.1), ("embed.w", 0.1), ("l0.up.b", 0.0), ("norm.w", 0.0)):
        step = gradients[name] / (gradients[name].abs() + 1e-8)
        torch.testing.assert_close(moved[name], given[name] * (1 - lr * decay) - lr * step)


def test_clipping_scales_every_gradient_by_the_one_global_norm() -> None:
    given, eps = weights(), 1.0
    _, gradients = loss_and_gradients(given, batch(), heads=HEADS)
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients.values()))
    clip = norm / 4
    trained = train(given, [batch()], heads=HEADS, lr=1.0, eps=eps, weight_decay=0, clip=clip)
    assert trained.norms == [pytest.approx(norm)]
    moved = trained.weights
    scaled = gradients["l1.down.w"] * clip / (norm + 1e-6)
    torch.testing.assert_close(
        moved["l1.down.w"], given["l1.down.w"] - scaled / (scaled.abs() + eps)
    )


def test_rotated_queries_and_keys_depend_on_their_distance_alone() -> None:
    generator = torch.Generator().manual_seed(5)
    query, key = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    q, k = (rotated(x.expand(SEQUENCE, 6), 10_000) for x in (query, key))
    products = q @ k.T
    for distance in range(SEQUENCE):
        along = products.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    # Element 0 turns with element 3, by one radian a position.
    turned = query[0] * math.cos(1) - query[3] * math.sin(1)
    assert float(q[1, 0]) == pytest.approx(float(turned))


def test_alibis_slopes_are_those_of_its_paper() -> None:
    assert slopes(8) == pytest.approx([2**-i for i in range(1, 9)])
    assert slopes(3) == pytest.approx([2**-4, 2**-8, 2**-2])


def test_alibi_takes_a_heads_slope_for_every_position_between_query_and_key() -> None:
    bias = alibi(8, SEQUENCE, torch.float64)
    assert float(bias[1, 5, 2]) == pytest.approx(-3 / 4)
    assert float(bias[1, 5, 5]) == 0


def test_an_rmsnorm_divides_by_the_root_of_the_mean_square() -> None:
    norm = RMSNorm(2, 1e-5).double()
    norm.w.data.copy_(torch.tensor([1.0, 2.0]))
    out = norm(torch.tensor([3.0, 4.0], dtype=torch.float64))
    root = math.sqrt(12.5 + 1e-5)
    torch.testing.assert_close(out, torch.tensor([3 / root, 8 / root], dtype=torch.float64))


def test_neighbouring_queries_share_a_key() -> None:
    generator = torch.Generator().manual_seed(3)
    given = initial_weights(
        layers=1, hidden=16, ffn=8, heads=4, kv_heads=2, sequence=SEQUENCE, vocab=VOCAB
    )
    layer = ReferenceGPT(given, heads=4).get_submodule("l0")
    layer.add_module("qkv", torch.nn.Identity())
    qkv = torch.randn(2, SEQUENCE, 32, generator=generator, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in qkv.split([16, 8, 8], -1))
    attend = torch.nn.functional.scaled_dot_product_attention
    theirs = attend(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(layer.attention(qkv), theirs.transpose(1, 2).flatten(2))
