#!/usr/bin/env python3
"""Saves that fail, and files that a run can do without: what is said, when, and how the run goes on. And who may save where."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time

from trireme_run import ProgramTest, adversity, lines_in, main, timeless

IO_ERROR = 74
LOCKED = 73
STOPPED = 75


class FailedSaves(ProgramTest):
    def go(self, run, iterations, *overrides, code=0, **options):
        return self.succeed("ppo", "ppo.toml", f"run.dir={run}", f"run.iterations={iterations}", *overrides, code=code, **options)

    def steps(self, folder):
        return sorted(int(path.name[5:]) for path in (self.folder / folder).glob("step-*"))

    def storage(self, paths, deed, **settings):
        return adversity("storage", STORAGE=paths, STORAGE_DO=deed, **{f"STORAGE_{name.upper()}": value for name, value in settings.items()})

    # ---- a checkpoint that cannot be written ----

    def test_a_failed_save_is_said_at_the_next_iteration_and_made_again(self):
        for background in ("true", "false"):
            with self.subTest(background=background):
                run = f"once-{background}"
                # Iteration 4 takes longer than a save that runs beside it, on a busy machine, too.
                longer = ['fault.at=["delay:*:train:7:12000"]'] if background == "true" else []
                result = self.go(run, 9, "ckpt.interval=3", f"ckpt.background={background}", "fault.io_fail=fsync:1:28", *longer, ranks=2)
                failed = result.text.index("THE CHECKPOINT OF ITERATION 3 FAILED")
                self.assertLess(failed, result.text.index("iteration 5/9"), "not only when the next save is due")
                self.assertIn("No space left on device", result.text)
                self.assertIn(4, self.steps(f"{run}/ckpt"), "the next iteration's")
                counts = [line.get("failed_saves", 0) for line in self.metrics(run)]
                self.assertEqual(counts[-1], 1)
                self.assertEqual(counts[:3], [0, 0, 0])
                self.assertTrue(all("checkpoint_stall" in line["seconds"] for line in self.metrics(run)))
                self.assertIn("resumed after iteration 9", self.go(run, 10).text)

    def test_what_a_step_overtakes_is_saved_as_it_was(self):
        """A disk that takes seconds for a save beside steps that take none: what is committed is what a run has whose steps wait for each save."""
        settings = ("ckpt.interval=2", "ckpt.keep=3")
        self.go("waits", 5, *settings, "ckpt.background=false", ranks=2)
        for copies in ("stage", "all"):
            slow = self.storage("data.h5", "delay:8", ops="write")
            result = self.go(f"beside-{copies}", 5, *settings, f"ckpt.copy_aside={copies}", ranks=2, env=slow)
            copied = re.search(r"; steps copied (.+) before they changed it, at most (.+) at a time", result.text)
            self.assertIsNotNone(copied, result.text)
            self.assertEqual(copied[1] == copied[2], copies == "all", copied[0])
            for step in (2, 4):
                data = [self.folder / run / f"ckpt/step-{step:06}/data.h5" for run in ("waits", f"beside-{copies}")]
                subprocess.run(["h5diff", "--exclude-path", "/state", *data], check=True)

    def test_a_disk_that_stays_full(self):
        """The run goes on, tries less and less often, and its last save decides."""
        full = self.storage("/ckpt/.step", f"error:{errno.ENOSPC}", ops="write,open")
        result = self.go("full", 9, "ckpt.interval=2", code=IO_ERROR, env=full)
        self.assertIn("trying once more", result.text)
        self.assertEqual(len(self.metrics("full")), 9, "nothing was lost that could be written")
        tries = re.findall(r"THE CHECKPOINT OF ITERATION (\d+) FAILED", result.text)
        self.assertGreaterEqual(len(tries), 3)
        self.assertEqual(self.steps("full/ckpt"), [])

    def test_as_many_failures_as_the_deck_allows(self):
        full = self.storage("/ckpt/.step", f"error:{errno.EDQUOT}", ops="write,open")
        result = self.go("enough", 9, "ckpt.interval=1", "ckpt.max_failures=2", code=IO_ERROR, env=full, ranks=2)
        self.assertIn("ckpt.max_failures", result.text)
        self.assertEqual(result.text.count("error: "), 1, result.text)
        self.assertLess(len(self.metrics("enough")), 9)

    # ---- what a run can do without ----

    def test_side_outputs_end_no_run(self):
        names = ("trace.json", "samples.jsonl", "summary.json", "metrics.jsonl", "hf-step")
        full = self.storage("|".join(("trace.json", "samples.jsonl", "summary.json", "metrics.jsonl", "/hf")), f"error:{errno.ENOSPC}", ops="write")
        result = self.go("bare", 4, "ckpt.save_hf=checkpoint", code=IO_ERROR, env=full, ranks=2)
        for name in names:
            self.assertRegex(result.text, rf"warning: (the export )?{re.escape(name)}\S* could not be written")
        self.assertIn("the run is done and its last checkpoint whole", result.text)
        self.assertEqual(self.steps("bare/ckpt")[-1], 4)
        self.assertEqual(list((self.folder / "bare" / "hf").glob("*.tmp")), [], "half an export keeps no space")
        self.assertEqual(lines_in(self.folder / "bare" / "samples.jsonl"), 0)

    def test_metrics_that_waited_are_complete(self):
        """Lines that a full disk refused for a while come with the next one, in order."""
        refused = self.storage("metrics.jsonl|samples.jsonl", f"error:{errno.ENOSPC}", ops="write", calls="2-5")
        self.go("late", 6, env=refused)
        self.go("undisturbed", 6)
        self.assertEqual(timeless(self.metrics("late")), timeless(self.metrics("undisturbed")))
        json.dumps(self.samples("late"))  # every line is whole

    # ---- who saves where ----

    def test_two_run_folders_with_one_checkpoint_folder(self):
        """The second is refused while the first lives, and touches nothing of it; then it goes on from what the first saved."""
        slow = adversity("slow_disk", SLOW_DISK_MS="4000-4000")
        first = self.start("ppo", "ppo.toml", "run.dir=c1", "run.iterations=100000", "ckpt.path=common", "ckpt.interval=1", ranks=2, env=slow)
        try:
            self.wait_for(lambda: any((self.folder / "common").glob(".step-*/manifest.json")), first, "the first save")
            second = self.run_program("ppo", "ppo.toml", "run.dir=c2", "ckpt.path=common", ranks=2)
            self.assertEqual(second.code, LOCKED, second.text)
            self.assertIn("the folder of checkpoints (ckpt.path)", second.text)
            self.assertTrue(any((self.folder / "common").glob(".step-*.tmp")) or self.steps("common"), "a live save is left alone")
            first.send(signal.SIGUSR1)
            self.assertEqual(first.wait().code, STOPPED)
        finally:
            first.kill()
        last = self.steps("common")[-1]
        result = self.go("c2", last + 1, "ckpt.path=common")
        self.assertRegex(result.text, f"resumed after iteration ({last}|{last - 1}, inside the next one)")  # where the stop met it

    def test_a_copied_folder_is_nobodys(self):
        """Copied while its run lives, with the claim of that run inside."""
        living = self.start("ppo", "ppo.toml", "run.dir=living", "run.iterations=100000", "ckpt.interval=1")
        try:
            self.wait_for(lambda: self.steps("living/ckpt"), living, "the first checkpoint")
            living.process.send_signal(signal.SIGSTOP)
            shutil.copytree(self.folder / "living", self.folder / "twin", symlinks=True, ignore=shutil.ignore_patterns(".step-*"))
            living.process.send_signal(signal.SIGCONT)
            for claim in (self.folder / "twin").rglob(".run.lock.*"):  # as of a run that ended a minute before `cp -a`: no heart to listen to
                os.utime(claim, (time.time() - 60,) * 2)
            last = self.steps("twin/ckpt")[-1]
            text = self.go("twin", last + 1).text
            self.assertIn("copied here", text)
            self.assertNotIn("listening to its heartbeat", text)
        finally:
            living.kill()

    def test_save_file(self):
        """`touch save` in the run folder is a checkpoint at the end of the iteration, once."""
        job = self.start("ppo", "ppo.toml", "run.dir=asked", "run.iterations=100000", "ckpt.interval=0", ranks=2)
        try:
            self.wait_for(lambda: lines_in(self.folder / "asked" / "metrics.jsonl") >= 1, job, "the first iteration")
            (self.folder / "asked" / "save").touch()
            self.wait_for(lambda: self.steps("asked/ckpt"), job, "the checkpoint")
            self.wait_for(lambda: not (self.folder / "asked" / "save").exists(), job, "the end of the request")
            before = lines_in(self.folder / "asked" / "metrics.jsonl")
            self.wait_for(lambda: lines_in(self.folder / "asked" / "metrics.jsonl") > before + 2, job, "more iterations")
            self.assertLessEqual(len(self.steps("asked/ckpt")), 2)
            (self.folder / "asked" / "stop").touch()
            self.assertEqual(job.wait().code, STOPPED)
        finally:
            job.kill()


if __name__ == "__main__":
    main()
