"""Rows about ends that nobody asked for, and those that somebody did: kills, crash points, stop requests, double starts."""

import random
import signal
import time

from chaos import DONE, IO_ERROR, KILLED, LOCKED, STOPPED, Failure, adversity, after_power_loss, began_behind, end_of, lines_in, must_go_on_behind, timeless, wait_until

ITERATIONS = 12
POINTS = ("ckpt.begin", "ckpt.preflight", "ckpt.tmp_created", "ckpt.laid_out", "ckpt.half_written", "ckpt.written", "ckpt.synced", "ckpt.verified",
          "ckpt.index_written", "ckpt.manifest_written", "ckpt.tmp_synced", "ckpt.voted", "ckpt.before_rename", "ckpt.after_rename",
          "ckpt.parent_synced", "ckpt.latest_moved", "ckpt.pruned")


def random_kills(shop, count, seed):
    """One case is a chain of ten kills of one run, which then ends undisturbed: the iteration that a kill falls into is drawn, and the moment in it. Each
    iteration is saved in the background: when one is reported, all but the last one before it have a whole checkpoint."""
    dice = random.Random(seed)
    run = f"kills-{seed}"
    done = 0
    while done < count:
        kind = dice.choice(("rank", "all", "launcher"))
        wait = dice.random() * 0.4
        before = lines_in(shop.path(run) / "metrics.jsonl")
        job = shop.begin(run, iterations=ITERATIONS)
        wait_until(lambda: lines_in(shop.path(run) / "metrics.jsonl") > min(before, ITERATIONS - 1) or dice.random() < 0.0005, job)
        time.sleep(wait)
        if job.process.poll() is None:
            shop.hit(job, kind, dice)
            done += 1
        result = shop.end_of_killed(job)
        must_go_on_behind(result, before - 2)
        if result.code == DONE:
            shop.must_equal_undisturbed(run, iterations=ITERATIONS)
            shop.remove(run)
        elif result.code == LOCKED:
            time.sleep(0.2)
    before = lines_in(shop.path(run) / "metrics.jsonl")
    must_go_on_behind(shop.finish(run, iterations=ITERATIONS), before - 2)
    shop.must_equal_undisturbed(run, iterations=ITERATIONS)
    shop.remove(run)
    return done


def drawn_adversities(dice):
    """(environment, overrides, saves that may fail, words): what the storage and the ranks of one start suffer, none to all of it at once."""
    preload, env, overrides, fail, words = [], {}, [], 0, []

    def suffer(name, what, **settings):
        one = adversity(name, **settings)
        preload.append(one.pop("LD_PRELOAD"))
        env.update(one)
        words.append(what)

    if dice.random() < 0.4:
        suffer("slow_disk", "slow fsync", SLOW_DISK_MS="50-600")
    if dice.random() < 0.4:
        suffer("page_cache", "pages written back", PAGE_CACHE=dice.choice(("readable", "every")))
    kind = dice.choice(("none", "delay", "error"))
    if kind == "delay":
        suffer("storage", "slow calls", STORAGE="/ckpt/", STORAGE_OPS="write,fsync,rename", STORAGE_DO=f"delay:{dice.randrange(5, 40)}")
    elif kind == "error":
        operation = dice.choice(("write", "fsync", "rename", "mkdir", "allocate", "truncate"))
        error, call, rank = dice.choice((5, 28, 122)), dice.randrange(1, 8), dice.randrange(2)
        suffer("storage", f"errno {error} at {operation} {call} of rank {rank}", STORAGE="/ckpt/", STORAGE_OPS=operation, STORAGE_CALLS=f"{call}-{call}",
               STORAGE_DO=f"error:{error}", STORAGE_RANK=str(rank))
        fail = 1
    if dice.random() < 0.4:
        rank, place, ms = dice.randrange(2), dice.choice(("rollout", "reward", "train")), dice.randrange(100, 900)
        overrides.append(f'fault.at=["delay:{rank}:{place}:*:{ms}"]')
        words.append(f"rank {rank} late by {ms} ms at {place}")
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    return env, overrides, fail, ", ".join(words) or "nothing"


def combined(shop, count, seed):
    """One case is a start of a run that is saved each iteration, on storage that is slow, that fails once or that writes whole pages back, with a rank that
    is late, or several of these; three of five are killed at a random moment. The bits at the end are those of an undisturbed run."""
    dice = random.Random(seed)
    run = f"chaos-{seed}"
    failed = 0  # saves that the last start that came so far may have lost

    def check(result, before, words):
        try:
            must_go_on_behind(result, before - 2 - failed)
            if result.code == DONE:
                shop.must_equal_undisturbed(run, leaving_out=("failed_saves",), iterations=ITERATIONS)
        except Failure as failure:
            raise Failure(f"{words}: {failure}") from failure

    for _ in range(count):
        env, overrides, may_fail, words = drawn_adversities(dice)
        kind = dice.choice(("rank", "all", "launcher", "none", "none"))
        wait = dice.random()
        before = lines_in(shop.path(run) / "metrics.jsonl")
        job = shop.begin(run, *overrides, iterations=ITERATIONS, env=env)
        if kind != "none":
            wait_until(lambda: lines_in(shop.path(run) / "metrics.jsonl") > min(before, ITERATIONS - 1) or dice.random() < 0.0005, job)
            time.sleep(wait)
            if job.process.poll() is None:
                shop.hit(job, kind, dice)
                words += f", kill of {kind}"
            else:
                kind = "none"
        result = end_of(job, shop.path(run) / "metrics.jsonl")
        if kind == "none" and result.code not in (DONE, IO_ERROR, LOCKED):
            raise Failure(f"{words}: exit code {result.code}\n{result.text[-3000:]}")
        check(result, before, words)
        if began_behind(result) is not None or may_fail:  # one that was killed or refused before it read a checkpoint has saved nothing either
            failed = may_fail
        if result.code == DONE:
            shop.remove(run)
        elif result.code == LOCKED:
            time.sleep(0.2)
    before = lines_in(shop.path(run) / "metrics.jsonl")
    check(shop.finish(run, iterations=ITERATIONS), before, "undisturbed again")
    shop.remove(run)
    return count


