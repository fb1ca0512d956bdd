"""The shipped PBS script under stand-ins of PBS, with the real program on two ranks and a tiny model.

Each test gets a PBS of its own. A reward plugin of weight zero lets a test hold an iteration, or send its rank a signal in
it, so that nothing depends on how fast the machine is.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from trireme_run import BINARY_DIR, PROGRAM, ROOT, ProgramTest, child_environment, lines_in, main, read_lines  # noqa: E402,F401

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = "pbs/trireme.pbs"
PATIENCE = 300  # seconds for what takes two on an idle machine

# In the folder given: `hold-3` holds iteration 3 as long as it exists; `signal-3` has the number of a signal for one rank,
# once, and the path that must exist before it is sent (checkpoints are written in the background).
PLUGIN = """
import json, os, pathlib, sys, time
control = pathlib.Path(sys.argv[1])
seen = {name: os.environ.get(name) for name in ("NODE", "OMP_NUM_THREADS", "NCCL_DEBUG", "PBS_JOBCOOKIE")}
(control / f"environment-{os.getpid()}").write_text(json.dumps(seen))
for line in sys.stdin:
    request = json.loads(line)
    iteration = request["iteration"]
    (control / f"reached-{iteration}").touch()
    while (control / f"hold-{iteration}").exists() and os.getppid() != 1:
        time.sleep(0.02)
    wanted = control / f"signal-{iteration}"
    try:
        taken = wanted.rename(control / f"taken-{iteration}-{os.getpid()}")
        number, _, path = taken.read_text().partition(" ")
        while path and not os.path.exists(path) and os.getppid() != 1:
            time.sleep(0.02)
        os.kill(os.getppid(), int(number))
    except FileNotFoundError:
        pass
    print(json.dumps({"id": request["id"], "reward": 0.0}), flush=True)
