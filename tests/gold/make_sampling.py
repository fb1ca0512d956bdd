#!/usr/bin/env python3
"""Writes sampling/processors.txt: what the logits processors of transformers leave of random logits, and with which log-probabilities.

    make_sampling.py > tests/gold/sampling/processors.txt      (transformers 5.15.0, torch 2.11.0)

A case has four lines: temperature, top_k, top_p, min_p and repetition penalty; the ids of the sequence; the logits; id and log-probability of
each token that may be drawn.
"""

import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

CASES = [  # temperature, top_k, top_p, min_p, repetition penalty
    (1.0, 0, 1.0, 0.1, 1.0), (0.7, 0, 1.0, 0.02, 1.0), (1.0, 0, 1.0, 0.0001, 1.0), (1.0, 10, 1.0, 0.05, 1.0), (1.0, 0, 0.8, 0.05, 1.0),
    (1.0, 20, 0.9, 0.01, 1.0), (1.0, 5, 0.6, 0.3, 1.0), (1.0, 0, 1.0, 1.0, 1.0), (1.0, 0, 0.9, 0.0, 1.3), (1.3, 0, 1.0, 0.05, 1.2),
    (0.8, 12, 0.95, 0.02, 2.5), (1.0, 0, 1.0, 0.02, 0.8)]
VOCABULARY = 96


def processors(temperature, top_k, top_p, min_p, penalty):
    """In the order in which generate() puts them."""
    out = LogitsProcessorList()
    if penalty != 1:
        out.append(RepetitionPenaltyLogitsProcessor(penalty))
    if temperature != 1:
        out.append(TemperatureLogitsWarper(temperature))
    if top_k > 0:
        out.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        out.append(TopPLogitsWarper(top_p))
    if min_p > 0:
        out.append(MinPLogitsWarper(min_p))
    return out


def main():
    torch.manual_seed(7)
    for case in CASES:
        logits = (3 * torch.randn(1, VOCABULARY)).float()
        ids = torch.randint(0, VOCABULARY, (1, 12))
        scores = processors(*case)(ids, logits.clone())
        log_probs = torch.log_softmax(scores.double(), -1)[0]
        kept = [f"{i} {x:.9g}" for i, x in enumerate(log_probs.tolist()) if x > -float("inf")]
        print(*case)
        print(len(ids[0]), *ids[0].tolist())
        print(*(f"{x:.9g}" for x in logits[0].tolist()))
        print(len(kept), *kept)


main()
