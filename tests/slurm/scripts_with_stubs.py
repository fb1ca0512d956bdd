#!/usr/bin/env python3
"""The shipped Slurm script against stubs of the scheduler: who comes back, who does not, and what is launched.

The stubs stand in for srun, squeue and scontrol; the program is a shell script that makes checkpoint folders and exits with
a given code. The real scheduler is another test's business; tests/pbs has the like for PBS.

    scripts_with_stubs.py ROOT
"""

import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(sys.argv[1]).resolve()

STUBS = {
    "srun": '#!/bin/bash\n[ "$1" = --mpi=list ] && { echo pmix; exit; }\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "squeue": '#!/bin/bash\ncase "$*" in *%T*) echo "${STUB_STATE:-RUNNING}";; *%L*) echo "${STUB_LEFT:-1:02:03}";; esac\n',
    "scontrol": '#!/bin/bash\necho "$@" >>"$STUB_DIR/scontrol"\n',
}

# Makes checkpoints, then ends with $STUB_RC; with STUB_WAIT it first waits for USR1 as the real program does.
PROGRAM = """#!/bin/bash
echo "$@" >"$STUB_DIR/arguments"; env >"$STUB_DIR/environment"
for a in "$@"; do case $a in run.dir=*) dir=${a#run.dir=};; esac; done
trap 'got=1' USR1
if [ -n "${STUB_WAIT:-}" ]; then touch "$STUB_DIR/started"; for i in $(seq 100); do [ -n "${got:-}" ] && break; sleep 0.05; done; fi
[ -z "${STUB_STEP:-}" ] || mkdir -p "$dir/ckpt/step-$STUB_STEP"
exit "${STUB_RC:-0}"
"""


class Job:
    """One run of a script in a made-up installation."""

    def __init__(self, folder, script, settings, signals=()):
        self.folder = pathlib.Path(folder)
        for name, text in STUBS.items():
            self.executable(f"bin/{name}", text)
        self.executable("home/build/release/trireme", PROGRAM)
        (self.folder / "home/inputs").mkdir(parents=True)
        (self.folder / "home/inputs/deck.toml").write_text('[ranks]\ntrainer = "1"\n')
        environment = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), "STUB_DIR": str(self.folder),
            "TRIREME_HOME": f"{self.folder}/home", "TRIREME_DECK": "inputs/deck.toml", "TRIREME_RUN_DIR": f"{self.folder}/run",
            "TRIREME_GPUS_PER_NODE": "0", "SECRET_TOKEN": "hush", "SLURM_TOKEN": "hush",
        }
        environment |= {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"}
        environment |= settings
        process = subprocess.Popen(["bash", str(ROOT / script)], env=environment, text=True, cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for number in signals:
            self.wait_for_start(process)
            process.send_signal(number)
        self.output = process.communicate(timeout=30)[0]
        self.rc = process.returncode
        self.came_back = self.text("scontrol")
        self.arguments = self.text("arguments")

    def executable(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def text(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def wait_for_start(self, process):
        end = time.monotonic() + 10
        while not (self.folder / "started").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)


SLURM = "slurm/ppo_70b.sh"
# script, settings, signals to the script, exit code, does it come back, words in the log
CASES = [
    (SLURM, {"STUB_RC": "0"}, [], 0, False, "finished"),
    (SLURM, {"STUB_RC": "75"}, [], 75, False, "sbatch the same script"),
    (SLURM, {"STUB_RC": "75", "STUB_WAIT": "1", "STUB_STEP": "000007"}, [signal.SIGUSR1], 75, True, "stopped at step 7"),
    (SLURM, {"STUB_RC": "75", "STUB_WAIT": "1", "SLURM_RESTART_COUNT": "50"}, [signal.SIGUSR1], 75, False, ""),
    (SLURM, {"STUB_RC": "75", "STUB_WAIT": "1"}, [signal.SIGTERM], 75, False, ""),
    (SLURM, {"STUB_RC": "137", "STUB_STEP": "000007"}, [], 137, True, "retry 1 of 3"),
    (SLURM, {"STUB_RC": "143", "STUB_STEP": "000007", "STUB_STATE": "CANCELLED"}, [], 143, False, "cancelled"),
    (SLURM, {"STUB_RC": "70"}, [], 70, False, "without a new checkpoint"),
    (SLURM, {"STUB_RC": "70", "STUB_STEP": "000007", "TRIREME_MAX_RETRIES": "0"}, [], 70, False, "after 0 retries"),
    (SLURM, {"STUB_RC": "78"}, [], 78, False, "a retry cannot help"),
    (SLURM, {"TRIREME_RUN_DIR": "", "TRIREME_MODEL": "/no/such/model"}, [], 78, False, "TRIREME_RUN_DIR is empty"),
]


def behaviour():
    for script, settings, signals, rc, back, words in CASES:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, script, settings, signals)
            if job.rc != rc or bool(job.came_back) != back or words not in job.output:
                yield f"{script} {settings} {signals}: rc {job.rc} (expected {rc}), came back: {job.came_back!r}\n{job.output}"


def launch_line():
    for script, seconds in ((SLURM, "run.walltime=3723s"),):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model dir"
            model.mkdir()
            index = {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "1"}
            job = Job(folder, script, {"TRIREME_MODEL": str(model), "TRIREME_OVERRIDES": "run.seed=7", "TRIREME_SWEEP": "a.b=1|a.b=2",
                                       "STUB_RC": "75", "STUB_WAIT": "1"} | index, [signal.SIGUSR1])
            for part in ("ppo", "inputs/deck.toml", f"run.dir={folder}/run-1", f"model.path={model}", "run.seed=7", "a.b=2", seconds):
                if part not in job.arguments and not (part == seconds and "run.walltime=71" in job.arguments):
                    yield f"{script}: '{part}' is missing in: {job.arguments}"
            saved = "".join(path.read_text() for path in pathlib.Path(folder, "run-1").glob("environment-*"))
            if "hush" in saved or "TRIREME_OVERRIDES=run.seed=7" not in saved:
                yield f"{script}: saved environment: {saved}"
            if "requeue 16_1" not in job.came_back:
                yield f"{script}: an array task is requeued by its own name: {job.came_back}"


def dry_run():
    for script in (SLURM,):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, script, {"TRIREME_DRY_RUN": "1"})
            if job.rc or "launch: " not in job.output or "roles: trainer=" not in job.output or job.arguments:
                yield f"{script}: dry run: rc {job.rc}\n{job.output}"


def main():
    os.umask(0o022)
    problems = [*behaviour(), *launch_line(), *dry_run()]
    print("\n".join(problems + [f"{len(CASES) + 4} cases, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
