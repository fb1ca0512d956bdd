#!/usr/bin/env python3
"""Stop, kill and resume: the same command again ends with the numbers of a run that nobody disturbed.

Faults come from inside the iteration that is meant, so nothing depends on timing: a reward plugin of weight zero sends
its parent, a rank of the program, a signal when it sees a request of that iteration.
"""

import json
import math
import shutil
import signal
import subprocess
import time
import unittest

from trireme_run import ENDS_AS_USUAL, ENDS_AT_ONCE, PATIENCE, SABOTEUR_SOURCE, ProgramTest, lines_in, main, timeless

SABOTEUR = """
import json, os, pathlib, sys
action, at = os.environ.get("SABOTAGE", "none:0").split(":")
done = False
for line in sys.stdin:
    request = json.loads(line)
    if not done and request["iteration"] == int(at):
        done = True
        if action == "touch":
            pathlib.Path(os.environ["SABOTAGE_FILE"]).touch()
        elif action != "none":
            os.kill(os.getppid(), int(action))
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""

LOCKED = 73
STOPPED = 75


def at_iteration(action, iteration):
    return {"SABOTAGE": f"{int(action)}:{iteration}"}


class Resume(ProgramTest):
    environment = ENDS_AT_ONCE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "saboteur.py").write_text(SABOTEUR)
        deck = (cls.folder / "ppo.toml").read_text().replace("iterations = 3", "iterations = 4\nstop_within = \"iteration\"").replace("\n[actor]",
                                                                                  SABOTEUR_SOURCE + "[actor]")
        (cls.folder / "ppo.toml").write_text(deck)
        cls.undisturbed_runs = {}

    def undisturbed(self, ranks, *overrides):
        """Metrics and samples of the run that is left in peace; made once for each layout."""
        key = (ranks, *overrides)
        if key not in self.undisturbed_runs:
            run = f"undisturbed-{len(self.undisturbed_runs)}"
            self.succeed("ppo", "ppo.toml", f"run.dir={run}", *overrides, ranks=ranks)
            self.undisturbed_runs[key] = run
        run = self.undisturbed_runs[key]
        return timeless(self.metrics(run)), self.samples(run)

    def stop_at_two(self, run, ranks, *overrides, asked=2):
        """The plugin sends the signal when it is asked for iteration `asked`."""
        result = self.succeed("ppo", "ppo.toml", f"run.dir={run}", *overrides, ranks=ranks, code=STOPPED,
                              env=at_iteration(signal.SIGUSR1, asked))
        self.assertEqual(len(self.metrics(run)), 2, "stops when the iteration is done, not before and not after")
        manifest = json.loads((self.folder / run / "ckpt" / "step-000002" / "manifest.json").read_text())
        self.assertRegex(manifest["config_digest"], "^[0-9a-f]{16}$", "of the deck")
        return result

    def resume_after_a_crash(self, run, *overrides):
        """mpirun may return before the ranks that it ends are gone; until then the folder is rightly locked."""
        deadline = time.monotonic() + 15
        while True:
            result = self.run_program("ppo", "ppo.toml", f"run.dir={run}", *overrides, ranks=2)
            if result.code != LOCKED or time.monotonic() > deadline:
                break
        self.assertEqual(result.code, 0, result.text)

    def assert_as_undisturbed(self, run, ranks, *overrides):
        metrics, samples = self.undisturbed(ranks, *overrides)
        self.assertEqual(timeless(self.metrics(run)), metrics)
        self.assertEqual(self.samples(run), samples)

    def test_usr1_then_the_same_command(self):
        self.stop_at_two("usr1", 2)
        again = self.succeed("ppo", "ppo.toml", "run.dir=usr1", ranks=2)
        self.assertIn("resumed after iteration 2", again.text)
        self.assert_as_undisturbed("usr1", 2)

    def test_usr1_to_disaggregated_roles(self):
        roles = ("ranks.trainer=1", "ranks.generator=1")
        self.stop_at_two("apart", 2, *roles)
        self.succeed("ppo", "ppo.toml", "run.dir=apart", *roles, ranks=2)
        self.assert_as_undisturbed("apart", 2, *roles)

    def test_usr1_one_step_ahead(self):
        """The rollout that waits for the next iteration is part of the checkpoint."""
        roles = ("ranks.trainer=1", "ranks.generator=1", "train.async_depth=1")
        self.stop_at_two("ahead", 2, *roles, asked=3)  # while trainers are at iteration 2
        self.succeed("ppo", "ppo.toml", "run.dir=ahead", *roles, ranks=2)
        self.assert_as_undisturbed("ahead", 2, *roles)

    def test_other_rank_counts(self):
        self.stop_at_two("from-2", 2)
        metrics, samples = self.undisturbed(2)
        layouts = {"1": (1, []), "3": (3, []), "2+1": (3, ["ranks.trainer=2", "ranks.generator=1"]),
                   "2 x 2": (4, ["train.shard_group=2"])}
        for name, (ranks, roles) in layouts.items():
            with self.subTest(layout=name):
                run = f"to-{name}".replace(" ", "")
                shutil.copytree(self.folder / "from-2", self.folder / run)
                self.succeed("ppo", "ppo.toml", f"run.dir={run}", *roles, ranks=ranks)
                mine = timeless(self.metrics(run))
                self.assertEqual(mine[:2], metrics[:2], "what was written before stays")
                for ours, theirs in zip(mine, metrics, strict=True):
                    for key in ("reward", "policy_loss", "value_loss", "grad_norm"):
                        self.assertTrue(math.isclose(ours[key], theirs[key], rel_tol=1e-4, abs_tol=1e-5), f"{key}: {ours} {theirs}")
                self.assertEqual([s["output_ids"] for s in self.samples(run)], [s["output_ids"] for s in samples])

    def test_more_iterations_keep_the_schedule_of_the_start(self):
        """The schedule's length is fixed when a run starts: later iterations get its last learning rate."""
        schedule = "actor.lr_scheduler=cosine_with_min_lr"
        self.succeed("ppo", "ppo.toml", "run.dir=longer", "run.iterations=2", schedule)
        self.succeed("ppo", "ppo.toml", "run.dir=longer", "run.iterations=4", schedule)
        rates = [line["lr"] for line in self.metrics("longer")]
        self.assertEqual(len(rates), 4)
        self.assertNotEqual(rates[0], rates[1])
        self.assertEqual(rates[2], rates[3])

    def test_usr2_saves_and_goes_on(self):
        self.succeed("ppo", "ppo.toml", "run.dir=usr2", "ckpt.interval=0", ranks=2, env=at_iteration(signal.SIGUSR2, 2))
        steps = sorted(path.name for path in (self.folder / "usr2" / "ckpt").glob("step-*"))
        self.assertEqual(steps, ["step-000002", "step-000004"], "on request, and at the end")
        self.assertEqual(timeless(self.metrics("usr2")), self.undisturbed(2)[0])

    def test_sigterm_and_signals_that_come_again(self):
        """SIGTERM to mpirun's ranks stops like a warning; more of them while the checkpoint is written change nothing."""
        job = self.start("ppo", "ppo.toml", "run.dir=term", "run.iterations=100000", "ckpt.interval=0")
        self.wait_for(lambda: lines_in(self.folder / "term" / "metrics.jsonl") >= 1, job, "the first iteration")
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            job.send(number)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, result.text)
        done = len(self.metrics("term"))
        self.assertTrue((self.folder / "term" / "ckpt" / f"step-{done:06d}" / "manifest.json").is_file())

    def test_file_named_stop(self):
        file = self.folder / "touched" / "stop"
        self.succeed("ppo", "ppo.toml", "run.dir=touched", code=STOPPED, env={"SABOTAGE": "touch:3", "SABOTAGE_FILE": str(file)})
        self.assertEqual(len(self.metrics("touched")), 3)
        self.assertTrue((self.folder / "touched" / "stopped").exists())
        self.assertFalse(file.exists(), "obeyed")
        file.touch()  # again, while nobody runs, as while a job waits in a queue
        result = self.succeed("ppo", "ppo.toml", "run.dir=touched", ranks=2, code=STOPPED)
        self.assertIn("not started: the file touched/stop was there already", result.text)
        self.assertEqual(len(self.metrics("touched")), 3)
        self.succeed("ppo", "ppo.toml", "run.dir=touched")
        self.assertEqual([path.name for path in (self.folder / "touched").glob("stop*")], [])
        again = self.succeed("ppo", "ppo.toml", "run.dir=touched")
        self.assertRegex(again.text, r"all \d+ iterations are done: nothing is left to do")
        self.assert_as_undisturbed("touched", 1)

    def test_walltime(self):
        """A limit below the margin that the rule keeps: one iteration, a checkpoint, 75; the next job goes on from there."""
        self.succeed("ppo", "ppo.toml", "run.dir=walltime", "run.walltime=5", code=STOPPED)
        self.assertEqual(len(self.metrics("walltime")), 1)
        self.succeed("ppo", "ppo.toml", "run.dir=walltime")
        self.assert_as_undisturbed("walltime", 1)

    def test_killed_rank(self):
        """SIGKILL to one rank in the middle of an iteration: the job ends, and goes on from the last committed step."""
        result = self.run_program("ppo", "ppo.toml", "run.dir=killed", "ranks.reward=0-0", ranks=2,
                                  env=ENDS_AS_USUAL | at_iteration(signal.SIGKILL, 3))
        self.assertNotIn(result.code, (0, STOPPED), result.text)
        self.resume_after_a_crash("killed", "ranks.reward=0-0")
        self.assert_as_undisturbed("killed", 2, "ranks.reward=0-0")

    def test_crash_in_the_commit(self):
        """Every rank ends at a point of the commit: the old or the new checkpoint is there, never half of one."""
        for point in ("ckpt.half_written", "ckpt.before_rename", "ckpt.after_rename", "ckpt.parent_synced"):
            with self.subTest(point=point):
                run = point.replace(".", "-")
                result = self.run_program("ppo", "ppo.toml", f"run.dir={run}", f"fault.crash_at={point}", ranks=2)
                self.assertNotIn(result.code, (0, STOPPED), result.text)
                self.resume_after_a_crash(run)
                self.assert_as_undisturbed(run, 2)
                left = [path.name for path in (self.folder / run / "ckpt").iterdir() if path.name.startswith(".step-")]
                self.assertEqual(left, [], "no temporary folder stays")

    def test_damaged_checkpoint_falls_back(self):
        self.stop_at_two("damaged", 2)
        data = self.folder / "damaged" / "ckpt" / "step-000002" / "data.h5"
        with data.open("r+b") as file:
            file.seek(data.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x10]))
        result = self.succeed("ppo", "ppo.toml", "run.dir=damaged", ranks=2)
        self.assertIn("resumed after iteration 1", result.text)
        self.assertIn("data.h5", result.text, "the damaged file is named")
        self.assert_as_undisturbed("damaged", 2)

    def test_signal_through_the_launcher_and_sft(self):
        """The signal goes to mpirun, as a batch script sends it; then sft resumes to the same losses."""
        self.succeed("sft", "sft.toml", "run.dir=sft-whole", "run.iterations=200", "ckpt.interval=0", ranks=2)
        job = self.start("sft", "sft.toml", "run.dir=sft", "run.iterations=200", "ckpt.interval=0", ranks=2)
        self.wait_for(lambda: lines_in(self.folder / "sft" / "metrics.jsonl") >= 2, job, "the second step")
        job.send(signal.SIGUSR1)
        self.assertEqual(job.wait().code, STOPPED)
        self.assertLess(len(self.metrics("sft")), 200)
        self.succeed("sft", "sft.toml", "run.dir=sft", "run.iterations=200", "ckpt.interval=0", ranks=2)
        self.assertEqual(timeless(self.metrics("sft")), timeless(self.metrics("sft-whole")))

    def test_locked_folder(self):
        holder = self.start("ppo", "ppo.toml", "run.dir=locked", "run.iterations=100000", "ckpt.interval=0", ranks=2)
        self.wait_for(lambda: lines_in(self.folder / "locked" / "metrics.jsonl") >= 1, holder, "the first iteration")
        try:
            second = self.run_program("ppo", "ppo.toml", "run.dir=locked", "run.iterations=100000", ranks=2)
            self.assertEqual(second.code, 73, second.text)
            self.assertEqual(second.text.count("error: "), 1, second.text)
            self.assertIn("locked", second.text)
            before = lines_in(self.folder / "locked" / "metrics.jsonl")
            self.wait_for(lambda: lines_in(self.folder / "locked" / "metrics.jsonl") > before, holder, "one more iteration")
            holder.send(signal.SIGUSR1)
            self.assertEqual(holder.wait().code, STOPPED)
        finally:
            holder.kill()

    def test_a_process_alone_shares_no_folder(self):
        """All processes alone on a node had one temporary folder of MPI's: one that left removed it under one that started."""
        self.succeed("ppo", "ppo.toml", "run.dir=private", "run.iterations=1", env={"TMPDIR": "/proc/nowhere"})

    def test_two_jobs_at_once(self):
        """Both find the folder free; one gets it, the other leaves at once."""
        jobs = [self.start("ppo", "ppo.toml", "run.dir=raced", "run.iterations=100000", "ckpt.interval=0") for _ in range(2)]
        try:
            deadline = time.monotonic() + PATIENCE
            while all(job.process.poll() is None for job in jobs):
                self.assertLess(time.monotonic(), deadline, "two jobs live in one folder")
                time.sleep(0.01)
            loser, winner = sorted(jobs, key=lambda job: job.process.poll() is None)
            self.assertEqual(loser.wait().code, 73)
            self.wait_for(lambda: lines_in(self.folder / "raced" / "metrics.jsonl") >= 1, winner, "the first iteration")
            winner.send(signal.SIGUSR1)
            self.assertEqual(winner.wait().code, STOPPED)
        finally:
            for job in jobs:
                job.kill()

    @unittest.skipUnless(shutil.which("h5ls") and shutil.which("h5dump"), "needs the HDF5 tools h5ls and h5dump")
    def test_plain_hdf5_tools_read_it(self):
        self.undisturbed(2)
        file = str(self.folder / self.undisturbed_runs[(2,)] / "ckpt" / "step-000004" / "data.h5")
        listing = subprocess.run(["h5ls", "-r", file], capture_output=True, text=True, check=True).stdout
        for line in ("/actor/weight/model.embed_tokens.weight Dataset {272, 64}",
                     "/actor/weight/model.layers.1.self_attn.q_proj.weight Dataset {96, 64}",
                     "/actor/m/model.layers.0.mlp.down_proj.weight Dataset {64, 96}", "/actor/v/model.norm.weight Dataset {64}",
                     "/critic/weight/score.weight Dataset {1, 64}"):
            self.assertIn(line, " \n".join(" ".join(row.replace("\\ ", " ").split()) for row in listing.splitlines()), listing)
        header = subprocess.run(["h5dump", "-H", file], capture_output=True, text=True, check=True).stdout
        self.assertIn("DATASET \"model.embed_tokens.weight\"", header)
        self.assertIn("( 272, 64 )", header)


if __name__ == "__main__":
    main()
