"""A real Slurm on one machine for tests: munged, slurmctld and several slurmd that believe to be nodes of their own.

Needs the packages slurmctld, slurmd, slurm-client and munge, but no systemd, no configuration and no root. Everything lies in one
temporary folder, listens on 127.0.0.1 and on free ports, and ends with the test (process_tree.py).

    with OneBoxSlurm() as cluster:
        job = cluster.sbatch("--nodes=2", "script.sh")
        cluster.wait(lambda: cluster.state(job) == "COMPLETED", "the end of the job")
"""

import contextlib
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from process_tree import ProcessTree

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
GPUS = 8  # per node, made of empty files
# Debian keeps daemons where the PATH of ordinary users does not look.
SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"

SLURM_CONF = """\
ClusterName=onebox
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire={requeue_hold}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SlurmctldDebug=verbose
SlurmdDebug=verbose
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait={kill_wait}
SlurmdTimeout={node_timeout}
MessageTimeout=60
TreeWidth=1000
MinJobAge=3600
MpiDefault=none
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs={cpus} RealMemory=4000 Gres=gpu:{gpus}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""


def environment():
    """Ours without what an outer Slurm job or an outer configuration would say."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"(SLURM|SBATCH|SRUN|SQUEUE|SCANCEL|SINFO)", name)}
    return kept | {"PATH": SEARCH}


def missing_programs():
    return [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]


def free_ports(count):
    """The first of so many consecutive free TCP ports on 127.0.0.1, below those that systems give to outgoing connections: a node
    that comes back needs its port again."""
    while True:
        first = random.randrange(20000, 32000 - count)
        with contextlib.ExitStack() as sockets:
            try:
                for port in range(first, first + count):
                    sockets.enter_context(socket.create_server(("127.0.0.1", port)))
                return first
            except OSError:
                pass  # one of them is taken