def crash_points(shop, points, seed):
    """Every rank, then one rank alone, ends at the named point of a checkpoint; one run goes through all of them and ends as an undisturbed one. Each
    iteration is saved before the next begins: the one that ended in its checkpoint may be lost, none before."""
    run = f"points-{seed}"
    for point in points:
        for alone in (False, True):
            fault = f'fault.at=["exit:1:{point}:1:137"]' if alone else f"fault.crash_at={point}"
            if not shop.path(run).exists():  # something to lose
                shop.first_iteration(run, "ckpt.background=false", iterations=ITERATIONS)
            before = lines_in(shop.path(run) / "metrics.jsonl")
            result = shop.begin(run, "ckpt.background=false", fault, iterations=ITERATIONS).wait()
            # A point that only rank 0 passes harms nobody when it is rank 1's.
            if result.code not in (KILLED, LOCKED, DONE):
                raise Failure(f"{point}: exit code {result.code}\n{result.text[-2000:]}")
            must_go_on_behind(result, max(before - 1, 1))
            if result.code == DONE:
                shop.must_equal_undisturbed(run, "ckpt.background=false", iterations=ITERATIONS)
                shop.remove(run)
    before = lines_in(shop.path(run) / "metrics.jsonl")  # none: it is done, and removed
    must_go_on_behind(shop.finish(run, "ckpt.background=false", iterations=ITERATIONS), before - 1)
    shop.must_equal_undisturbed(run, "ckpt.background=false", iterations=ITERATIONS)
    shop.remove(run)
    return 2 * len(points)


def power_losses(shop, points, seed):
    """The machine loses power at a point of the second checkpoint: what was not synced is gone."""
    run = f"power-{seed}"
    for point in points:
        shop.remove(run)
        log = shop.path(f"{run}.synced")
        log.mkdir(exist_ok=True)
        watched = adversity("power_loss", POWER_LOSS=f"/{run}", POWER_LOSS_LOG=str(log))
        shop.first_iteration(run, "ckpt.background=false", env=watched)
        result = shop.begin(run, "ckpt.background=false", f"fault.crash_at={point}", iterations=4, env=watched).wait()
        if result.code != KILLED:
            raise Failure(f"{point}: exit code {result.code}\n{result.text[-2000:]}")
        time.sleep(0.3)  # ranks that the launcher is still ending
        after_power_loss(shop.path(run), log)
        again = shop.finish(run, "ckpt.background=false")
        if began_behind(again) not in (1, 2):
            raise Failure(f"{point}: the start after the power loss goes on behind {began_behind(again)}, the first checkpoint was committed\n{again.text[-2000:]}")
        shop.must_equal_undisturbed(run, "ckpt.background=false")
    shop.remove(run)
    return len(points)


def stops(shop, count, seed):
    """USR1 at a random moment of a run with eight optimizer steps an iteration: exit code 75, and the next start goes on where it stopped, with the same
    bits."""
    dice = random.Random(seed)
    run = f"stops-{seed}"
    inside = 0
    for _ in range(count):
        before = lines_in(shop.path(run) / "metrics.jsonl")
        job = shop.begin(run, "ckpt.interval=3", deck="steps.toml", iterations=400)
        wait_until(lambda: lines_in(shop.path(run) / "metrics.jsonl") > 0 and (shop.path(run) / "run.lock").exists(), job)
        time.sleep(1.0 + dice.random())
        job.send(signal.SIGUSR1)
        result = job.wait()
        if result.code != STOPPED:
            raise Failure(f"a stop ends with {result.code}\n{result.text[-2000:]}")
        must_go_on_behind(result, before, before)
        if before and began_behind(result) is None:
            raise Failure(f"the start after a stop does not say where it goes on\n{result.text[-2000:]}")
        inside += "stopping inside iteration" in result.text
    # The same number of iterations in peace, with the learning-rate schedule of a run that would go on.
    last = lines_in(shop.path(run) / "metrics.jsonl")
    reference = f"{run}-undisturbed"
    shop.go(reference, "ckpt.interval=0", "run.stop_within=iteration", f'fault.at=["signal:0:reward:{last}:10"]', deck="steps.toml", iterations=400,
            codes=(STOPPED,))
    if timeless(shop.metrics(run)) != timeless(shop.metrics(reference)):
        raise Failure(f"{run}: its metrics are not those of an undisturbed run")
    shop.remove(run)
    shop.remove(reference)
    if count >= 5 and inside == 0:
        raise Failure(f"{run}: none of {count} stops came inside an iteration")


def double_starts(shop, count, seed):
    """Two jobs in one folder at the same moment: one writes, the other ends with 73."""
    for number in range(count):
        run = f"double-{seed}-{number}"
        pair = [shop.begin(run, iterations=2, ranks=1) for _ in range(2)]
        ends = [job.wait() for job in pair]
        codes = sorted(end.code for end in ends)
        # The second may come when the first is already done: then it finds a finished run.
        if codes not in ([DONE, LOCKED], [DONE, DONE]):
            raise Failure(f"exit codes {codes}\n" + "\n".join(end.text[-3000:] for end in ends if end.code not in (DONE, LOCKED)))
        if [line["iteration"] for line in shop.metrics(run)] != [1, 2]:
            raise Failure(f"{run}: not each iteration once")
        shop.remove(run)
    return count
