#!/usr/bin/env python3
"""pbs/trireme.pbs as it is shipped, on stand-ins of PBS, with the real program: it stops before the walltime and goes on in
its successor, ends for good at qdel, comes back after a dead rank, survives qrerun's overlap, and runs in chains and arrays.
"""

import json
import os
import re
import signal
import subprocess

from pbs_run import ROOT, SCRIPT, Pbs, PbsTest, main


class Contract(PbsTest):
    def test_walltime(self):
        """Each job stops by itself, the next goes on at the very next iteration, and the chain has a bound."""
        self.install(routes={"prod": "small"}, poll=15)
        # No checkpoint but the one at the stop: if that one were missing, steps would be lost.
        deck = self.deck(100000, controlled=False, interval="100000")
        first = self.submit(deck, "-A", "project", "-q", "prod", walltime="00:00:16", TRIREME_MAX_RESTARTS=1,
                            TRIREME_OVERRIDES="run.seed=7 actor.adam.lr=1e-4", NCCL_DEBUG="WARN,ENV")
        self.wait_all_ended()
        jobs = self.pbs.jobs()
        self.assertEqual([job["exit"] for job in jobs], [75, 75], self.logs())
        self.assertFalse([text for text in self.pbs.events() if text.startswith(("term", "kill"))], "PBS never had to end a job")
        logs = [self.pbs.log(job) for job in jobs]
        self.assertRegex(logs[0], rf"job {first.replace('.', '_')}, restart 0: 2 ranks on 1 nodes, from step 0")
        between = int(re.search(r"stopped at step (\d+) before the walltime", logs[0])[1])
        self.assertIn(f"submitted {jobs[1]['id']} (restart 1)", logs[0])
        self.assertIn(f"restart 1: 2 ranks on 1 nodes, from step {between},", logs[1])
        self.assertIn("TRIREME_MAX_RESTARTS=1 is reached", logs[1])
        self.assertGreater(self.assert_every_iteration_once(), between)
        self.assertGreater(between, 0)
        # The successor has what the first one was given on qsub's command line.
        for key in ("resources", "account", "from_queue", "queue", "name"):
            self.assertEqual(jobs[1][key], jobs[0][key], key)
        for name, value in jobs[0]["variables"].items():
            self.assertEqual(jobs[1]["variables"][name], value, name)
        self.check_environment_file(first)

    def check_environment_file(self, job_id):
        path = self.run_dir() / f"environment-{job_id.replace('.', '_')}.txt"
        text = path.read_text()
        for expected in ("PBS_JOBID=" + job_id, "TRIREME_OVERRIDES=run.seed=7 actor.adam.lr=1e-4", "OMP_NUM_THREADS=1\n",
                         "NCCL_DEBUG=WARN,ENV"):
            self.assertIn(expected, text)
        self.assertNotIn("COOKIE", text)
        self.assertEqual(path.stat().st_mode & 0o077, 0, "PBS's umask 0077 is kept")
        self.assertIn("seed = 7", (self.run_dir() / "deck.toml").read_text())

    def test_qdel(self):
        """qdel ends a run for good; what was done stays, and the same submission goes on there."""
        self.install(kill_delay=60)
        deck = self.deck(4)
        (self.control / "hold-3").touch()
        job_id = self.submit(deck)
        self.wait_reached(3)
        self.assertEqual(self.pbs.command("qdel", job_id).returncode, 0)
        self.pbs.wait(lambda: "term delete" in self.pbs.events(), "TERM")
        (self.control / "hold-3").unlink()
        self.wait_all_ended()
        self.assertEqual(len(self.pbs.jobs()), 1, self.logs())
        self.assertIn("stopped by qdel", self.pbs.log(self.job(job_id)))
        self.assertNotIn("submitted", self.logs())
        status = self.pbs.command("qstat", job_id)
        self.assertEqual((status.returncode, status.stderr.strip()), (153, f"qstat: Unknown Job Id {job_id}"))
        self.assertGreaterEqual(self.assert_every_iteration_once(), 2)

        self.submit(deck, TRIREME_UMASK="0027")
        self.wait_all_ended()
        self.assertEqual(self.pbs.jobs()[1]["exit"], 0, self.logs())
        self.assert_every_iteration_once(4)

    def test_qrerun(self):
        """Run 2 starts while the ranks of run 1 live: it waits for the lock, and the folder has one writer at a time."""
        self.install(leftover_text="another try in 5 s", leftover_seconds=60)
        (self.control / "hold-3").touch()
        job_id = self.submit(self.deck(5))
        self.wait_reached(3)
        self.assertEqual(self.pbs.command("qrerun", job_id).returncode, 0)
        self.pbs.wait(lambda: "leftovers end seen" in self.pbs.events(), "run 2 at the lock of run 1")
        self.assertEqual(self.iterations(), [1, 2], "nobody has gone on meanwhile")
        (self.control / "hold-3").unlink()
        self.wait_all_ended()
        log = self.pbs.log(self.job(job_id))
        self.assertEqual(len(self.pbs.jobs()), 1)
        self.assertEqual(self.job(job_id)["exit"], 0, log)
        self.assertEqual(self.job(job_id)["run_count"], 2)
        self.assertRegex(log, r"is in use \(job pbs " + re.escape(job_id))
        self.assertIn("taking the run folder over from", log)
        self.assertIn("resumed after iteration 2", log)
        self.assert_every_iteration_once(5)

    def test_dead_rank(self):
        """A killed rank brings the run back as long as steps are made and the bound is not reached."""
        self.install()
        for iteration in (2, 4):
            self.signal_in(iteration, signal.SIGKILL, after_step=iteration - 1)
        self.submit(self.deck(6), TRIREME_MAX_RETRIES=1)
        self.wait_all_ended()
        jobs = self.pbs.jobs()
        self.assertEqual([job["exit"] for job in jobs], [137, 137, 0], self.logs())
        self.assertIn("retry 1 of 1 without a new checkpoint", self.pbs.log(jobs[0]))
        self.assertEqual(jobs[-1]["exit"], 0, "each of them made steps, so one retry in a row was enough")
        self.assert_every_iteration_once(6)

    def test_dead_rank_without_progress(self):
        """A rank that dies every time before the first checkpoint: the budget ends it."""
        self.install()
        deck = self.deck(6, interval="1000")
        self.signal_in(1, signal.SIGKILL)
        self.submit(deck, TRIREME_MAX_RETRIES=1)
        self.pbs.wait(lambda: len(self.pbs.jobs()) == 2, "the retry")
        self.signal_in(1, signal.SIGKILL)
        self.wait_all_ended()
        exits = [job["exit"] for job in self.pbs.jobs()]
        if exits == [137, 0]:
            self.skipTest("the second start was past its first iteration before the signal lay ready")
        self.assertEqual(exits, [137, 137], self.logs())
        self.assertIn("stopped after 1 retries without a new checkpoint", self.logs())

    def test_chain(self):
        """depend=afternotok: the next job goes on after exit code 75 and is dropped after 0; the script itself submits nothing."""
        self.install()
        (self.control / "hold-2").touch()
        self.signal_in(2, signal.SIGUSR1)
        deck = self.deck(4)
        first = self.submit(deck, TRIREME_MAX_RESTARTS=0)
        second = self.submit(deck, "-W", f"depend=afternotok:{first}", TRIREME_MAX_RESTARTS=0)
        third = self.submit(deck, "-W", f"depend=afternotok:{second}", TRIREME_MAX_RESTARTS=0)
        (self.control / "hold-2").unlink()
        self.wait_all_ended()
        self.assertEqual([self.job(job_id).get("exit") for job_id in (first, second, third)], [75, 0, None], self.logs())
        self.assertEqual(self.pbs.events(third), ["deleted before it ran"])
        self.assertEqual(len(self.pbs.jobs()), 3)
        self.assertIn("TRIREME_MAX_RESTARTS=0 is reached", self.pbs.log(self.job(first)))
        self.assert_every_iteration_once(4)

    def test_array(self):
        """Tasks of an array are runs of their own; one that is stopped goes on alone as a plain job, since PBS has no arrays of one."""
        self.install()
        self.signal_in(2, signal.SIGUSR1)
        array = self.submit(self.deck(3), "-J", "0-1", TRIREME_SWEEP="run.seed=11|run.seed=12")
        self.assertEqual(array, "1[].server")
        self.wait_all_ended()
        jobs = self.pbs.jobs()
        self.assertEqual(sorted(job["exit"] for job in jobs), [0, 0, 75], self.logs())
        self.assertEqual([job["id"] for job in jobs], ["1[0].server", "1[1].server", "2.server"])
        stopped = next(job for job in jobs if job["exit"] == 75)
        self.assertEqual(jobs[2]["variables"]["TRIREME_TASK"], str(stopped["index"]))
        for task in (0, 1):
            self.assert_every_iteration_once(3, task)
            self.assertIn(f"seed = {11 + task}", (self.run_dir(task) / "deck.toml").read_text())
        self.assertFalse(self.run_dir().exists())

    def test_save_and_stop_on_request(self):
        """The file `save` makes a checkpoint and all go on; the file `stop` is the end: no successor. They need no signal to get through."""
        self.install()
        for iteration in (2, 3):
            (self.control / f"hold-{iteration}").touch()
        self.submit(self.deck(5, interval="1000"))
        self.wait_reached(2)
        (self.run_dir() / "save").touch()
        (self.control / "hold-2").unlink()
        self.wait_reached(3)
        (self.run_dir() / "stop").touch()
        (self.control / "hold-3").unlink()
        self.wait_all_ended()
        self.assertEqual([job["exit"] for job in self.pbs.jobs()], [75], self.logs())
        self.assertIn("by the file 'stop'", self.logs())
        self.assertEqual([path.name for path in self.run_dir().glob("stop*")], ["stopped"], "the next start is one that somebody wants")
        self.assertEqual(sorted(path.name for path in (self.run_dir() / "ckpt").glob("step-*")), ["step-000002", "step-000003"])
        self.assert_every_iteration_once(3)

    def test_qsig_and_the_login_shell(self):
        """The login shell above the script has no trap: qsig ends the job with what was saved, unless its profile ignores the signals."""
        self.install()
        (self.control / "hold-2").touch()
        job_id = self.submit(self.deck(4, interval="1"))
        self.wait_reached(2)
        self.pbs.wait(lambda: (self.run_dir() / "ckpt" / "step-000001").exists(), "the first checkpoint")
        self.assertEqual(self.pbs.command("qsig", "-s", "USR2", job_id).returncode, 0)
        self.wait_all_ended()
        self.assertEqual([job["exit"] for job in self.pbs.jobs()], [256 + signal.SIGUSR2], "as docs/user/batch.md says")
        self.pbs.end()

        self.pbs = Pbs(self.folder / f"{self.name}-trapped", self, profile_traps=True)
        (self.control / "hold-3").touch()
        (self.control / "hold-2").unlink()
        job_id = self.submit(self.deck(4, interval="1000"))
        self.wait_reached(3)
        self.assertEqual(self.pbs.command("qsig", "-s", "USR1", job_id).returncode, 0)
        self.pbs.wait(lambda: "signal USR1" in self.pbs.events(), "USR1")
        (self.control / "hold-3").unlink()
        self.wait_all_ended()
        self.assertEqual([job["exit"] for job in self.pbs.jobs()], [75, 0], self.logs())
        self.assert_every_iteration_once(4)

    def test_two_nodes(self):
        """mpirun reaches the nodes of the node file by ssh, which brings nothing along: what a rank needs is passed on."""
        version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
        if not re.search(r"\(Open MPI\) 4\.", version):
            self.skipTest("nodes that share a host name: only Open MPI 4 takes them, 5 waits for ever in its first collective")
        self.install(nodes=["n1", "n2"])
        self.signal_in(2, signal.SIGUSR1)
        self.submit(self.deck(3), select="2:ncpus=1:mpiprocs=1", TRIREME_THREADS_PER_RANK=1, TRIREME_MPI_OPTIONS="--bind-to none",
                    NCCL_DEBUG="WARN")
        self.wait_all_ended()
        self.assertEqual([job["exit"] for job in self.pbs.jobs()], [75, 0], self.logs())
        self.assertIn("restart 1: 2 ranks on 2 nodes, from step 2", self.logs())
        self.assert_every_iteration_once(3)
        environments = [json.loads(path.read_text()) for path in self.control.glob("environment-*")]
        self.assertEqual({environment["NODE"] for environment in environments}, {"n1", "n2"})
        for environment in environments:
            self.assertEqual((environment["OMP_NUM_THREADS"], environment["NCCL_DEBUG"], environment["PBS_JOBCOOKIE"]), ("1", "WARN", None))

    def test_dry_run(self):
        """Without a job, the program itself checks the deck and says which ranks have which role."""
        environment = {"PATH": os.environ["PATH"], "TRIREME_DRY_RUN": "1", "TRIREME_HOME": str(self.folder / "home"),
                       "TRIREME_DECK": str(self.deck(3)), "TRIREME_RUN_DIR": str(self.run_dir()), "TRIREME_GPUS_PER_NODE": "2"}
        for overrides, code, words in (("ranks.generator=4-7 ranks.trainer=0-3", 0, "ranks: 8 on 4 nodes"),
                                       ("actor.adam.ir=1e-4", 78, "actor.adam.lr")):
            result = subprocess.run(["bash", str(ROOT / SCRIPT)], cwd=self.folder, text=True, capture_output=True, check=False,
                                    env=environment | {"TRIREME_OVERRIDES": overrides})
            self.assertEqual(result.returncode, code, result.stdout + result.stderr)
            self.assertIn(words, result.stdout)
        self.assertFalse(self.run_dir().exists())


if __name__ == "__main__":
    main()
