#!/usr/bin/env python3
"""The shipped Slurm script against stubs of the scheduler: who comes back, who does not, and what is launched.

The stubs stand in for srun, squeue and scontrol; the program is a shell script that makes checkpoint folders and exits with
a given code. The real scheduler is another test's business; tests/pbs has the like for PBS.

    script_test.py ROOT
"""

import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

SCRIPT = pathlib.Path(sys.argv[1]).resolve() / "slurm" / "trireme.sh"

STUBS = {
    "srun": '#!/bin/bash\n[ "$1" = --mpi=list ] && { echo pmix; exit; }\nwhile [[ $1 == --* ]]; do shift; done\n'
            '[ -z "${STUB_HANGS:-}" ] || { "$STUB_DIR/home/build/release/trireme-rank" 2; "$@"; exec sleep 100; }\n'
            '[ -n "${STUB_APART:-}" ] || exec "$@"\n"$@" & first=$!; STUB_LATE=1 "$@" & late=$!\n'
            'wait $first; rc=$?; [ $rc = 0 ] || kill -TERM $late; wait $late || rc=$?; exit $rc\n',
    "squeue": '#!/bin/bash\ncase "$*" in *%T*) echo "${STUB_STATE:-RUNNING, None}";; *%L*) echo "${STUB_LEFT:-1:02:03}";; esac\n',
    "scontrol": '#!/bin/bash\necho "$@" >>"$STUB_DIR/scontrol"\n',
}

# Makes checkpoints, then ends with $STUB_RC; with STUB_WAIT it first waits for USR1 as the real program does.
PROGRAM = """#!/bin/bash
case "$*" in *--dry-run*) echo "roles: trainer=0-3"; exit "${STUB_RC:-0}";; esac
echo "$@" >"$STUB_DIR/arguments"; printf '%s\\n' "$@" >"$STUB_DIR/argument_lines"; env >"$STUB_DIR/environment"
for a in "$@"; do case $a in run.dir=*) dir=${a#run.dir=};; esac; done
[ -z "${STUB_WAIT:-}" ] || STUB_WAIT='' exec "$STUB_DIR/bin/waiter" "$0" "$@"
[ -z "${STUB_STOP:-}" ] || touch "$dir/$STUB_STOP"
ckpt=$dir/ckpt
if [ -n "${STUB_CKPT:-}" ]; then
  ckpt=$STUB_DIR/$STUB_CKPT
  printf '[run]\\npath = "no"\\n\\n[ckpt]\\nkeep = 3\\npath = "%s"\\n\\n[eval]\\n' "$ckpt" >"$dir/deck.toml"
fi
if [ -n "${STUB_STEP:-}" ] && [ -z "${STUB_LATE:-}" ]; then  # a rank that is killed while it writes would leave half a file
  mkdir -p "$ckpt/step-$STUB_STEP"
  printf '{\\n  "step": %d,\\n  "fence": 12,\\n  "world_size": 4\\n}\\n' "$((10#$STUB_STEP))" >"$ckpt/step-$STUB_STEP/manifest.json"
fi
if [ -n "${STUB_HICCUPS:-}" ]; then  # that many starts end with 74, each behind a checkpoint of its own
  start=$(($(cat "$STUB_DIR/starts" 2>/dev/null || echo 0) + 1))
  echo $start >"$STUB_DIR/starts"
  mkdir -p "$ckpt/step-$start"
  printf '{\\n  "step": %d,\\n  "fence": %d,\\n  "world_size": 4\\n}\\n' $start $start >"$ckpt/step-$start/manifest.json"
  [ $start -gt "$STUB_HICCUPS" ] || exit 74
fi
if [ -n "${STUB_FIRST:-}" ] && [ ! -e "$STUB_DIR/first" ]; then touch "$STUB_DIR/first"; exit "$STUB_FIRST"; fi
[ -z "${STUB_LATE:-}" ] || { sleep 1; exit "${STUB_RC:-0}"; }
[ -z "${STUB_VERDICT:-}" ] || echo "$STUB_VERDICT host n1 pid 12" >"$TRIREME_VERDICT"
exit "${STUB_RC:-0}"
"""

# Becomes the program when USR1 has come. The script starts ranks with the signal ignored, and a shell cannot trap it then.
WAITER = f"""#!{sys.executable}
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
pathlib.Path(os.environ["STUB_DIR"], "started").touch()
if signal.sigtimedwait([signal.SIGUSR1], 10) is None:
    sys.exit(99)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
os.execv(sys.argv[1], sys.argv[1:])
"""


