"""The way most RLHF systems sync weights, over gloo: trainers (FSDP2 shards, fp32) gather each parameter in bf16, rank 0 broadcasts it to
the generators. Half of the ranks train, half generate. The peer of perf_weightsync.

--mode per-parameter: one gather and one broadcast for each; bucketed: broadcasts of 64 MiB.
"""

import warnings

from common import arguments, model, parameters, report, start_gloo, timed

warnings.filterwarnings("ignore")
a = arguments(mode="per-parameter")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

rank, world = start_gloo()
trainers = world // 2
training_group = dist.new_group(list(range(trainers)))
broadcast_group = dist.new_group([0, *range(trainers, world)])
net = model(a.shape)
shapes = [(name, p.shape) for name, p in net.named_parameters()]
is_trainer = rank < trainers
if is_trainer:
    mesh = DeviceMesh.from_group(training_group, "cpu")
    for layer in net.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
else:
    net = net.to(torch.bfloat16)
weights = dict(net.named_parameters())
torch.set_grad_enabled(False)


def per_parameter():
    for name, shape in shapes:
        if is_trainer:
            full = weights[name].to(torch.bfloat16).full_tensor()
            if rank == 0:
                dist.broadcast(full.contiguous(), 0, group=broadcast_group)
        else:
            received = torch.empty(shape, dtype=torch.bfloat16)
            dist.broadcast(received, 0, group=broadcast_group)
            weights[name].copy_(received)


def bucketed(limit=64 << 20):
    first = 0
    while first < len(shapes):
        last, size = first, 0
        while last < len(shapes) and (size == 0 or size + 2 * shapes[last][1].numel() <= limit):
            size += 2 * shapes[last][1].numel()
            last += 1
        if is_trainer:
            full = [weights[name].to(torch.bfloat16).full_tensor().reshape(-1) for name, _ in shapes[first:last]]
            if rank == 0:
                dist.broadcast(torch.cat(full), 0, group=broadcast_group)
        else:
            received = torch.empty(size // 2, dtype=torch.bfloat16)
            dist.broadcast(received, 0, group=broadcast_group)
            at = 0
            for name, shape in shapes[first:last]:
                weights[name].copy_(received[at:at + shape.numel()].view(shape))
                at += shape.numel()
        first = last


seconds = timed(per_parameter if a.mode == "per-parameter" else bucketed, a.repetitions, barrier=dist.barrier)
size = 2 * parameters(a.shape)
report(milliseconds_best=1e3 * seconds[0], milliseconds_median=1e3 * seconds[len(seconds) // 2], gb_per_s_best=size / 1e9 / seconds[0], bytes=size)
dist.destroy_process_group()
