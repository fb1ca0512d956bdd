"""Rows about storage: calls that fail, a network file system's pages, bits that flip; and about what else must hold: other rank counts, open ports."""

import pathlib
import random
import shutil

from chaos import BAD_DATA, DONE, IO_ERROR, LOCKED, STOPPED, Failure, adversity, must_go_on_behind, timeless, wait_until
from trireme_run import lines_in, ranks_of, read_safetensors

ERRORS = {"EIO": 5, "ENOSPC": 28, "EDQUOT": 122}
OPERATIONS = ("open", "read", "write", "fsync", "close", "mkdir", "rename", "exchange", "truncate", "link", "unlink", "allocate", "stat", "list")
# Exit codes that say what happened: I/O, no permission or space to create, input missing, the folder is locked; memory and data errors would be wrong.
SAID = (DONE, IO_ERROR, LOCKED, 66, 77)


def io_calls(shop):
    """How many calls of each kind a rank makes on files of the run, in a first start and in one that reads a checkpoint: [{operation: calls}]."""
    counts = []
    run = "count"
    for start in (shop.first_iteration, shop.go):
        told = shop.path("calls")
        start(run, iterations=2, env=adversity("storage", STORAGE=f"{run}/", STORAGE_COUNT=str(told)))
        most = dict.fromkeys(OPERATIONS, 0)
        for line in told.read_text().splitlines():
            operation, calls = line.split()
            most[operation] = max(most[operation], int(calls))
        counts.append(most)
        told.unlink()
    shop.remove(run)
    return counts


def io_cases(shop):
    """All (start, operation, number, deed)."""
    cases = []
    for start, calls in enumerate(io_calls(shop)):
        for operation in OPERATIONS:
            deeds = [f"error:{number}" for number in ERRORS.values()] + (["short"] if operation in ("read", "write") else [])
            cases += [(start, operation, number, deed) for number in range(1, calls[operation] + 1) for deed in deeds]
    return cases


def io_case(shop, case, seed):
    """The n-th call fails on a rank, or does half of its work: a code that says so or a good end; no signal, no hang. The start itself, if it comes so
    far, and the next one go on from the newest checkpoint that there is, and end as an undisturbed run."""
    start, operation, number, deed = case
    run = f"io-{seed}"
    shop.remove(run)
    if start == 1:
        shop.begun(run, iterations=2)
    settings = {"STORAGE": f"{run}/", "STORAGE_OPS": operation, "STORAGE_CALLS": f"{number}-{number}", "STORAGE_DO": deed, "STORAGE_RANK": str(seed % 2)}
    result = shop.begin(run, iterations=2, env=adversity("storage", **settings)).wait()
    if result.code not in SAID:
        raise Failure(f"{case}: exit code {result.code}\n{result.text[-2000:]}")
    must_go_on_behind(result, start, start)
    saved = [int(path.parent.name[5:]) for path in (shop.path(run) / "ckpt").glob("step-*/manifest.json")]
    must_go_on_behind(shop.finish(run, iterations=2), max(saved, default=0))
    metrics, _ = shop.undisturbed(iterations=2)
    if timeless(shop.metrics(run))[-1:] != metrics[-1:]:  # a line that could not be written may be missing
        raise Failure(f"{case}: the last iteration is not that of an undisturbed run")
    shop.remove(run)


def page_cache(shop):
    """Clients of a network file system that write whole pages back: the bytes of neighbours survive."""
    for mode in ("readable", "every"):
        run = f"pages-{mode}"
        shop.go(run, iterations=1, ranks=4, env=adversity("page_cache", PAGE_CACHE=mode))
        verify(shop, shop.path(run) / "ckpt" / "step-000001", expect_whole=True)
        shop.remove(run)
    return 2


def verify(shop, checkpoint, expect_whole):
    result = shop.run_program("inspect", "--verify", checkpoint)
    if expect_whole and result.code != DONE:
        raise Failure(f"{checkpoint} does not verify: {result.text[-1000:]}")
    return result


def places_of_tensors(shop, run, step):
    """[(first byte in data.h5, bytes, path)] of the weights, found by their values."""
    data = (shop.path(run) / "ckpt" / step / "data.h5").read_bytes()
    places = []
    for part in ("actor", "critic"):
        shop.run_program("convert", run, f"{run}-{part}", "--part", part, "--dtype", "fp32")
        for name, (_, _, values) in read_safetensors(shop.path(f"{run}-{part}") / "model.safetensors").items():
            if data.count(values) == 1:
                places.append((data.index(values), len(values), f"/{part}/weight/{name}"))
        shutil.rmtree(shop.path(f"{run}-{part}"))
    if len(places) < 10 or len({path.split("/")[1] for _, _, path in places}) < 2:
        raise Failure(f"only {len(places)} tensors were found in data.h5")
    return places


