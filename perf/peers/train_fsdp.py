"""One training step under FSDP2 over gloo, one thread a rank, activation checkpointing, fused AdamW: the peer of perf_train.

bf16: parameters gathered in bf16, gradients reduced in fp32.
"""

import resource
import warnings

from common import SHAPES, arguments, model, report, start_gloo, timed

warnings.filterwarnings("ignore")
a = arguments(sequences=2, tokens=512, dtype="bf16", recompute=1)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402

rank, world = start_gloo()
net = model(a.shape)
net.train()
net.config.use_cache = False
if a.recompute:
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
options = dict(mesh=init_device_mesh("cpu", (world,)), reshard_after_forward=True)
if a.dtype == "bf16":
    options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in net.model.layers:
    fully_shard(layer, **options)
fully_shard(net, **options)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
ids = torch.randint(0, SHAPES[a.shape]["vocab_size"], (a.sequences, a.tokens), generator=torch.Generator().manual_seed(rank))


def step():
    net(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


seconds = timed(step, a.repetitions, barrier=dist.barrier)
tokens = a.sequences * a.tokens * world
report(tokens_per_s_best=tokens / seconds[0], tokens_per_s_median=tokens / seconds[len(seconds) // 2],
       peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
dist.destroy_process_group()