class OneBoxSlurm:
    """partitions: what stands behind each PartitionName, the first one is the default; requeue_hold: seconds for which Slurm holds
    back a requeued job (120 where nothing is set); node_timeout: until a silent node counts as failed; kill_wait: between TERM
    and KILL."""

    def __init__(self, nodes=4, cpus=16, partitions=("whole Nodes=ALL",), requeue_hold=15, node_timeout=30, kill_wait=30):
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.settings = {"nodes": nodes, "cpus": cpus, "gpus": GPUS, "requeue_hold": requeue_hold, "node_timeout": node_timeout,
                         "kill_wait": kill_wait}
        self.partitions = [f"PartitionName={text} MaxTime=60 State=UP" for text in partitions]
        self.partitions[0] += " Default=YES"
        self.folder = None
        self.environment = {}
        self.trees = {}
        self.lock = threading.Lock()
        self.seen, self.seen_at = {}, 0.0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    # ---- up and down ---------------------------------------------------------------------------------------------------

    def start(self):
        """Leaves nothing behind when it fails."""
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.stop)
            self.start_daemons()
            on_failure.pop_all()

    def start_daemons(self):
        for _ in range(5):  # another program may take a port between our choice and its use
            self.prepare()
            self.run("munged", ["--foreground", f"--socket={self.folder}/munge.sock", f"--key-file={self.folder}/munge.key",
                                f"--log-file={self.folder}/log/munged", f"--pid-file={self.folder}/munged.pid",
                                f"--seed-file={self.folder}/munge.seed", "--num-threads=2"])
            self.wait(lambda: (self.folder / "munge.sock").exists() or not self.alive(), "munged's socket", 60, self.logs)
            self.run("slurmctld", ["-D", "-c", "-f", self.folder / "slurm.conf"])
            for node in self.nodes:
                self.start_node(node)
            if self.comes_up():
                return
            if "in use" not in self.logs():
                break
            self.stop()
        raise RuntimeError(f"Slurm does not start:\n{self.logs()}")

    def prepare(self):
        # Not below the build folder: the name of a socket may have 107 characters.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-slurm-"))
        self.folder.chmod(0o711)  # munged insists that everybody can reach its socket
        for name in ("log", "state"):
            (self.folder / name).mkdir()
        first = free_ports(1 + len(self.nodes))
        ports = (first, first + 1, first + len(self.nodes))
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        conf = SLURM_CONF.format(host=socket.gethostname().split(".")[0], user=user, folder=self.folder, ports=ports, **self.settings)
        self.write("slurm.conf", conf + "\n".join(self.partitions) + "\n")
        # Step managers do not need cgroups for what is set above; the word for "none" exists since 23.11.
        version = tuple(map(int, re.findall(r"\d+", self.command("slurmctld", "-V", configured=False))[:2]))
        self.write("cgroup.conf", "CgroupPlugin=disabled\n" if version >= (23, 11) else "CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n")
        for i in range(GPUS):  # Slurm counts the files and hands out their numbers
            self.write(f"gpu{i}", "")
        self.write("gres.conf", f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        self.environment = environment() | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def run(self, program, arguments, name=None):
        self.trees[name or program] = ProcessTree([shutil.which(program, path=SEARCH), *arguments],
                                                  self.folder / "log" / f"{name or program}.out", self.environment)

    def alive(self):
        return all(tree.alive() for tree in self.trees.values())

    def comes_up(self):
        deadline = time.monotonic() + 120
        while self.alive() and time.monotonic() < deadline:
            states = set(self.command("sinfo", "-h", "-N", "-o", "%N %T", check=False).splitlines())  # a line a node and partition
            if states == {f"{node} idle" for node in self.nodes}:
                return True
            time.sleep(0.2)
        return False

    def stop(self):
        for name in reversed(list(self.trees)):
            self.trees.pop(name).kill()
        if self.folder and os.environ.get("TRIREME_KEEP") != "1":
            shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self):
        """The last lines of every daemon."""
        texts = []
        for path in sorted((self.folder / "log").iterdir()):
            lines = path.read_text(errors="replace").splitlines()[-25:]
            texts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(texts)

    # ---- nodes -----------------------------------------------------------------------------------------------------------

    def start_node(self, node):
        for kind in ("tmp", "spool"):  # empty, as after a boot
            shutil.rmtree(self.folder / kind / node, ignore_errors=True)
            (self.folder / kind / node).mkdir(parents=True)
        self.run("slurmd", ["-D", "-N", node, "-f", self.folder / "slurm.conf"], node)

    def kill_node(self, node):
        """As a power cut would: slurmd, its step managers and all processes of jobs on that node get SIGKILL."""
        self.trees.pop(node).kill()

    # ---- jobs ------------------------------------------------------------------------------------------------------------

    def command(self, *words, check=True, configured=True, env=None, cwd=None):
        """Output of one of Slurm's commands."""
        where = (self.environment if configured else environment()) | (env or {})
        done = subprocess.run([shutil.which(words[0], path=SEARCH), *map(str, words[1:])], env=where, cwd=cwd, text=True, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True)
        if check and done.returncode:
            raise RuntimeError(f"{words}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def sbatch(self, *words, env=None, cwd=None):
        """Job id."""
        return self.command("sbatch", "--parsable", *words, env=env, cwd=cwd).strip()

    def jobs(self):
        """All fields of all jobs by id (of an array task: JOB_INDEX), at most half a second old: many cases may ask. A controller
        that is too busy to answer is asked again the next time."""
        with self.lock:
            if time.monotonic() > self.seen_at + 0.5:
                text = self.command("scontrol", "show", "--oneliner", "job", check="slurmctld" not in self.trees)
                self.seen |= dict(map(self.named_fields, filter(None, text.splitlines())))
                self.seen_at = time.monotonic()
            return self.seen

    @staticmethod
    def named_fields(line):
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "ArrayTaskId" in fields:
            return f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}", fields
        return fields.get("JobId"), fields

    def show(self, job):
        """The fields of one job; empty when Slurm knows none."""
        return self.jobs().get(job, {})

    def state(self, job):
        return self.show(job).get("JobState", "")

    def exit_code(self, job):
        return int(self.show(job).get("ExitCode", "-1:0").split(":")[0])

    @staticmethod
    def wait(condition, what, seconds=300, explain=lambda: ""):
        """Waits for something to come about, for as long as a loaded machine could need."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come about in {seconds} s\n{explain()}")
            time.sleep(0.2)
