#!/usr/bin/env python3
"""TRIREME_VERDICT: the program writes there with which exit code it ends, whatever the launcher makes of ranks that leave one after
another. One of the two ranks leaves a second and a half after the other."""

import os
import shutil
import signal
import unittest

from trireme_run import SABOTEUR_SOURCE, ProgramTest, adversity, main

# SABOTAGE: "iteration signal": sent to the rank that asks, which then gets no answer.
SABOTEUR = """
import json, os, sys, time
at, number = map(int, os.environ.get("SABOTAGE", "0 0").split())
for line in sys.stdin:
    request = json.loads(line)
    if request["iteration"] == at:
        os.kill(os.getppid(), number)
        time.sleep(0 if number == 10 else 1000)
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""

NO_SPACE = 74
STOPPED = 75


class Verdict(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "saboteur.py").write_text(SABOTEUR)
        cls.deck_with("sabotaged.toml", "iterations = 3", "iterations = 3\nstop_within = \"iteration\"")
        text = (cls.folder / "sabotaged.toml").read_text().replace("\n[actor]", SABOTEUR_SOURCE + "[actor]")
        (cls.folder / "sabotaged.toml").write_text(text)

    def verdict_of(self, *overrides, late=1, env=None, deck="ppo.toml"):
        """Exit code of the launcher and the words of the verdict."""
        file = self.folder / f"verdict-{self.id().rpartition('.')[2]}-{late}"
        settings = adversity("slow_exit", SLOW_EXIT_RANK=str(late)) | {"TRIREME_VERDICT": str(file)} | (env or {})
        result = self.run_program("ppo", deck, f"run.dir={file.name}.run", *overrides, ranks=2, env=settings)
        self.assertTrue(file.exists(), result.text)
        left = [path.name for path in self.folder.glob(f"{file.name}.*.tmp")]
        self.assertEqual(left, [])
        return result, file.read_text().split()

    def test_agreed_by_all(self):
        for late in (0, 1):
            with self.subTest(late=late):
                _, words = self.verdict_of("run.iterations=1", late=late)
                self.assertEqual(words[0], "0")
                self.assertEqual((words[1], words[3]), ("host", "pid"))

    def test_stopped(self):
        for late in (0, 1):
            _, words = self.verdict_of(late=late, deck="sabotaged.toml", env={"SABOTAGE": f"2 {int(signal.SIGUSR1)}"})
            self.assertEqual(int(words[0]), STOPPED)

    def test_error_that_all_ranks_see(self):
        for late in (0, 1):
            _, words = self.verdict_of('fault.at=["io_fail:*:checkpoint write:*:28"]', "run.iterations=1", late=late)  # the second try, too
            self.assertEqual(int(words[0]), NO_SPACE)

    def test_error_before_the_start_of_mpi(self):
        _, words = self.verdict_of("actor.adam.lr=-1")
        self.assertEqual(words[0], "78")

    def test_rank_that_leaves_alone(self):
        """No time for a checkpoint; a crash: one rank ends the job."""
        _, words = self.verdict_of("ckpt.interval=0", "run.term_grace=2", deck="sabotaged.toml", env={"SABOTAGE": f"2 {int(signal.SIGTERM)}"})
        self.assertEqual(words[0], "76")
        _, words = self.verdict_of("ckpt.resume=never", deck="sabotaged.toml", late=0, env={"SABOTAGE": f"2 {int(signal.SIGSEGV)}"})
        self.assertEqual(words[0], "139")

    def test_killed_rank_gives_none(self):
        file = self.folder / "none"
        self.run_program("ppo", "sabotaged.toml", "run.dir=none.run", ranks=2,
                         env={"TRIREME_VERDICT": str(file), "SABOTAGE": f"2 {int(signal.SIGKILL)}"})
        self.assertFalse(file.exists())

    def test_the_first_one_stays_and_a_folder_that_is_not_there_is_no_error(self):
        file = self.folder / "taken"
        file.write_text("42\n")
        self.succeed("ppo", "ppo.toml", "run.dir=taken.run", "run.iterations=1", env={"TRIREME_VERDICT": str(file)})
        self.assertEqual(file.read_text(), "42\n")
        self.succeed("ppo", "ppo.toml", "run.dir=absent.run", "run.iterations=1", env={"TRIREME_VERDICT": "/nonexistent/verdict"})
        self.assertFalse(os.path.exists("/nonexistent"))
        shutil.rmtree(self.folder / "absent.run")


if __name__ == "__main__":
    main()
