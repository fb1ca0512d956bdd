#!/usr/bin/env python3
"""Ranks that are bound to cores in the ways of launchers and users: how many threads they plan, how many work, where they may run."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import unittest

from trireme_run import MPI_FLAGS, MPIEXEC, PPO_DECK, ROOT, ProgramTest, lines_in, main

CPUS = sorted(os.sched_getaffinity(0))
LOCAL_RANK = "${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_RANK:-0}}}"

# Large enough that LibTorch and our own loops share the work out.
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 256, "head_dim": 64,
    "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 272,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "initializer_range": 0.05, "torch_dtype": "float32",
}


def taskset(*sets):
    """Binds local rank r to the processors of sets[r]."""
    chosen = " ".join(",".join(str(CPUS[i]) for i in one) for one in sets)
    return ["bash", "-c", f'sets=({chosen}); exec taskset -c "${{sets[{LOCAL_RANK}]}}" "$@"', "rank"]


def tells_of_binding():
    """Open MPI 4 tells a rank that it bound it, even to all cores; 5 does not, and two cores are all that one rank can be given here."""
    said = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False).stdout
    return re.search(r"(Open MPI|OpenRTE)\)? 4\.", said) is not None


def ranks_below(pid):
    """Process ids of the program's ranks under a launcher."""
    found = []
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if "trireme" in pathlib.Path(f"/proc/{child}/comm").read_text():
            found.append(child)
        found += ranks_below(child)
    return found


def allowed_cpus(pid):
    """What each thread of a process may use, as Linux writes it."""
    lists = []
    for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = status.read_text().splitlines()
        except OSError:
            continue
        lists += [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")]
    return lists


class ControlGroup:
    """A group of its own with a limit of processor time, below the one of this process: version 1 or 2, where root may make one."""

    FORMS = (("cpu", "cpu.cfs_quota_us", "100000"), ("", "cpu.max", "100000 100000"))

    def __init__(self):
        self.folder = None
        mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
        groups = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
        for controller, name, limit in self.FORMS:
            points = [m[1] for m in mounts if (m[2] == "cgroup" and controller in m[3].split(",")) or (m[2] == "cgroup2" and not controller)]
            paths = [g[2] for g in groups if controller in g[1].split(",")]
            if points and paths and self.make(pathlib.Path(points[0] + paths[0]) / f"trireme-test-{os.getpid()}", name, limit):
                return
        raise unittest.SkipTest("no control group with a limit of processor time can be made here")

    def make(self, folder, name, limit):
        try:
            folder.mkdir()
        except OSError:
            return False
        try:
            (folder / name).write_text(limit)
            self.folder = folder
        except OSError:
            folder.rmdir()
        return self.folder is not None

    def prefix(self):
        return ["bash", "-c", f'echo $$ >{self.folder}/cgroup.procs && exec "$@"', "rank"]

    def remove(self):
        for _ in range(50):  # processes that have just ended still belong to it
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.1)


