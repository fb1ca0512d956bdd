#!/usr/bin/env python3
"""Runs one job of fake_pbs.py as PBS's node daemon was seen to: waits for its dependencies, makes the job's environment,
watches the walltime, and ends the whole session with TERM and, kill_delay later, KILL.

    fake_mom.py FOLDER JOB_ID
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

import fake_pbs

TICK = 0.05
LIFETIME = 600  # a job that outlives its test goes
KILLED_FOR_WALLTIME = -29


def session_members(session):
    """Process ids of a session, by /proc: field 6 of stat, counted after the name in parentheses."""
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(path.parent.name)


def children(parent):
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            yield int(path.parent.name)


def signal_session(session, number, but=()):
    for pid in session_members(session):
        if pid not in but:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


class Mom:
    def __init__(self, server, job_id):
        self.server, self.id = server, job_id
        self.began = time.monotonic()
        self.leftovers = []  # sessions of earlier runs whose ranks still live: [(session, since)]

    def update(self, **fields):
        with self.server.locked():
            self.server.save(self.server.load(self.id) | fields)

    def job(self):
        return self.server.load(self.id)

    def run(self):
        if not self.wait_for_others():
            return
        while True:
            process = self.start()
            verdict = self.watch(process)
            if verdict == "rerun":
                continue  # at once: the ranks of the run before may still be there
            while self.leftovers:
                self.end_leftovers()
                time.sleep(TICK)
            signal_session(process.pid, signal.SIGKILL)
            self.update(state="F", exit=verdict, wish="")
            self.server.event(self.id, f"end {verdict}")
            return

    def wait_for_others(self):
        """False: the job was deleted, or what it waits for can no longer come."""
        while time.monotonic() - self.began < LIFETIME:
            job = self.job()
            verdicts = [self.dependency(kind, self.server.load(other)) for kind, ids in job["depend"] for other in ids]
            if job["wish"] == "delete" or "never" in verdicts:
                self.update(state="F")
                self.server.event(self.id, "deleted before it ran")
                return False
            if all(verdict == "now" for verdict in verdicts):
                return True
            time.sleep(TICK)
        return False

    @staticmethod
    def dependency(kind, other):
        if other["state"] != "F":
            return "wait"
        ended = other.get("exit")  # none: it never ran
        fits = {"afterok": ended == 0, "afternotok": ended is not None and ended != 0, "afterany": ended is not None}
        return "now" if fits[kind] else "never"

    def environment(self, job):
        folder = self.server.folder
        nodes = self.write_nodes(job)
        ncpus = self.of_chunk(job, "ncpus", 1)
        home = folder / "home"
        scratch = folder / "tmp" / f"pbs.{self.id}"
        home.mkdir(exist_ok=True)
        scratch.mkdir(parents=True, exist_ok=True)
        own = {
            "HOME": str(home), "LOGNAME": job["submitter"]["LOGNAME"], "USER": job["submitter"]["LOGNAME"], "SHELL": "/bin/bash",
            "PATH": f"{folder / 'bin'}:{self.server.config['path']}", "TMPDIR": str(scratch), "NCPUS": str(ncpus),
            "OMP_NUM_THREADS": str(ncpus), "PBS_JOBID": self.id, "PBS_JOBNAME": job["name"], "PBS_NODEFILE": str(nodes),
            "PBS_QUEUE": job["queue"], "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBDIR": str(home), "PBS_JOBCOOKIE": "0F1E2D3C4B5A6978",
            "PBS_NODENUM": "0", "PBS_TASKNUM": "1", "PBS_MOMPORT": "15003",
        }
        if job["index"] is not None:
            own |= {"PBS_ARRAY_INDEX": str(job["index"]), "PBS_ARRAY_ID": f"{job['number']}[].{fake_pbs.SERVER}"}
        return job["variables"] | fake_pbs.origin(job) | self.server.config["profile"] | own

    @staticmethod
    def of_chunk(job, name, default):
        """A number of the first chunk of select=N:ncpus=2:mpiprocs=2."""
        for part in job["resources"].get("select", "1").split("+")[0].split(":")[1:]:
            key, _, value = part.partition("=")
            if key == name:
                return int(value)
        return default

    def write_nodes(self, job):
        """One line per mpiproc."""
        path = self.server.path(self.id, ".nodes")
        chunks = int(job["resources"].get("select", "1").partition(":")[0])
        names = self.server.config["nodes"] or [os.uname().nodename] * chunks
        path.write_text("".join(f"{name}\n" * self.of_chunk(job, "mpiprocs", 1) for name in names[:chunks]))
        return path

    def output(self, job):
        name = f"{job['name']}.o{job['number']}" + ("" if job["index"] is None else f".{job['index']}")
        given = job["output"].removeprefix(os.uname().nodename + ":")
        if given.endswith("/"):
            given += name
        return pathlib.Path(job["workdir"], given or name)

    def start(self):
        job = self.job()
        self.update(state="R", run_count=job["run_count"] + 1, began=time.time())
        job = self.job()
        environment = self.environment(job)
        # A login shell runs the script as its child, and has no trap but what its profile sets.
        profile = "trap : USR1 USR2" if self.server.config["profile_traps"] else ":"
        with self.output(job).open("a") as log:
            process = subprocess.Popen(["/bin/bash", "-c", f'{profile}; /bin/bash "$0"; exit $?', str(self.server.path(self.id, ".SC"))], env=environment, cwd=environment["HOME"],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                       umask=0o077)
        self.server.event(self.id, f"start {job['run_count']}")
        return process

    def watch(self, process):
        """Until the shell has ended: its exit status, negative for signals and the walltime; or 'rerun'."""
        config = self.server.config
        job = self.job()
        limit = fake_pbs.seconds_of(job["resources"].get("walltime", "9999:00:00"))
        began = looked = time.monotonic()
        termed = None
        why = None
        while process.poll() is None:
            now = time.monotonic()
            wish = self.job()["wish"]
            self.end_leftovers()
            if wish.startswith("signal "):
                self.update(wish="")
                self.server.event(self.id, wish)
                signal_session(process.pid, getattr(signal, "SIG" + wish.split()[1]))
            if wish == "rerun":
                self.server.event(self.id, "rerun")
                self.update(wish="")
                for pid in (*children(process.pid), process.pid):  # both shells; the ranks live on for a moment
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                self.leftovers.append((process.pid, now))
                return "rerun"
            over = False
            if now - looked >= config["poll"]:
                looked = now
                over = now - began >= limit and (not config["walltime_after"] or os.path.exists(config["walltime_after"]))
            if termed is None and (wish == "delete" or over or now - self.began > LIFETIME):
                why = "delete" if wish == "delete" else "walltime"
                self.server.event(self.id, f"term {why}")
                signal_session(process.pid, signal.SIGTERM)
                termed = now
            if termed is not None and now - termed > config["kill_delay"]:
                self.server.event(self.id, f"kill {why}")
                signal_session(process.pid, signal.SIGKILL)
            time.sleep(TICK)
        # TERM by the server leaves what is below the login shell its grace; a login shell that died by itself does not.
        while termed is not None and any(session_members(process.pid)) and time.monotonic() - termed <= config["kill_delay"]:
            time.sleep(TICK)
        if why == "walltime":
            return KILLED_FOR_WALLTIME
        return process.returncode if process.returncode >= 0 else 256 - process.returncode

    def end_leftovers(self):
        """Ranks of a run that was killed by qrerun live on for a moment: until the log has the text, or for the set time."""
        config = self.server.config
        text = self.output(self.job()).read_text(errors="replace") if self.leftovers and config["leftover_text"] else ""
        for session, since in list(self.leftovers):
            seen = config["leftover_text"] and config["leftover_text"] in text
            if seen or time.monotonic() - since > config["leftover_seconds"]:
                self.server.event(self.id, f"leftovers end {'seen' if seen else 'late'}")
                signal_session(session, signal.SIGKILL)
                self.leftovers.remove((session, since))


if __name__ == "__main__":
    Mom(fake_pbs.Server(sys.argv[1]), sys.argv[2]).run()
