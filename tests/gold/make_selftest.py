#!/usr/bin/env python3
"""The numbers that `trireme selftest` compares its optimizer steps with: writes src/tools/selftest_numbers.hpp.

    ~/.cache/trireme/venv/bin/python tests/gold/make_selftest.py        (./bootstrap.sh interop makes the environment)

transformers' LlamaForCausalLM with eager attention, torch.optim.AdamW (no decay on norm weights) and clip_grad_norm_, all in float64, on weights and
sequences that a formula gives (the same in src/tools/selftest_model.cpp). The loss is the mean of -log p over all next tokens.
"""

import pathlib

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "max_position_embeddings": 64}
STEPS, SEQUENCES = 4, 8
LR, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0


def weights(name, shape):
    """Element e of the parameter `name`: 24 bits of a linear congruential step, centred; around 1 for norms."""
    key = sum(name.encode())
    count = int(numpy.prod(shape))
    state = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(key * 1000003)) * numpy.uint64(6364136223846793005) + numpy.uint64(1442695040888963407)
    drawn = (state >> numpy.uint64(40)).astype(numpy.float64) / 2.0**24 - 0.5
    values = 1 + 0.1 * drawn if len(shape) == 1 else 0.4 * drawn
    return torch.from_numpy(values.astype(numpy.float32).astype(numpy.float64)).reshape(shape)


def sequence(s):
    return [(7 * s + 3 * t + (s * t) % 5) % SHAPE["vocab_size"] for t in range(5 + s)]


def main():
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager")).double().train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights(name, tuple(parameter.shape)))
    groups = [{"params": [p for n, p in model.named_parameters() if ("norm" in n) == norm], "weight_decay": 0.0 if norm else DECAY} for norm in (False, True)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for _ in range(STEPS):
        total, count = 0, 0
        for s in range(SEQUENCES):
            ids = torch.tensor([sequence(s)])
            log_probs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])
            total, count = total - log_probs.sum(), count + log_probs.numel()
        loss = total / count
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    rows = lambda values: ", ".join(f"{value:.12g}" for value in values)
    (ROOT / "src/tools/selftest_numbers.hpp").write_text(f"""// Written by tests/gold/make_selftest.py with PyTorch {torch.__version__.split("+")[0]} in float64.
#pragma once

#include <array>

namespace trireme::tools::selftest {{

// Before the step, and over all parameters before clipping.
inline constexpr std::array<double, {STEPS}> losses{{
    {rows(losses)}}};
inline constexpr std::array<double, {STEPS}> gradient_norms{{
    {rows(norms)}}};

}}  // namespace trireme::tools::selftest
""")
    print(losses, norms)


if __name__ == "__main__":
    main()
