#!/usr/bin/env python3
"""slurm/trireme.sh as it is shipped, on a real Slurm of fake nodes, with the real program on a tiny deck: whatever ends a job, the
run goes on where it was saved last and ends with the weights of a run that nobody disturbed.

Jobs are held inside an iteration by gate.py until what is tested has happened, so nothing depends on how fast the machine is.
"""

import threading
import time

from slurm_run import FOUR_NODES, ITERATIONS, TWO_NODES, Run, SlurmTest, main, together
from trireme_run import adversity

# The shortest limit, and a warning that does nothing.
UNWARNED = ("--time=1", "--signal=B:URG@1")
LOCKED = 73
STOPPED = 75


class Jobs(SlurmTest):
    references = {}
    making_references = threading.Lock()

    def reference(self, layout=TWO_NODES):
        """The run that is left in peace, once for each layout."""
        with self.making_references:
            if layout not in self.references:
                run = Run(self, f"peace-{len(self.references)}", layout)
                job = run.submit("--gpus-per-node=2", TRIREME_GPUS_PER_NODE=2, TRIREME_GPU_ORDER="1 0", TRIREME_NICS="mlx5_0 mlx5_1",
                                 TRIREME_OVERRIDES="run.device=cpu")  # the GPUs are made up
                self.references[layout] = (run, job)
        run, job = self.references[layout]
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assert_ended(run, job, "COMPLETED", 0)
        return run

    def come_back(self, run, job, times):
        """Waits until the job was requeued so many times."""
        run.wait(lambda: int(self.cluster.show(job).get("Restarts", 0)) >= times, f"restart {times} of job {job}")

    @together()
    def test_to_the_end(self):
        """4 nodes x 2 tasks: each rank on its node with its own GPU, network card and threads."""
        run = self.reference(FOUR_NODES)
        self.assertEqual([line["iteration"] for line in run.metrics()], list(range(1, ITERATIONS + 1)))
        ranks = run.ranks()
        places = sorted((rank["SLURMD_NODENAME"], rank["SLURM_LOCALID"]) for rank in ranks)
        self.assertEqual(places, [(f"n{node}", local) for node in (1, 2, 3, 4) for local in ("0", "1")])
        for rank in ranks:
            local = int(rank["SLURM_LOCALID"])
            self.assertEqual(rank["CUDA_VISIBLE_DEVICES"], str(1 - local), "in the order of TRIREME_GPU_ORDER")
            self.assertEqual(rank["UCX_NET_DEVICES"], f"mlx5_{local}:1")
            self.assertEqual(rank["OMP_NUM_THREADS"], "1")
        job = ranks[0]["SLURM_JOB_ID"]
        self.assertIn("finished at step 4", run.log(job))
        saved = (run.folder / f"environment-{job}.txt").read_text()
        self.assertIn("SLURM_JOB_NUM_NODES=4", saved)
        self.assertNotIn("PATH=", saved)

    @together(waits=50)
    def test_warning_twice(self):
        """Slurm's warning before the time limit: saved, exit 75, requeued, gone on with at the next iteration; and once more."""
        run = Run(self, "warned", FOUR_NODES)
        run.hold(2, "until USR1")
        run.hold(3, "until USR1")
        job = run.submit("--time=2", "--signal=B:USR1@100")
        self.come_back(run, job, 2)
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assert_ended(run, job, "COMPLETED", 0)
        # On a loaded machine the first warning comes before iteration 2.
        for words in ("requeueing {0}: stopped at step", "job {0}, restart 1: 8 ranks on 4 nodes, from step",
                      "job {0}, restart 2: 8 ranks on 4 nodes, from step", "finished at step 4"):
            self.assertIn(words.format(job), run.log(job))
        self.assert_as(run, self.reference(FOUR_NODES))

    @together(waits=60)
    def test_warning_long_before_the_save_is_done(self):
        """The script repeats USR1 every 10 s until the program is gone; a save that takes longer is not cut off by that."""
        run = Run(self, "slow")
        run.hold(2, "until USR1")
        job = run.submit("--time=2", "--signal=B:USR1@100", TRIREME_OVERRIDES="ckpt.interval=0",
                         **adversity("slow_disk", SLOW_DISK_MS="25000-25000"))
        self.come_back(run, job, 1)
        run.let_go(2)
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assertIn(f"requeueing {job}: stopped at step", run.log(job))
        self.assertIn("finished at step 4", run.log(job))
        self.assert_as(run, self.reference())

    @together(waits=20)
    def test_warning_inside_an_iteration(self):
        """With the default of run.stop_within: no rank waits for the plugin, which answers long after. Requeued, the rest of the iteration has the same bits."""
        run = Run(self, "inside")
        run.hold(2)
        job = run.submit(TRIREME_OVERRIDES="run.stop_within=step")
        run.wait_until_at(2)
        self.cluster.command("scancel", "--signal=USR1", "--batch", job)
        self.come_back(run, job, 1)
        self.assertIn("stopping inside iteration 2 (", (run.folder / "log.txt").read_text(), run.explain())
        self.assertIn(f"requeueing {job}: stopped at step", run.log(job))
        run.let_go(2)
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assert_ended(run, job, "COMPLETED", 0)
        self.assert_as(run, self.reference())

    @together(waits=45)
    def test_warning_between_optimizer_steps(self):
        """The same while the trainers learn: the steps that are done are saved, and the job that comes back goes on with the next one."""
        run = Run(self, "learning")
        gates = 'fault.at=["open:*:actor\\u0020step:3:2","gate:*:actor\\u0020step:3:1"]'  # the first of two in iteration 2
        job = run.submit(TRIREME_OVERRIDES=f"run.stop_within=step {gates}")
        run.wait((run.folder / ".gate-2").exists, "a rank at the first optimizer step of iteration 2")
        self.cluster.command("scancel", "--signal=USR1", "--batch", job)
        run.wait_for_log(job, "USR1: saving")
        time.sleep(5)  # srun sends it on, and the ranks say nothing of it before the end of their step
        (run.folder / ".gate-1").touch()
        self.come_back(run, job, 1)
        self.assertIn("stopping inside iteration 2 (", (run.folder / "log.txt").read_text(), run.explain())
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assert_ended(run, job, "COMPLETED", 0)
        self.assert_as(run, self.reference())

    @together(waits=105)
    def test_time_limit_without_a_warning(self):
        """No rank can react, as in a file system that hangs, so Slurm kills the job: the next one goes on from the last commit."""
        run = Run(self, "killed")
        run.hold(3, "freeze at TERM")
        job = run.submit(*UNWARNED)
        run.wait_until_at(3)
        run.wait_for_state(job, "TIMEOUT")
        self.assertTrue(run.saved(2))
        run.let_go(3)
        again = run.submit()
        run.wait_for_state(again, "COMPLETED", "FAILED")
        self.assertIn("from step 2", run.log(again))
        self.assert_as(run, self.reference())

    @together(waits=75)
    def test_time_limit_with_grace(self):
        """TERM at the time limit leaves KillWait seconds, enough for this save: requeued by the script."""
        run = Run(self, "limit")
        run.hold(2, "until TERM")
        job = run.submit(*UNWARNED)
        run.wait_for_log(job, "TERM (COMPLETING, TimeLimit): saving")
        run.wait_for_log(job, f"requeueing {job}: stopped at step 2")
        run.let_go(2)
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assert_as(run, self.reference())

    @together()
    def test_scancel_ends_for_good(self):
        run = Run(self, "cancelled")
        run.hold(2, "until TERM")
        job = run.submit()
        run.wait_until_at(2)
        self.cluster.command("scancel", job)
        run.wait_for_state(job, "CANCELLED")
        self.assertIn("stopped by TERM (COMPLETING, None) at step 2 (exit code 75)", run.log(job))
        self.assertTrue(run.saved(2), run.explain())
        run.let_go(2)
        again = run.submit()
        run.wait_for_state(again, "COMPLETED", "FAILED")
        self.assert_as(run, self.reference())
        self.assertEqual(self.cluster.state(job), "CANCELLED", "and it has stayed so")
        self.assertEqual(self.cluster.show(job)["Restarts"], "0")

    @together(waits=60)
    def test_node_fails(self):
        """Everything on one node is gone at once: Slurm notices, requeues, and the run goes on when the node is back."""
        run = Run(self, "node")
        run.hold(3)
        job = run.submit("--partition=fragile")
        run.wait_until_at(3)
        run.wait(lambda: run.saved(2), "the save of step 2, which goes on while iteration 3 generates")
        self.cluster.kill_node("n6")
        self.come_back(run, job, 1)
        run.let_go(3)
        self.cluster.start_node("n6")
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assertIn("restart 1: 2 ranks on 2 nodes, from step 2", run.log(job), run.explain())
        self.assert_as(run, self.reference())

    @together(waits=20)
    def test_preempted(self):
        """A job of higher priority takes the nodes: saved within the partition's grace time, back when they are free."""
        run = Run(self, "preempted")
        run.hold(2, "until TERM")
        job = run.submit("--partition=low", "--exclusive")
        run.wait_until_at(2)
        other = self.cluster.sbatch("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
        self.come_back(run, job, 1)
        run.let_go(2)
        run.wait_for_state(other, "COMPLETED")
        run.wait_for_state(job, "COMPLETED", "FAILED")
        self.assertIn("restart 1: 2 ranks on 2 nodes, from step 2", run.log(job), run.explain())
        self.assert_as(run, self.reference())

    @together()
    def test_chain(self):
        """Where requeueing is not wanted: the next job starts when this one has stopped early, a third one is not needed. With
        mpirun."""
        run = Run(self, "chain")
        run.hold(2)
        settings = {"TRIREME_MAX_RESTARTS": 0, "TRIREME_MPI": "mpirun", "TRIREME_MPI_OPTIONS": "--oversubscribe --bind-to none"}
        first = run.submit(**settings)
        next_one = run.submit(f"--dependency=afternotok:{first}", "--kill-on-invalid-dep=yes", **settings)
        third = run.submit(f"--dependency=afternotok:{next_one}", "--kill-on-invalid-dep=yes", **settings)
        run.wait_until_at(2)
        self.cluster.command("scancel", "--signal=USR1", "--batch", first)
        run.wait_for_log(first, "USR1: saving")
        time.sleep(5)  # mpirun sends it to ranks only, so gate.py cannot tell when it has come
        run.let_go(2)
        run.wait_for_state(first, "COMPLETED", "FAILED")
        self.assert_ended(run, first, "FAILED", STOPPED)
        self.assertIn("TRIREME_MAX_RESTARTS=0 is reached", run.log(first))
        run.wait_for_state(next_one, "COMPLETED", "FAILED")
        self.assertIn("from step 2", run.log(next_one))
        run.wait_for_state(third, "CANCELLED")
        self.assert_as(run, self.reference())

    @together()
    def test_array(self):
        """A sweep of three; the warning of one task brings back that task and no other."""
        runs = [Run(self, "sweep", task=str(index)) for index in range(3)]
        runs[1].hold(2, "until USR1")
        job = runs[0].submit("--array=0-2", f"--output={self.folder}/{runs[0].name}-%A_%a.out",
                             TRIREME_SWEEP="run.seed=3|actor.adam.lr=2e-3|run.seed=5 actor.adam.lr=3e-3")
        names = [f"{job}_{index}" for index in range(3)]
        for run, name in zip(runs, names, strict=True):
            run.jobs = [name]
        runs[1].wait_until_at(2)
        self.cluster.command("scancel", "--signal=USR1", "--batch", names[1])
        self.come_back(runs[1], names[1], 1)
        for run, name, restarts in zip(runs, names, ("0", "1", "0"), strict=True):
            run.wait_for_state(name, "COMPLETED", "FAILED")
            self.assert_ended(run, name, "COMPLETED", 0)
            self.assertEqual(self.cluster.show(name)["Restarts"], restarts)
            self.assertEqual([line["iteration"] for line in run.metrics()], list(range(1, ITERATIONS + 1)))
        self.assertIn(f"requeueing {names[1]}: stopped at step 2", runs[1].log(names[1]))
        self.assert_as(runs[0], self.reference())
        rates = [run.metrics()[-1]["lr"] for run in runs]
        self.assertEqual(len(set(rates)), 3, f"each task with its own settings: {rates}")

    @together()
    def test_two_jobs_in_one_folder(self):
        """The loser's second rank leaves a second and a half after the first one, so srun ends it and reports 143: the script takes the
        program's own verdict."""
        run = Run(self, "raced")
        run.hold(1)
        jobs = [run.submit(**adversity("slow_exit", SLOW_EXIT_RANK="1")) for _ in range(2)]
        run.wait_until_at(1)
        run.wait(lambda: any(self.cluster.state(job) == "FAILED" for job in jobs), "the end of the job that comes too late")
        run.let_go(1)
        loser, winner = sorted(jobs, key=lambda job: self.cluster.state(job) != "FAILED")
        self.assert_ended(run, loser, "FAILED", LOCKED)
        self.assertIn("the launcher reports exit code 143, the program 73: 73 counts", run.log(loser))
        self.assertIn("a retry cannot help", run.log(loser))
        run.wait_for_state(winner, "COMPLETED", "FAILED")
        self.assert_ended(run, winner, "COMPLETED", 0)
        self.assert_as(run, self.reference())


if __name__ == "__main__":
    main()
