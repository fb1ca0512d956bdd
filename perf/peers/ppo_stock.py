"""One PPO iteration of stock parts: HF generate, log-probs of the policy and a frozen reference, one epoch under DDP with fused AdamW.

The policy has a value head on the same trunk, so per iteration there is one generation, two forward passes and one training pass, as in the
deck perf/ppo/iteration.toml. --dtype bf16: autocast, and a bf16 copy of the weights for generation.
"""

import copy
import warnings

from common import SHAPES, arguments, model, report, start_gloo, timed

warnings.filterwarnings("ignore")
a = arguments(dtype="bf16", prompts=32, prompt=32, new=32, mini_batch=8)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

rank, world = start_gloo()
half = a.dtype == "bf16"
vocabulary, own, step_size = SHAPES[a.shape]["vocab_size"], a.prompts // world, a.mini_batch // world


class Policy(nn.Module):
    """Language model and value head on one trunk; log-probs' logits and values of the response tokens."""

    def __init__(self):
        super().__init__()
        self.lm = model(a.shape)
        self.value = nn.Linear(SHAPES[a.shape]["hidden_size"], 1)

    def forward(self, ids):
        hidden = self.lm.model(input_ids=ids, use_cache=False).last_hidden_state[:, -a.new - 1:-1]
        return self.lm.lm_head(hidden), self.value(hidden).squeeze(-1)


def log_probs(logits, tokens):
    return torch.log_softmax(logits.float(), -1).gather(-1, tokens[..., None]).squeeze(-1)


policy, reference = Policy(), model(a.shape).eval().requires_grad_(False)
generator = copy.deepcopy(policy.lm).to(torch.bfloat16).requires_grad_(False) if half else policy.lm
net = nn.parallel.DistributedDataParallel(policy)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True)


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=half)


@torch.no_grad()
def rollout():
    if generator is not policy.lm:
        for source, target in zip(policy.lm.parameters(), generator.parameters()):
            target.copy_(source)
    prompts = torch.randint(2, vocabulary, (own, a.prompt))
    return generator.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, max_new_tokens=a.new,
                              min_new_tokens=a.new, eos_token_id=None, pad_token_id=0)


@torch.no_grad()
def evaluate(sequences, tokens):
    old, values, frozen = [], [], []
    with autocast():
        for i in range(0, own, step_size):
            rows = slice(i, i + step_size)
            logits, value = net(sequences[rows])
            old.append(log_probs(logits, tokens[rows]))
            values.append(value.float())
            frozen.append(log_probs(reference(sequences[rows], use_cache=False, logits_to_keep=a.new + 1).logits[:, :-1], tokens[rows]))
    return torch.cat(old), torch.cat(values), torch.cat(frozen)


def advantages(old, values, frozen, tokens):
    reward = -0.05 * (old - frozen)
    reward[:, -1] += (tokens % 7 == 0).float().mean(1)
    gain, result = torch.zeros(own), torch.zeros_like(reward)
    for k in reversed(range(a.new)):
        following = values[:, k + 1] if k + 1 < a.new else 0.0
        gain = reward[:, k] + following - values[:, k] + 0.95 * gain
        result[:, k] = gain
    return (result - result.mean()) / (result.std() + 1e-8), result + values


def iteration():
    sequences = rollout()
    tokens = sequences[:, -a.new:]
    old, values, frozen = evaluate(sequences, tokens)
    advantage, returns = advantages(old, values, frozen, tokens)
    for i in range(0, own, step_size):
        rows = slice(i, i + step_size)
        with autocast():
            logits, value = net(sequences[rows])
            ratio = (log_probs(logits, tokens[rows]) - old[rows]).exp()
        clipped = torch.min(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows])
        loss = -clipped.mean() + 0.1 * (value.float() - returns[rows]).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


torch.manual_seed(rank)
seconds = timed(iteration, a.repetitions, barrier=dist.barrier)
report(seconds_best=seconds[0], seconds_median=seconds[len(seconds) // 2])
dist.destroy_process_group()