class Job:
    """One run of a script in a fake installation."""

    def __init__(self, folder, settings, signals=()):
        self.folder = pathlib.Path(folder)
        for name, text in STUBS.items():
            self.executable(f"bin/{name}", text)
        self.executable("bin/waiter", WAITER)
        self.executable("home/build/release/trireme", PROGRAM)
        shutil.copy(shutil.which("sleep"), self.folder / "home/build/release/trireme-rank")  # a process of the program, as the system sees it
        (self.folder / "home/inputs").mkdir(parents=True)
        (self.folder / "home/inputs/deck.toml").write_text('[ranks]\ntrainer = "1"\n')
        environment = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), "STUB_DIR": str(self.folder),
            "TRIREME_HOME": f"{self.folder}/home", "TRIREME_DECK": "inputs/deck.toml", "TRIREME_RUN_DIR": f"{self.folder}/run",
            "TRIREME_GPUS_PER_NODE": "0", "SECRET_TOKEN": "hush", "TRIREME_RETRY_PAUSE": "0", "SLURM_TOKEN": "hush",
        }
        environment |= {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"}
        environment |= settings
        if "STUB_BEFORE" in settings:
            earlier = self.folder / "run" / "ckpt" / f"step-{settings['STUB_BEFORE']}"
            earlier.mkdir(parents=True)
            (earlier / "manifest.json").write_text(json.dumps({"step": int(settings["STUB_BEFORE"]), "fence": 3, "world_size": 4}, indent=2))
            if "STUB_RETRIES" in settings:
                (self.folder / "run" / ".retries").write_text(settings["STUB_RETRIES"])
        process = subprocess.Popen(["bash", str(SCRIPT)], env=environment, text=True, cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for number in signals:
            self.wait_for_start(process)
            process.send_signal(number)
        self.output = process.communicate(timeout=300)[0]
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
        end = time.monotonic() + 300
        while not (self.folder / "started").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)


# settings, signals to the script, exit code, does it come back, words in the log
CASES = [
    ({"STUB_RC": "0"}, [], 0, False, "finished"),
    ({"STUB_RC": "75", "STUB_STEP": "000007"}, [], 75, True, "before the walltime"),
    ({"STUB_RC": "75"}, [], 75, True, "without a new checkpoint (step 0), as if the walltime were too short for one iteration (retry 1 of 3"),
    ({"STUB_RC": "75", "TRIREME_MAX_RETRIES": "0"}, [], 75, False, "stopped after 0 retries"),
    ({"STUB_RC": "75", "STUB_STOP": "stop"}, [], 75, False, "by the file 'stop'"),
    ({"STUB_RC": "75", "STUB_STOP": "stopped", "STUB_STEP": "000007"}, [], 75, False, "by the file 'stop'"),
    ({"STUB_RC": "75", "STUB_WAIT": "1", "STUB_STEP": "000007"}, [signal.SIGUSR1], 75, True, "stopped at step 7"),
    ({"STUB_RC": "75", "STUB_WAIT": "1", "SLURM_RESTART_COUNT": "50"}, [signal.SIGUSR1], 75, False, ""),
    ({"STUB_RC": "75", "STUB_WAIT": "1"}, [signal.SIGTERM], 75, False, ""),
    ({"STUB_RC": "137", "STUB_STEP": "000007"}, [], 137, True, "retry 1 of 3"),
    ({"STUB_RC": "143", "STUB_STEP": "000007", "STUB_STATE": "COMPLETING, None"}, [], 143, False, "not requeued"),
    ({"STUB_RC": "75", "STUB_STEP": "000007", "STUB_WAIT": "1", "STUB_STATE": "COMPLETING, TimeLimit"}, [signal.SIGTERM], 75, True, "before the walltime"),
    # a budget without progress, which starts anew with every checkpoint
    ({"STUB_RC": "70"}, [], 70, True, "from step 0 to step 0 (retry 1 of 3 without a new checkpoint)"),
    ({"STUB_RC": "70", "STUB_BEFORE": "000150", "STUB_RETRIES": "3 3 150"}, [], 70, False, "stopped after 3 retries without a new checkpoint"),
    ({"STUB_RC": "70", "STUB_BEFORE": "000150", "STUB_RETRIES": "2 3 150"}, [], 70, True, "retry 3 of 3"),
    ({"STUB_RC": "70", "STUB_BEFORE": "000150", "STUB_RETRIES": "3 3 140"}, [], 70, True, "retry 1 of 3"),
    ({"STUB_RC": "70", "STUB_BEFORE": "000150", "STUB_STEP": "000160", "STUB_RETRIES": "3 3 150"}, [], 70, True, "retry 1 of 3"),
    # once more after a pause, in the same job
    ({"STUB_FIRST": "74", "STUB_RC": "0"}, [], 0, False, "exit code 74: one more try in 0 s"),
    ({"STUB_FIRST": "69", "STUB_RC": "69"}, [], 69, False, "exit code 69: a retry cannot help"),
    ({"STUB_FIRST": "74", "STUB_RC": "74", "STUB_BEFORE": "000150"}, [], 74, False, "exit code 74: a retry cannot help"),
    ({"STUB_HICCUPS": "3", "STUB_RC": "0"}, [], 0, False, "finished at step 4"),
    ({"STUB_RC": "70", "STUB_STEP": "000007", "TRIREME_MAX_RETRIES": "0"}, [], 70, False, "after 0 retries"),
    ({"STUB_RC": "73", "TRIREME_LOCK_WAIT": "0"}, [], 73, False, "a retry cannot help"),
    ({"STUB_RC": "78"}, [], 78, False, "a retry cannot help"),
    # what was saved last counts, not the greatest number, and it may lie elsewhere
    ({"STUB_RC": "75", "STUB_BEFORE": "000150", "STUB_STEP": "000110"}, [], 75, True, "stopped at step 110 before the walltime"),
    ({"STUB_RC": "75", "STUB_BEFORE": "000150"}, [], 75, True, "without a new checkpoint (step 150)"),
    ({"STUB_RC": "75", "STUB_CKPT": "else where", "STUB_STEP": "000007"}, [], 75, True, "stopped at step 7 before the walltime"),
    ({"STUB_RC": "134", "STUB_STEP": "000007"}, [], 134, True, "retry 1 of 3"),
    # Two ranks that leave a second apart: srun ends the second one and reports that. What the program says counts, if it says something.
    ({"STUB_RC": "0", "STUB_APART": "1", "STUB_VERDICT": "0"}, [], 0, False, "finished"),
    ({"STUB_RC": "73", "STUB_APART": "1", "STUB_VERDICT": "73", "TRIREME_LOCK_WAIT": "0"}, [], 73, False, "reports exit code 143, the program 73"),
    ({"STUB_RC": "74", "STUB_APART": "1", "STUB_VERDICT": "74", "STUB_STEP": "000007"}, [], 74, False, "exit code 74: a retry cannot help"),
    ({"STUB_RC": "71", "STUB_APART": "1", "STUB_VERDICT": "71", "STUB_STEP": "000007"}, [], 71, True, "exit code 71, from step 0 to step 7 (retry 1"),
    ({"STUB_RC": "75", "STUB_APART": "1", "STUB_VERDICT": "75", "STUB_STEP": "000007"}, [], 75, True, "stopped at step 7 before the walltime"),
    ({"STUB_RC": "73", "STUB_APART": "1"}, [], 143, True, "exit code 143, from step 0 to step 0 (retry 1"),
    ({"STUB_RC": "137", "STUB_VERDICT": "rubbish", "STUB_STEP": "000007"}, [], 137, True, "retry 1 of 3"),
    # a launcher that stands there when its ranks are gone
    ({"STUB_HANGS": "1", "STUB_STEP": "000007", "TRIREME_LAUNCHER_GRACE": "2"}, [], 137, True, "has not ended in 2 s behind the ranks of this node: killed"),
    ({"STUB_HANGS": "1", "STUB_RC": "75", "STUB_VERDICT": "75", "STUB_STEP": "000007", "TRIREME_LAUNCHER_GRACE": "2"}, [], 75, True, "the program 75: 75 counts"),
    ({"TRIREME_RUN_DIR": "", "TRIREME_MODEL": "/no/such/model"}, [], 78, False, "TRIREME_RUN_DIR is empty"),
    ({"TRIREME_MAX_RETRIES": "many"}, [], 78, False, "TRIREME_MAX_RETRIES=many is not a number"),
    # other subcommands
    ({"TRIREME_COMMAND": "sft", "STUB_RC": "75", "STUB_STEP": "000007"}, [], 75, True, "before the walltime"),
    ({"TRIREME_COMMAND": "rm", "TRIREME_DECK": ""}, [], 78, False, "name the deck of TRIREME_COMMAND=rm"),
    ({"TRIREME_COMMAND": "dpo", "TRIREME_REWARD_MODEL": "/"}, [], 78, False, "TRIREME_REWARD_MODEL is for TRIREME_COMMAND=ppo, not dpo"),
]


# What Slurm, the launcher and the settings say to a rank, and what it must make of it.
PLACES = [
    ({"SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, {"CUDA_VISIBLE_DEVICES": "5"}),
    ({"SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "6"}, {"CUDA_VISIBLE_DEVICES": "6"}),  # bound by Slurm
    ({"SLURM_LOCALID": "3"}, {"CUDA_VISIBLE_DEVICES": "3"}),
    ({"SLURM_LOCALID": "1", "TRIREME_GPU_ORDER": "3 2 1 0"}, {"CUDA_VISIBLE_DEVICES": "2"}),
    ({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, {"CUDA_VISIBLE_DEVICES": "2"}),  # mpirun's word, not that of its own task
    ({"SLURM_LOCALID": "1", "TRIREME_NICS": "mlx5_0 mlx5_3"}, {"UCX_NET_DEVICES": "mlx5_3:1"}),
    ({"SLURM_LOCALID": "1", "TRIREME_NICS": "cxi0 cxi1"}, {"FI_CXI_DEVICE_NAME": "cxi1"}),
    ({"SLURM_LOCALID": "1", "SLURM_CPUS_PER_TASK": "6"}, {"OMP_NUM_THREADS": "6"}),
]


def behaviour():
    for settings, signals, rc, back, words in CASES:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, settings, signals)
            if job.rc != rc or bool(job.came_back) != back or words not in job.output:
                yield f"{settings} {signals}: rc {job.rc} (expected {rc}), came back: {job.came_back!r}\n{job.output}"
            left = [path.name for path in pathlib.Path(folder, "run").glob(".verdict-*")]
            if left:
                yield f"{settings}: {left} stay"


def places():
    for settings, expected in PLACES:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, {"TRIREME_GPUS_PER_NODE": "4"} | settings)
            for name, value in expected.items():
                if f"\n{name}={value}\n" not in "\n" + job.text("environment"):
                    yield f"{settings}: {name} is not {value}\n{job.output}"
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, {"TRIREME_GPUS_PER_NODE": "4"})
        if job.rc != 69 or "no local rank" not in job.output:
            yield f"a launcher without local ranks: {job.rc}\n{job.output}"


def requested():
    """What the script asks of sbatch."""
    options = re.findall(r"^#SBATCH (--[\w-]+(?:=\S+)?)", SCRIPT.read_text(), re.M)
    for option in ("--exclusive", "--mem=0", "--requeue", "--open-mode=append"):
        if option not in options:
            yield f"the script does not ask for {option}: {options}"


def launch_line():
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model dir"
        model.mkdir()
        settings = {"TRIREME_MODEL": str(model), "TRIREME_OVERRIDES": "run.seed=7", "TRIREME_SWEEP": "a.b=1|a.b=2", "STUB_RC": "75",
                    "STUB_WAIT": "1", "SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "1"}
        job = Job(folder, settings, [signal.SIGUSR1])
        for part in ("ppo", "inputs/deck.toml", f"run.dir={folder}/run-1", f"model.path={model}", "run.seed=7", "a.b=2"):
            if part not in job.arguments:
                yield f"'{part}' is missing in: {job.arguments}"
        left = re.search(r"run\.walltime=(\d+)s", job.arguments)
        if not left or not 3600 < int(left[1]) <= 3723:  # squeue said 1:02:03 a moment ago
            yield f"walltime: {job.arguments}"
        saved = "".join(path.read_text() for path in pathlib.Path(folder, "run-1").glob("environment-*"))
        if "hush" in saved or "TRIREME_OVERRIDES=run.seed=7" not in saved or "SLURM_JOB_ID=17" not in saved:
            yield f"saved environment: {saved}"
        if "requeue 16_1" not in job.came_back:
            yield f"an array task is requeued by its own name: {job.came_back}"


# Overrides, and what the program gets of them behind its own arguments.
OVERRIDES = [
    ({"TRIREME_OVERRIDES": 'reward.source.0.command=["python3", "my reward.py"]  run.seed=7 '},
     ['reward.source.0.command=["python3", "my reward.py"]', "run.seed=7"]),
    ({"TRIREME_OVERRIDES": "data.system_prompt=Answer in one  word.\nrun.seed=7", "TRIREME_SWEEP": "actor.adam.lr=1e-6 run.name=a b|run.seed=1"},
     ["data.system_prompt=Answer in one  word.", "run.seed=7", "actor.adam.lr=1e-6", "run.name=a b"]),
    ({"TRIREME_OVERRIDES": "run.device=cpu ckpt.interval=1", "TRIREME_GPUS_PER_NODE": "4", "SLURM_LOCALID": "0"}, ["run.device=cpu", "ckpt.interval=1"]),
    ({"TRIREME_OVERRIDES": "nonsense run.seed=7"}, ["nonsense", "run.seed=7"]),
]


def subcommands():
    for command, key in (("ppo", "data.prompt_dataset"), ("sft", "data.dataset"), ("rm", "data.dataset"), ("dpo", "data.dataset")):
        with tempfile.TemporaryDirectory() as folder:
            prompts = pathlib.Path(folder) / "texts.jsonl"
            prompts.touch()
            job = Job(folder, {"TRIREME_COMMAND": command, "TRIREME_PROMPTS": str(prompts)})
            lines = job.text("argument_lines").splitlines()
            if lines[:2] != [command, f"{folder}/home/inputs/deck.toml"] or f'{key}=["{prompts}"]' not in lines:
                yield f"{command}: {lines}\n{job.output}"
    for settings, expected in OVERRIDES:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, settings)
            lines = job.text("argument_lines").splitlines()
            if lines[-len(expected):] != expected:
                yield f"{settings}: {lines}\n{job.output}"
    with tempfile.TemporaryDirectory() as folder:  # neither deck nor run folder are its arguments
        job = Job(folder, {"TRIREME_COMMAND": "selftest", "TRIREME_DECK": "", "TRIREME_OVERRIDES": "--json out.json"})
        if job.text("argument_lines").splitlines() != ["selftest", "--json", "out.json"]:
            yield f"selftest: {job.text('argument_lines')}\n{job.output}"
    for old, new in (("slurm/ppo_70b.sh", "slurm/trireme.sh"), ("pbs/ppo_70b.pbs", "pbs/trireme.pbs")):
        root = SCRIPT.parents[1]
        if (root / old).read_text() != (root / new).read_text():
            yield f"{old} is not {new}"


def dry_run():
    expected = {
        "": "launch: srun --kill-on-bad-exit=1 --mpi=pmix --cpus-per-task=6 --cpu-bind=cores",
        "pmi2": "launch: srun --kill-on-bad-exit=1 --mpi=pmi2 --cpus-per-task=6 --cpu-bind=cores --label",
        "mpirun": "launch: mpirun -n 4 --map-by ppr:2:node:PE=6 --label",
    }
    for mpi, line in expected.items():
        for rc in (0, 78):  # the program's own: 78 for a deck with mistakes
            with tempfile.TemporaryDirectory() as folder:
                job = Job(folder, {"TRIREME_DRY_RUN": "1", "TRIREME_MPI": mpi, "TRIREME_MPI_OPTIONS": "--label" if mpi else "",
                                   "SLURM_CPUS_PER_TASK": "6", "STUB_RC": str(rc)})
                if job.rc != rc or line not in job.output or "roles: trainer=0-3" not in job.output or job.arguments:
                    yield f"dry run with TRIREME_MPI={mpi}: rc {job.rc}\n{job.output}"
    with tempfile.TemporaryDirectory() as folder:  # the deck is looked at beside wrong settings, too
        job = Job(folder, {"TRIREME_DRY_RUN": "1", "TRIREME_RUN_DIR": ""})
        if job.rc != 78 or "TRIREME_RUN_DIR is empty" not in job.output or "roles: trainer=0-3" not in job.output:
            yield f"dry run without a run folder: rc {job.rc}\n{job.output}"


def main():
    os.umask(0o022)
    problems = [*behaviour(), *places(), *requested(), *launch_line(), *subcommands(), *dry_run()]
    print("\n".join(problems + [f"{len(CASES) + len(PLACES) + 9} cases, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