def hurt_one(dice, number, folder, places):
    """(file, what was done, which tensor was hit if one is known)."""
    files = [path for path in sorted(folder.iterdir()) if path.stat().st_size > 0]
    file = dice.choices(files, weights=[3 if path.name == "data.h5" else 1 for path in files])[0]
    size = file.stat().st_size
    if number % 10 == 9:
        length = dice.randrange(size)
        with file.open("r+b") as handle:
            handle.truncate(length)
        return file, f"cut to {length} of {size}", None
    place, bit, tensor = dice.randrange(size), dice.randrange(8), None
    if file.name == "data.h5":
        if number % 2:  # small ones as often as large ones
            first, length, _ = dice.choice(places)
            place = first + dice.randrange(length)
        tensor = next((path for first, length, path in places if first <= place < first + length), None)
    with file.open("r+b") as handle:
        handle.seek(place)
        byte = handle.read(1)[0]
        handle.seek(place)
        handle.write(bytes([byte ^ 1 << bit]))
    return file, f"bit {bit} of byte {place}", tensor


def start_on_damage(shop, run, hurt, how):
    """The newest checkpoint is damaged: a start says so and goes on from the one before, with the bits of a run that was left in peace."""
    again = f"{run}-again"
    shutil.copytree(shop.path(run), shop.path(again), symlinks=True, ignore=shutil.ignore_patterns("hurt", "step-000002"))
    shutil.copytree(hurt, shop.path(again) / "ckpt" / "step-000002")
    result = shop.go(again, iterations=2, ranks=1)
    must_go_on_behind(result, 1, 1)
    if "step-000002" not in result.text:
        raise Failure(f"{how}: the start does not name the checkpoint\n{result.text[-2000:]}")
    if timeless(shop.metrics(again)) != timeless(shop.metrics(run)):
        raise Failure(f"{how}: after a start on it other metrics than those of an undisturbed run")
    shop.remove(again)


def flips(shop, count, seed):
    """A bit flips, or a file of a checkpoint is cut: found before it is used, by file, and in the weights by tensor. Every tenth by a start."""
    dice = random.Random(seed)
    run = f"flips-{seed}"
    shop.go(run, iterations=2, ranks=1)
    whole = shop.path(run) / "ckpt" / "step-000002"
    places = places_of_tensors(shop, run, whole.name)
    hurt = shop.path(run) / "hurt"
    for number in range(count):
        shutil.rmtree(hurt, ignore_errors=True)
        shutil.copytree(whole, hurt)
        file, how, tensor = hurt_one(dice, number, hurt, places)
        how = f"{file.name}, {how}"
        result = verify(shop, hurt, expect_whole=False)
        if result.code != BAD_DATA:
            raise Failure(f"{how}: exit code {result.code}\n{result.text[-1000:]}")
        if file.name not in result.text and str(hurt) not in result.text:
            raise Failure(f"{how}: the message does not name the file\n{result.text[-1000:]}")
        if tensor and f"{tensor} is damaged in rows " not in result.text:
            raise Failure(f"{how}: the message does not name {tensor}\n{result.text[-1000:]}")
        if number % 10 == 5:
            start_on_damage(shop, run, hurt, how)
    shop.remove(run)
    return count


def layouts(shop, sizes):
    """A checkpoint of any number of ranks, loaded by any other and gathered: the same bits."""
    for written in sizes:
        run = f"layout-{written}"
        shop.go(run, "ckpt.save_hf=end", iterations=1, ranks=written)
        weights = read_safetensors(shop.path(run) / "hf" / "model.safetensors")
        for loaded in sizes:
            again = f"{run}-{loaded}"
            shutil.copytree(shop.path(run) / "ckpt", shop.path(again) / "ckpt")
            shop.go(again, "ckpt.save_hf=end", iterations=1, ranks=loaded)
            if read_safetensors(shop.path(again) / "hf" / "model.safetensors") != weights:
                raise Failure(f"written by {written} ranks, loaded by {loaded}: other weights")
            shop.remove(again)
        shop.remove(run)
    return len(sizes) ** 2


def listeners(shop):
    """Sockets of the program's processes that listen, with transports of MPI that need none."""
    run = "ports"
    job = shop.begin(run, iterations=100000, env={"OMPI_MCA_btl": "self,vader"})
    wait_until(lambda: lines_in(shop.path(run) / "metrics.jsonl") >= 1, job)
    listening = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" or table.startswith("udp"):
                listening.add(fields[9])
    ours = []
    ranks = ranks_of(job)
    for pid in ranks.values():
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in listening:
                ours.append((pid, target))
    (shop.path(run) / "stop").touch()
    code = job.wait().code
    shop.remove(run)
    if not ranks or code != STOPPED:
        raise Failure(f"{len(ranks)} ranks found, exit code {code}")
    if ours:
        raise Failure(f"they listen: {ours}")
    return len(ranks)
