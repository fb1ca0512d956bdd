#!/usr/bin/env python3
"""Signals on two ranks under the launcher: which exit code the job ends with, and what is left behind.

As in resume_test.py they come from inside the iteration that is meant: a reward plugin of weight zero sends them to its parent, a
rank of the program, and then answers late, so that the rank is in the middle of the iteration.
"""

import json
import resource
import signal
import time
import unittest

from trireme_run import SABOTEUR_SOURCE, ProgramTest, adversity, lines_in, main

# SABOTAGE: "iteration signal,seconds signal,seconds ..."; the answer comes after all of them.
SABOTEUR = """
import json, os, sys, time
at, *deeds = os.environ.get("SABOTAGE", "0").split()
done = False
for line in sys.stdin:
    request = json.loads(line)
    if not done and request["iteration"] == int(at):
        done = True
        for deed in deeds:
            number, seconds = deed.split(",")
            if int(number):
                os.kill(os.getppid(), int(number))
            time.sleep(float(seconds))
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""

NO_SPACE = 74
STOPPED = 75
LOST = 76
INTERRUPTED = 130
ABORTED = 134
CRASHED = 139
LATE = 1000  # seconds that a plugin stays silent: a test that waited for the end of it would be red


def deeds(iteration, *pairs):
    return {"SABOTAGE": " ".join([str(iteration), *(f"{int(number)},{seconds}" for number, seconds in pairs)])}


class Signals(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "saboteur.py").write_text(SABOTEUR)
        deck = (cls.folder / "ppo.toml").read_text().replace("iterations = 3", "iterations = 4\nstop_within = \"iteration\"").replace(
            "\n[actor]", SABOTEUR_SOURCE + "[actor]")
        (cls.folder / "ppo.toml").write_text(deck)

    def run_two(self, run, *overrides, code, env=None, ranks=2):
        return self.succeed("ppo", "ppo.toml", f"run.dir={run}", *overrides, ranks=ranks, code=code, env=env)

    def steps(self, run):
        return sorted(path.name for path in (self.folder / run / "ckpt").glob("step-*"))

    def test_usr1_stops_with_a_checkpoint(self):
        self.run_two("usr1", "ckpt.interval=0", "trace.enabled=true", code=STOPPED, env=deeds(2, (signal.SIGUSR1, 0)))
        self.assertEqual(self.steps("usr1"), ["step-000002"])
        events = json.loads((self.folder / "usr1" / "trace.json").read_text())["traceEvents"]
        self.assertEqual([event["pid"] for event in events if event["name"] == "stop requested"], [0, 1], "a moment of each rank")

    def test_usr2_saves_and_goes_on(self):
        self.run_two("usr2", "ckpt.interval=0", code=0, env=deeds(2, (signal.SIGUSR2, 0)))
        self.assertEqual(self.steps("usr2"), ["step-000002", "step-000004"])

    def test_term_with_time_to_save(self):
        self.run_two("term", "ckpt.interval=0", "run.term_grace=0", code=STOPPED, env=deeds(2, (signal.SIGTERM, 0)))
        self.assertEqual(self.steps("term"), ["step-000002"])
        self.assertEqual(len(self.metrics("term")), 2)

    def test_term_without_time_and_nothing_saved(self):
        """The grace ends in the middle of iteration 3, while ranks wait for a plugin and for each other."""
        result = self.run_two("lost", "ckpt.interval=0", "run.term_grace=2", code=LOST, env=deeds(3, (signal.SIGTERM, LATE)))
        self.assertIn("iterations 1 to 3 are lost", result.text)
        self.assertEqual(self.steps("lost"), [])

    def test_term_without_time_but_all_saved(self):
        result = self.run_two("kept", "ckpt.interval=1", "ckpt.background=false", "run.term_grace=2", code=STOPPED,
                              env=deeds(3, (signal.SIGTERM, LATE)))
        self.assertIn("the last checkpoint is of iteration 2, only the unfinished iteration is lost", result.text)
        self.assertEqual(self.steps("kept")[-1], "step-000002")

    def test_continue_is_no_stop(self):
        self.run_two("cont", code=0, env=deeds(2, (signal.SIGCONT, 0)))

    def test_second_interrupt_ends_at_once(self):
        self.run_two("twice", code=INTERRUPTED, env=deeds(2, (signal.SIGINT, 0.5), (signal.SIGINT, LATE)))

    def test_one_interrupt_is_a_stop(self):
        said = self.run_two("once", code=STOPPED, env=deeds(2, (signal.SIGINT, 0))).text
        self.assertRegex(said, r"a signal asks for a stop: the run saves .*touch once/stop gives it all the time it needs\n(.*\n)*stopping after iteration 2", "said at once")
        self.assertEqual(self.steps("once")[-1], "step-000002")

    def test_third_stop_during_the_last_save_ends_at_once(self):
        """The disk takes longer than the three signals; without the third the run would end with 75."""
        env = adversity("slow_disk", SLOW_DISK_MS=f"{LATE}000-{LATE}000")
        job = self.start("ppo", "ppo.toml", "run.dir=third", "run.iterations=100000", "ckpt.interval=0", "run.term_grace=0", env=env)
        self.wait_for(lambda: lines_in(self.folder / "third" / "metrics.jsonl") >= 1, job, "the first iteration")
        job.send(signal.SIGTERM)
        self.wait_for(lambda: any((self.folder / "third" / "ckpt").glob(".step-*/manifest.json")), job, "the last save")
        for number in (signal.SIGINT, signal.SIGTERM):
            time.sleep(2.5)  # less apart they count as one
            job.send(number)
        result = job.wait()
        self.assertEqual(result.code, LOST, result.text)
        self.assertEqual(self.steps("third"), [])

    def test_warnings_during_the_last_save_change_nothing(self):
        """Batch scripts repeat USR1 for as long as the program lives; the last save of a large model takes minutes."""
        env = adversity("slow_disk", SLOW_DISK_MS="8000-8000")
        job = self.start("ppo", "ppo.toml", "run.dir=warned", "run.iterations=100000", "ckpt.interval=0", ranks=2, env=env)
        self.wait_for(lambda: lines_in(self.folder / "warned" / "metrics.jsonl") >= 1, job, "the first iteration")
        while job.process.poll() is None:
            job.send(signal.SIGUSR1)
            time.sleep(2.5)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, result.text)
        self.assertEqual(len(self.steps("warned")), 1)

    def test_crash_leaves_a_stack(self):
        for number, code in ((signal.SIGSEGV, CRASHED), (signal.SIGABRT, ABORTED)):
            with self.subTest(signal=number):
                run = f"crash-{int(number)}"
                self.run_two(run, code=code, env=deeds(2, (number, LATE)))
                stacks = list((self.folder / run / "logs").glob("rank-*.crash"))
                self.assertTrue(stacks, "a rank that crashed wrote its stack")
                text = stacks[0].read_text()
                self.assertIn(number.name, text)
                self.assertGreater(text.count("trireme"), 2, text)

    def test_file_size_limit_is_an_error_not_a_kill(self):
        job = self.start("ppo", "ppo.toml", "run.dir=limit", "run.iterations=100000", "ckpt.interval=0", "trace.enabled=false")
        self.wait_for(lambda: lines_in(self.folder / "limit" / "metrics.jsonl") >= 1, job, "the first iteration")
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        job.send(signal.SIGUSR1)
        result = job.wait()
        self.assertEqual(result.code, NO_SPACE, result.text)
        self.assertIn("ulimit -f", result.text)
        self.assertEqual(self.steps("limit"), [])


if __name__ == "__main__":
    main()