"""

SOURCE = """
[[reward.source]]
kind = "plugin"
name = "control"
weight = 0.0
command = ["{python}", "control.py", "{control}"]
[actor]"""


class Pbs:
    """An installation of the stand-ins, and what they recorded."""

    def __init__(self, folder, test, **settings):
        self.folder, self.test = pathlib.Path(folder), test
        profile = {name: value for name, value in child_environment().items() if name.startswith(("OMPI_", "OMP_WAIT", "TORCH_CPP"))}
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            profile |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        profile |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none", "LANG": "C"}
        self.node_tmp = None
        if settings.get("nodes"):  # they share this machine's memory files, which Open MPI names by host and local rank
            self.node_tmp = tempfile.mkdtemp(prefix="pbs-")  # short: names of sockets in it have a limit
            settings["node_tmp"] = self.node_tmp
            profile |= {"OMPI_MCA_plm_rsh_agent": f"{folder}/ssh", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo",
                        "OMPI_MCA_oob_tcp_if_include": "lo"}
        settings = {"poll": 2, "path": os.environ["PATH"], "profile": profile} | settings
        command = [sys.executable, str(HERE / "fake_pbs.py"), "install", str(self.folder)]
        subprocess.run(command + [f"{key}={json.dumps(value)}" for key, value in settings.items()], check=True)

    def command(self, name, *arguments, cwd=None, env=None):
        environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": "/", "LOGNAME": "somebody"} | (env or {})
        return subprocess.run([str(self.folder / "bin" / name), *map(str, arguments)], cwd=cwd, env=environment, text=True,
                              capture_output=True, check=False)

    def events(self, job=None):
        path = self.folder / "events"
        lines = [line.split(" ", 2)[1:] for line in path.read_text().splitlines()] if path.exists() else []
        return [text for name, text in lines if job in (None, name)]

    def jobs(self):
        return sorted((read_lines(path)[0] for path in (self.folder / "jobs").glob("*.json")), key=lambda job: job["order"])

    def log(self, job):
        index = "" if job["index"] is None else f".{job['index']}"
        path = pathlib.Path(job["workdir"], f"{job['name']}.o{job['number']}{index}")
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"== {job['id']} {job['state']} {job.get('exit')}\n{self.log(job)}" for job in self.jobs())
                self.test.fail(f"{what} did not come about\n{self.events()}\n{logs}")
            time.sleep(0.05)

    def all_ended(self):
        return all(job["state"] == "F" for job in self.jobs())

    def end(self):
        """Nothing of a test outlives it."""
        for job in self.jobs():
            if job["state"] != "F":
                self.command("qdel", job["id"])
        deadline = time.monotonic() + 30
        while not self.all_ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.node_tmp:
            shutil.rmtree(self.node_tmp, ignore_errors=True)


class PbsTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "control.py").write_text(PLUGIN)
        home = cls.folder / "home"
        (home / "build" / "release").mkdir(parents=True)
        (home / "build" / "release" / "trireme").symlink_to(PROGRAM)

    def setUp(self):
        self.name = re.sub(r"\W", "", self.id().rpartition(".")[2])[5:][:20]
        self.control = self.folder / f"{self.name}-control"
        self.control.mkdir()
        self.pbs = None

    def tearDown(self):
        for held in self.control.glob("hold-*"):
            held.unlink()
        if self.pbs:
            self.pbs.end()

    def install(self, **settings):
        self.pbs = Pbs(self.folder / f"{self.name}-pbs", self, **settings)

    def deck(self, iterations, controlled=True, **replacements):
        """A copy of the tiny deck; `controlled` adds the plugin."""
        text = (self.folder / "ppo.toml").read_text().replace("iterations = 3", f"iterations = {iterations}\nstop_within = \"iteration\"")
        if controlled:
            text = text.replace("\n[actor]", SOURCE.format(python=sys.executable, control=self.control), 1)
        for old, new in replacements.items():
            old = f"{old} = "
            self.assertIn(old, text)
            text = re.sub(rf"(?m)^{old}.*$", old + new, text)
        path = self.folder / f"{self.name}.toml"
        path.write_text(text)
        return path

    def submit(self, deck, *options, walltime="00:10:00", select="1:ncpus=2:mpiprocs=2", script=SCRIPT, **settings):
        """qsub of a shipped script: its settings come by -v, resources and names by options, as a user gives them."""
        values = {
            "TRIREME_HOME": self.folder / "home", "TRIREME_DECK": deck, "TRIREME_RUN_DIR": self.folder / f"{self.name}-run",
            "TRIREME_GPUS_PER_NODE": 0, "TRIREME_THREADS_PER_RANK": 1, "TRIREME_MPI_OPTIONS": "--oversubscribe",
        } | settings
        text = ",".join(f"{name}={str(value).replace(',', chr(92) + ',')}" for name, value in values.items())
        result = self.pbs.command("qsub", "-l", f"select={select},walltime={walltime}", "-N", self.name, "-v", text, *options,
                                  ROOT / script, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def signal_in(self, iteration, number, after_step=0):
        """One rank gets this signal in that iteration, when the checkpoint of `after_step` is there."""
        path = self.run_dir() / "ckpt" / f"step-{after_step:06}" if after_step else ""
        (self.control / f"signal-{iteration}").write_text(f"{int(number)} {path}")

    def job(self, job_id):
        return next(job for job in self.pbs.jobs() if job["id"] == job_id)

    def wait_all_ended(self):
        self.pbs.wait(self.pbs.all_ended, "the end of all jobs")

    def wait_reached(self, iteration):
        self.pbs.wait((self.control / f"reached-{iteration}").exists, f"iteration {iteration}")

    def run_dir(self, task=None):
        return self.folder / (f"{self.name}-run" + ("" if task is None else f"-{task}"))

    def iterations(self, task=None):
        return [line["iteration"] for line in read_lines(self.run_dir(task) / "metrics.jsonl")]

    def assert_every_iteration_once(self, last=None, task=None):
        found = self.iterations(task)
        self.assertEqual(found, list(range(1, len(found) + 1)), "every iteration once and in order")
        if last is not None:
            self.assertEqual(len(found), last)
        return len(found)

    def logs(self):
        return "\n".join(f"== {job['id']}\n{self.pbs.log(job)}" for job in self.pbs.jobs())
