#!/usr/bin/env python3
"""Ranks that hang, and ranks that only take their time. A hang is named - who did not arrive, and where it is - soon after its deadline, on
every rank's stderr; what is slow for a reason of its own is left alone.
"""

import json
import os
import signal
import struct
import time

from trireme_run import PROGRAM, SABOTEUR_SOURCE, ProgramTest, adversity, lines_in, main, ranks_of

HUNG = 70
STOPPED = 75

# SLEEP="iteration seconds rank": that rank's plugin answers late, once.
SLEEPER = """
import json, os, sys, time
at, seconds, rank = os.environ.get("SLEEP", "0 0 0").split()
for line in sys.stdin:
    request = json.loads(line)
    if request["iteration"] == int(at) and os.environ.get("OMPI_COMM_WORLD_RANK", "0") == rank:
        at = "0"
        time.sleep(float(seconds))
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""


class Hangs(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "saboteur.py").write_text(SLEEPER)
        cls.deck_with("plugin.toml", "\n[actor]", SABOTEUR_SOURCE + "[actor]")

    def hang(self, run, kind, place, ranks=2, deadline=4):
        """`place` is "rank:region:pass"; the rank stays there for a moment first, so that its last life sign says so."""
        return self.succeed("ppo", "ppo.toml", f"run.dir={run}", "run.iterations=100", f"run.hang_timeout={deadline}",
                              f'fault.at=["delay:{place}:1500", "{kind}:{place}"]', ranks=ranks, code=HUNG)

    # ---- what hangs ----

    def test_a_rank_that_stops_in_any_phase_is_named(self):
        """SIGSTOP of one rank: the others wait in a collective, and know which rank is not heard of."""
        for place, number in (("rollout", 3), ("train", 3)):  # each is two regions an iteration: writing and waiting, scoring and learning
            with self.subTest(place=place):
                result = self.hang(f"stopped-{place}", "suspend", f"1:{place}:{number}", ranks=3)
                self.assertRegex(result.text, rf"HANG: a rank has not been heard of for \S+ s [^:]*: rank 1 \(\S+\) in iteration 2 > {place}")
                for rank in (0, 2):
                    self.assertIn(f"Rank {rank} itself: in ", result.text, "first words of every rank that can speak")
                self.assertRegex(result.text, r"ranks wait: rank 0 \(\S+\) in [^;]*, the \d+th")
                reports = sorted(path.name for path in (self.folder / f"stopped-{place}" / "hang").iterdir())
                self.assertIn("rank-00000.json", reports)

    def test_rank_0_that_stops_is_named(self):
        result = self.hang("stopped-0", "suspend", "0:train:3")
        self.assertIn("HANG: rank 0 has not been heard of", result.text)

    def test_a_rank_that_works_for_ever_is_named(self):
        result = self.hang("busy", "hang", "1:train:3", ranks=3)
        self.assertRegex(result.text, r"HANG: a rank makes no progress and did not arrive: rank 1 \(\S+\) in iteration 2 > train")

    def test_one_rank_alone(self):
        self.assertIn("rank 0 in iteration 2 > train", self.hang("alone", "hang", "0:train:3", ranks=1).text)

    def test_a_file_system_that_never_answers(self):
        """Files, logs and listings of the run folder block for ever; the job ends all the same, also after SIGTERM."""
        for term in (False, True):
            with self.subTest(term=term):
                run = f"blocked-{term}"
                marker = self.folder / f"{run}-marker"
                stuck = adversity("storage", STORAGE=f"/{run}/", STORAGE_DO="block", STORAGE_WHILE=str(marker))
                job = self.start("ppo", "ppo.toml", f"run.dir={run}", "run.iterations=100000", "run.hang_timeout=4", "run.io_timeout=4", "ckpt.interval=1",
                                 ranks=2, env=stuck)
                self.wait_for(lambda: lines_in(self.folder / run / "metrics.jsonl") >= 2, job, "the second iteration")
                marker.touch()
                if term:
                    for pid in ranks_of(job).values():
                        os.kill(pid, signal.SIGTERM)
                result = job.wait()
                self.assertIn(result.code, (HUNG, 76) if term else (HUNG,), result.text)
                if not term:
                    self.assertIn("HANG: ", result.text)

    def test_reports_of_an_earlier_hang_go(self):
        self.hang("again", "hang", "0:train:2", ranks=1)
        self.assertTrue((self.folder / "again" / "hang").exists())
        self.succeed("ppo", "ppo.toml", "run.dir=again", "run.iterations=3")
        self.assertFalse((self.folder / "again" / "hang").exists())

    # ---- what is only slow ----

    def slow(self, run, *overrides, iterations=3, deadline=3, ranks=2, deck="ppo.toml", env=None):
        return self.succeed("ppo", deck, f"run.dir={run}", f"run.iterations={iterations}", f"run.hang_timeout={deadline}", *overrides, ranks=ranks, env=env)

    def test_a_plugin_that_takes_its_time(self):
        self.slow("plugin", "reward.source.1.timeout=60", deck="plugin.toml", env={"SLEEP": "2 6 1"})
        self.assertEqual(len(self.metrics("plugin")), 3)

    def test_a_slow_file_system(self):
        """Saving and loading have run.io_timeout; 0 is never."""
        for io_timeout in ("60", "0"):
            with self.subTest(io_timeout=io_timeout):
                run = f"slow-{io_timeout}"
                slow = {"STORAGE_OPS": "read,fsync", "STORAGE_DO": "delay:5000", "STORAGE_CALLS": "1-1"}
                for iterations, paths in ((2, "data.h5"), (3, "data.h5"), (4, "prompts.jsonl|model.safetensors")):
                    self.slow(run, f"run.io_timeout={io_timeout}", iterations=iterations, env=adversity("storage", STORAGE=paths, **slow))
                self.assertEqual(len(self.metrics(run)), 4)

    def test_a_slow_file_system_beyond_its_deadline(self):
        self.slow("beyond", iterations=1)
        slow = adversity("storage", STORAGE="data.h5", STORAGE_OPS="read", STORAGE_DO="delay:60000", STORAGE_RANK="1")
        result = self.succeed("ppo", "ppo.toml", "run.dir=beyond", "run.iterations=2", "run.hang_timeout=3", "run.io_timeout=5", ranks=2, code=HUNG, env=slow)
        self.assertRegex(result.text, r"did not arrive: rank 1 \(\S+\) in start > checkpoint open")

    def test_a_pause_of_the_whole_job(self):
        """Stopped and continued, as by gang scheduling or `scontrol suspend`: nobody was silent."""
        job = self.start("ppo", "ppo.toml", "run.dir=paused", "run.iterations=100000", "ckpt.interval=0", "run.hang_timeout=4", ranks=3)
        self.wait_for(lambda: lines_in(self.folder / "paused" / "metrics.jsonl") >= 1, job, "the first iteration")
        ranks = ranks_of(job)
        self.assertEqual(sorted(ranks), [0, 1, 2])
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in ranks.values():
                os.kill(pid, number)
                time.sleep(0.3)  # they do not stand still at the same moment
            time.sleep(7 if number == signal.SIGSTOP else 0)
        before = lines_in(self.folder / "paused" / "metrics.jsonl")
        self.wait_for(lambda: lines_in(self.folder / "paused" / "metrics.jsonl") > before + 2, job, "more iterations")
        job.send(signal.SIGUSR1)
        self.assertEqual(job.wait().code, STOPPED)

    # ---- ranks that do not mean the same ----

    def only_rank_1(self, command):
        """A prefix that does something on rank 1 before the program starts."""
        return ["bash", "-c", f'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || {{ {command}; }}; exec "$@"', "rank"]

    def test_ranks_with_different_decks(self):
        result = self.succeed("ppo", "ppo.toml", "run.dir=decks", ranks=3, code=78, prefix=self.only_rank_1("set -- \"$@\" run.seed=9 ckpt.keep=7"))
        self.assertIn("rank 1: this rank's deck is not that of rank 0", result.text)
        for words in ("run.seed: 3 -> 9", "ckpt.keep: 3 -> 7"):
            self.assertIn(words, result.text)
        self.assertEqual(result.text.count("error: "), 1)

    def test_ranks_with_different_programs(self):
        """One bit of what the linker says of the executable: as if it had been built from other sources."""
        program = bytearray(PROGRAM.read_bytes())
        program[program.index(struct.pack("<III4s", 4, 20, 3, b"GNU\0")) + 16] ^= 1
        other = self.folder / "other" / "trireme"
        other.parent.mkdir()
        other.write_bytes(program)
        other.chmod(0o755)
        result = self.succeed("ppo", "ppo.toml", "run.dir=programs", ranks=3, code=69, prefix=self.only_rank_1(f"shift; set -- {other} \"$@\""))
        self.assertIn("rank 1: this rank runs another build of Trireme than rank 0 (build ID ", result.text)
        self.assertEqual(result.text.count("error: "), 1)

    def test_ranks_with_different_data(self):
        twin = self.folder / "twin"
        twin.mkdir()
        for path in self.folder.iterdir():
            if path.name not in ("twin", "prompts.jsonl"):
                (twin / path.name).symlink_to(path)
        lines = (self.folder / "prompts.jsonl").read_text().splitlines(keepends=True)
        (twin / "prompts.jsonl").write_text("".join([lines[0].replace("1+2", "1+3"), *lines[1:]]))
        result = self.succeed("ppo", "ppo.toml", f"run.dir={self.folder}/rows", ranks=2, code=65, prefix=self.only_rank_1("cd twin"))
        self.assertIn("rank 1: prompts.jsonl differs from what rank 0 has read (8 rows here, 8 there", result.text)

    def test_ranks_with_different_tokenizers(self):
        """Prompts have the same tokens, since the ranks of a node encode them together; answers would have other texts on rank 1."""
        twin = self.folder / "other-tokenizer"
        (twin / "model").mkdir(parents=True)
        for path in (*self.folder.iterdir(), *(self.folder / "model").iterdir()):
            if path.is_file() and path.name != "tokenizer.json":
                (twin / path.relative_to(self.folder)).symlink_to(path)
        tokenizer = json.loads((self.folder / "model" / "tokenizer.json").read_text())
        ids = tokenizer["model"]["vocab"]
        ids["q"], ids["z"] = ids["z"], ids["q"]
        (twin / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
        for command in ("ppo", "sft"):
            result = self.succeed(command, f"{command}.toml", f"run.dir={self.folder}/{command}-texts", ranks=2, code=65,
                                  prefix=self.only_rank_1("cd other-tokenizer"))
            self.assertIn("rank 1: the tokenizer in model is not that of rank 0 (digest ", result.text)

    # ---- other faults at named places ----

    def test_faults_of_one_rank(self):
        for fault, code, words in (("kill:1:train:2", 137, ""), ("segv:1:rollout:3", 139, ""), ("exit:1:train:2:42", 42, ""),
                                   ("alloc_fail:1:train:2", 71, "rank 1"), ("io_fail:1:train:2:5", 74, "rank 1")):
            with self.subTest(fault=fault):
                result = self.succeed("ppo", "ppo.toml", f"run.dir=fault-{fault.split(':')[0]}", f'fault.at=["{fault}"]', ranks=2, code=code)
                self.assertIn(words, result.text)
                self.assertIn("faults are injected", result.text)

    def test_a_nan_is_named_and_not_for_ever(self):
        result = self.succeed("ppo", "ppo.toml", "run.dir=once", 'fault.at=["nan:1:loss:2"]', ranks=2)
        self.assertRegex(result.text, r"an optimizer step of the actor was left out: .* first in the gradient of \S+ on rank \d")
        self.assertEqual(sum(line["skipped_steps"] for line in self.metrics("once")), 1)
        result = self.succeed("ppo", "ppo.toml", "run.dir=for-ever", "run.iterations=20", "train.max_skipped_steps=2", "train.max_epochs=4", 'fault.at=["nan:1:weight:2"]', ranks=2,
                              code=HUNG)
        self.assertRegex(result.text, r"first in the weight of \S+ on rank 1")
        self.assertIn("train.max_skipped_steps = 2", result.text)
        self.assertLess(len(self.metrics("for-ever")), 8)

    def test_production_refuses_faults(self):
        result = self.succeed("ppo", "ppo.toml", "run.dir=serious", "run.production=true", 'fault.at=["kill:0:train:1"]', code=78)
        self.assertIn("run.production", result.text)
        result = self.succeed("ppo", "ppo.toml", "run.dir=serious", "run.production=true", "fault.crash_at=ckpt.begin", code=78)
        self.assertIn("run.production", result.text)


if __name__ == "__main__":
    main()
