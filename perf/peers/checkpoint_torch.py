"""Saving and loading 12 bytes per parameter (fp32 weight, m, v), flushed to disk: the peers of perf_checkpoint.

--writer torch | safetensors (one process), dcp (all ranks, torch.distributed.checkpoint). --folder must lie on the disk to measure.
Loads are cold where the page cache may be dropped (root), which `cold` in the result says.
"""

import os
import pathlib
import shutil
import time
import warnings

from common import arguments, model, parameters, report, start_gloo

warnings.filterwarnings("ignore")
a = arguments(writer="torch", folder="perf-checkpoint")

import torch  # noqa: E402

folder = pathlib.Path(a.folder)
size = 12 * parameters(a.shape)


def flush(path):
    for file in [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def drop_cache():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def one_process():
    """(save, load, remove, barrier) of a writer that runs on one rank."""
    from safetensors.torch import load_file, save_file
    net = model(a.shape)
    state = {f"{kind}.{name}": torch.randn_like(p.data) for name, p in net.named_parameters() for kind in ("weight", "m", "v")}
    file = folder / "peer.bin"
    folder.mkdir(parents=True, exist_ok=True)
    save = (lambda: torch.save(state, file)) if a.writer == "torch" else (lambda: save_file(state, str(file)))
    load = (lambda: torch.load(file)) if a.writer == "torch" else (lambda: {k: v.clone() for k, v in load_file(str(file)).items()})
    return lambda: (save(), flush(file)), load, lambda: file.unlink(missing_ok=True), lambda: None


def all_ranks():
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    rank, world = start_gloo()
    mesh, net = init_device_mesh("cpu", (world,)), model(a.shape)
    for layer in net.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    weights, moments = get_state_dict(net, optimizer)
    state = {"model": weights, "optim": moments}
    path = folder / "peer-dcp"

    def save():
        dcp.save(state, checkpoint_id=str(path))
        if rank == 0:
            flush(path)

    def remove():
        if rank == 0:
            shutil.rmtree(path, ignore_errors=True)

    return save, lambda: dcp.load(state, checkpoint_id=str(path)), remove, dist.barrier


save, load, remove, barrier = all_ranks() if a.writer == "dcp" else one_process()
saves, loads, cold = [], [], False
for _ in range(a.repetitions):
    remove()
    os.sync()
    barrier()
    start = time.perf_counter()
    save()
    barrier()
    saves.append(time.perf_counter() - start)
    cold = drop_cache()
    barrier()
    start = time.perf_counter()
    load()
    barrier()
    loads.append(time.perf_counter() - start)
barrier()
remove()
saves.sort()
loads.sort()
report(save_gb_per_s_best=size / 1e9 / saves[0], save_gb_per_s_median=size / 1e9 / saves[len(saves) // 2], load_gb_per_s_best=size / 1e9 / loads[0],
       load_gb_per_s_median=size / 1e9 / loads[len(loads) // 2], bytes=size, cold=cold)