@unittest.skipIf(len(CPUS) < 2, "needs two cores")
@unittest.skipIf(shutil.which("taskset") is None, "needs taskset (util-linux)")
class Threads(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "wide").mkdir()
        (cls.folder / "wide" / "config.json").write_text(json.dumps(SHAPE))
        made = cls.run_program("init", "--shape", "wide", "--output", "wide-model", "--tokenizer", ROOT / "inputs" / "tutorial" / "tokenizer",
                               "--dtype", "fp32")
        if made.code:
            raise RuntimeError(made.text)
        # Long enough on every rank for processor time to say who worked.
        deck = PPO_DECK
        for old, new in (('path = "model"', 'path = "wide-model"'), ("n_samples_per_prompt = 2", "n_samples_per_prompt = 8"),
                         ("iterations = 3", "iterations = 2"), ("max_len = 48", "max_len = 128"), ("max_new_tokens = 8", "max_new_tokens = 64"),
                         ("batch_size = 4\nrecompute", "batch_size = 32\nrecompute")):
            if old not in deck:
                raise RuntimeError(f"the deck of trireme_run.py has no {old}")
            deck = deck.replace(old, new)
        (cls.folder / "ppo.toml").write_text(deck)

    def run_bound(self, name, *overrides, **options):
        result = self.succeed("ppo", "ppo.toml", f"run.dir={name}", "ckpt.interval=0", "rollout.stop=[]", *overrides, **options)
        return result.text, self.metrics(name)[-1]["threads"]

    def expect(self, threads, planned, worked=None):
        for role in ("trainer", "generator"):
            self.assertEqual(threads[role], planned, f"{role}: {threads}")
            self.assertEqual(threads.get(f"{role}_worked"), worked or planned, f"{role}: {threads}")

    def test_two_ranks_of_one_core(self):
        text, threads = self.run_bound("two-by-one", ranks=2, prefix=taskset([0], [1]))
        self.expect(threads, 1)
        self.assertIn("trainer 1, generator 1, reward 1 a rank, with 2 ranks of 1 core a node", text)

    def test_one_rank_of_two_cores(self):
        text, threads = self.run_bound("one-by-two", prefix=taskset([0, 1]))
        self.expect(threads, 2)
        self.assertIn("trainer 2, generator 2, reward 2 a rank, with 1 rank of 2 cores a node", text)
        self.assertNotIn("idle", text)

    def test_one_rank_of_one_core(self):
        text, threads = self.run_bound("one-by-one", prefix=taskset([0]))
        self.expect(threads, 1)
        self.assertIn("each rank of the node is bound to one core", text)

    def test_ranks_that_share_their_cores(self):
        _, threads = self.run_bound("shared", ranks=2, prefix=taskset([0, 1], [0, 1]))
        self.expect(threads, 1)

    def test_sets_that_overlap(self):
        _, threads = self.run_bound("overlap", ranks=2, prefix=taskset([0, 1], [1]))
        self.expect(threads, 1)

    def test_roles_that_take_turns(self):
        text, _ = self.run_bound("turns", "ranks.trainer=1", "ranks.generator=1", ranks=2)
        if len(CPUS) == 2:
            self.assertIn('NOTE: while the trainer ranks work, 1 of their 2 cores', text)
            self.assertIn('run.threads = "phase"', text)
        text, threads = self.run_bound("phase", "ranks.trainer=1", "ranks.generator=1", "run.threads=phase", ranks=2, prefix=taskset([0, 1], [0, 1]))
        self.expect(threads, 2)

    def test_the_users_own_binding(self):
        """The OpenMP runtime binds the main thread to one place before main(): the rank still has both cores, and our threads too."""
        text, threads = self.run_bound("own", prefix=taskset([0, 1]), env={"OMP_PROC_BIND": "true", "OMP_PLACES": "threads"})
        self.expect(threads, 2)
        self.assertIn("not pinned (OMP_PROC_BIND is set)", text)

    def test_threads_that_were_told_to_spin(self):
        text, _ = self.run_bound("spin", "run.iterations=1", prefix=taskset([0, 1]), env={"OMP_WAIT_POLICY": "active"})
        self.assertIn("OMP_WAIT_POLICY=active: idle OpenMP threads", text)

    def test_a_number_that_leaves_cores_idle(self):
        text, threads = self.run_bound("number", "run.threads=1", prefix=taskset([0, 1]))
        self.expect(threads, 1)
        self.assertIn("NOTE: while the trainer ranks work, 1 of their 2 cores", text)

    def test_a_limit_of_processor_time(self):
        group = ControlGroup()
        self.addCleanup(group.remove)
        _, threads = self.run_bound("quota", prefix=group.prefix())
        self.expect(threads, 1)

    @unittest.skipUnless(tells_of_binding(), "this launcher does not say that it bound a rank to all cores")
    def test_the_launchers_binding_pins(self):
        launcher = [MPIEXEC, *(flag for flag in MPI_FLAGS if flag == "--allow-run-as-root"), "--map-by", "slot:PE=2", "--bind-to", "core"]
        job = self.start("ppo", "ppo.toml", "run.dir=pinned", "ckpt.interval=0", "run.iterations=40", "rollout.stop=[]", launcher=launcher)
        self.wait_for(lambda: lines_in(self.folder / "pinned" / "metrics.jsonl") > 0 and self.rank_has_pinned_thread(job), job, "a pinned thread")
        (self.folder / "pinned" / "stop").touch()
        result = job.wait()
        self.assertEqual(result.code, 75, result.text)
        self.assertIn("pinned one to a core", result.text)
        self.expect(self.metrics("pinned")[-1]["threads"], 2)
        text, _ = self.run_bound("never", "run.pin_threads=never", launcher=launcher)
        self.assertIn('not pinned (run.pin_threads = "never")', text)

    def rank_has_pinned_thread(self, job):
        time.sleep(0.05)
        try:
            lists = [one for pid in ranks_below(job.process.pid) for one in allowed_cpus(pid)]
        except OSError:
            return False
        single = [one for one in lists if one.isdigit()]
        return bool(single) and len(single) < len(lists)  # the main thread, the watchdog and the writer stay free


if __name__ == "__main__":
    main()
