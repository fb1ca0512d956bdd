#!/usr/bin/env python3
"""Stand-ins for qsub, qstat, qdel, qsig and qrerun on one machine, that keep the contract that OpenPBS 23.06 was seen to keep:
what a job finds in its environment, how it ends, what each command prints and returns. fake_mom.py runs the jobs.

    fake_pbs.py install FOLDER [KEY=VALUE ...]     makes FOLDER/bin/{qsub,qstat,qdel,qsig,qrerun}; keys: DEFAULTS below
    fake_pbs.py FOLDER COMMAND ARGUMENTS           what the files in FOLDER/bin call
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

DEFAULTS = {
    "poll": 10.0,  # seconds between two looks at the walltime
    "walltime_after": "",  # a file without which the walltime is not yet enforced: a slow machine must first have begun
    "kill_delay": 10.0,  # seconds from TERM to KILL
    "leftover_text": "",  # ranks of a rerun job live until its log has this text, or leftover_seconds
    "leftover_seconds": 2.0,
    "history": False,
    "profile_traps": False,  # the login shell of the nodes ignores USR1 and USR2
    "qstat_fails": 0,  # the first so many `qstat -f` of a job on a node fail; -1: all of them
    "path": "/usr/bin:/bin",
    "profile": {},  # what the login shell of the nodes sets
    "routes": {},  # routing queue: execution queue, which takes no jobs itself
    "nodes": [],  # names for the chunks of a job; empty: all are this machine
    "node_tmp": "/tmp",  # with a folder for temporary files of each of them
}
UNKNOWN_JOB = 153

# In place of ssh to one of the named nodes: the command runs here, with nothing of the caller's environment, and with a folder
# for temporary files of its own, where Open MPI's daemons of the other nodes do not write.
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
node=$1; shift
mkdir -p "{node_tmp}/$node"
exec env -i HOME="$HOME" {environment} TMPDIR="{node_tmp}/$node" NODE="$node" bash -c "$*"
"""

OPTIONS_WITH_VALUE = "AJNPSWaejklmMopqrsuvC"
SERVER = "server"
ATTRIBUTES = {"P": "project", "p": "Priority", "m": "Mail_Points", "M": "Mail_Users", "j": "Join_Path", "k": "Keep_Files"}
DERIVED = ("ncpus", "mpiprocs", "ngpus", "mem")  # of the chunks, summed up; qsub refuses them beside `select`


class Refused(Exception):
    """A message of a command and its exit code."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


class Server:
    """The jobs, as files: FOLDER/jobs/ID.json; changed only under the lock."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config = DEFAULTS | json.loads((self.folder / "config.json").read_text())

    @contextlib.contextmanager
    def locked(self):
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def path(self, job_id, suffix):
        return self.folder / "jobs" / (re.sub(r"[^A-Za-z0-9]", "_", job_id) + suffix)

    def load(self, job_id):
        try:
            return json.loads(self.path(self.full(job_id), ".json").read_text())
        except FileNotFoundError:
            raise Refused(f"Unknown Job Id {job_id}", UNKNOWN_JOB) from None

    def full(self, job_id):
        return job_id if "." in job_id else f"{job_id}.{SERVER}"

    def save(self, job):
        path = self.path(job["id"], ".json")
        temporary = path.with_suffix(f".{os.getpid()}.new")
        temporary.write_text(json.dumps(job))
        temporary.replace(path)

    def jobs(self):
        return sorted((json.loads(path.read_text()) for path in (self.folder / "jobs").glob("*.json")), key=lambda job: job["order"])

    def event(self, job_id, text):
        with (self.folder / "events").open("a") as file:
            file.write(f"{time.time():.3f} {job_id} {text}\n")

    def new_number(self):
        path = self.folder / "number"
        number = int(path.read_text()) + 1 if path.exists() else 1
        path.write_text(str(number))
        return number


def options_of(words, source):
    """[(letter, value)], [other words] of a command line or of a directive."""
    found, rest = [], []
    words = list(words)
    while words:
        word = words.pop(0)
        if not re.match(r"-[A-Za-z]", word):
            rest.append(word)
        elif word[1] in OPTIONS_WITH_VALUE:
            if not word[2:] and not words:
                raise Refused(f"qsub: option requires an argument -- '{word[1]}' ({source})", 2)
            found.append((word[1], word[2:] or words.pop(0)))
        elif word in ("-V", "-h", "-f", "-x"):
            found.append((word[1], ""))
        else:
            raise Refused(f"qsub: invalid option {word} ({source})", 2)
    return found, rest


def directives(text):
    """The words of all #PBS lines before the first command; '##PBS' is a comment."""
    words = []
    for line in text.splitlines():
        if line.startswith("#PBS"):
            words += shlex.split(line[4:])
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return words


def variables(text, environment):
    """The value of -v: names with values, or names alone, whose values are in the environment; a comma in a value is escaped."""
    chosen = {}
    for item in re.findall(r"(?:\\.|\"[^\"]*\"|'[^']*'|[^,])+", text):
        name, equals, value = item.partition("=")
        if equals:
            chosen[name] = re.sub(r"\\(.)", r"\1", value.strip("\"'"))
        elif name in environment:
            chosen[name] = mangled(environment[name])
    return chosen


def mangled(value):
    """What OpenPBS 23.06 makes of a value that qsub takes from its environment."""
    if "'" in value:
        raise Refused("qsub: cannot send environment with the job")
    return value.replace("\\", "\\\\").replace('"', "\\")


def array_range(text):
    match = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?", text)
    if not match or int(match[1]) >= int(match[2]):  # an array of one is refused, as by the real one
        raise Refused("qsub: illegal -J value", 2)
    return list(range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)))


def requested(arguments, environment, text):
    """What the directives and then the command line ask for: the later of two wins."""
    job = {"name": None, "queue": "workq", "account": "", "output": "", "depend": [], "array": [], "resources": {},
           "variables": {}, "attributes": {}}
    command_line, rest = options_of(arguments, "command line")
    for letter, value in options_of(directives(text), "directive")[0] + command_line:
        if letter == "l":
            job["resources"].update(part.split("=", 1) for part in value.split(","))
        elif letter == "v":
            job["variables"].update(variables(value, environment))
        elif letter == "V":
            job["variables"].update({name: mangled(value) for name, value in environment.items()})
        elif letter == "W":
            for kind, _, ids in (part.partition(":") for part in re.findall(r"depend=([^,]+)", value)):
                job["depend"].append([kind, ids.split(":")])
            job["attributes"].update(part.split("=", 1) for part in value.split(",") if part.partition("=")[0] in ("umask", "group_list"))
        elif letter == "J":
            job["array"] = array_range(value)
        elif letter in "NqAo":
            job[{"N": "name", "q": "queue", "A": "account", "o": "output"}[letter]] = value
        elif letter in ATTRIBUTES:
            job["attributes"][ATTRIBUTES[letter]] = value
    return job, rest


def qsub(server, arguments):
    scripts = options_of(arguments, "command line")[1]
    if len(scripts) != 1 or not os.path.isfile(scripts[0]):
        raise Refused(f"qsub: script file:: No such file or directory {scripts}")
    text = pathlib.Path(scripts[0]).read_text()
    job, _ = requested(arguments, dict(os.environ), text)
    wrong = [name for name in job["resources"] if name == "nodect" or ("select" in job["resources"] and name in DERIVED)]
    if wrong:
        raise Refused(f"qsub: '-lresource=' cannot be used with 'select' or 'place', resource is: {wrong[0]}")
    if job["queue"] in server.config["routes"].values():
        raise Refused("qsub: Access to queue is denied")
    job["from_queue"], job["queue"] = job["queue"], server.config["routes"].get(job["queue"], job["queue"])
    submitter = {"HOME": "/", "PATH": "", "LOGNAME": "root"}
    submitter = {name: os.environ.get(name, default) for name, default in submitter.items()} | {"SHELL": "/bin/bash", "LANG": "C"}
    job |= {"name": job["name"] or os.path.basename(scripts[0]), "workdir": os.getcwd(), "state": "Q", "run_count": 0, "wish": "",
            "submitter": submitter}
    with server.locked():
        for _, ids in job["depend"]:
            for other in ids:
                server.load(other)
        number = server.new_number()
        members = [(f"{number}.{SERVER}", None)] if not job["array"] else [(f"{number}[{i}].{SERVER}", i) for i in job["array"]]
        for position, (job_id, index) in enumerate(members):
            server.path(job_id, ".SC").write_text(text)
            server.save(job | {"id": job_id, "index": index, "number": number, "order": number * 1000 + position})
    for job_id, _ in members:
        mom = pathlib.Path(__file__).with_name("fake_mom.py")
        subprocess.Popen([sys.executable, str(mom), str(server.folder), job_id], start_new_session=True, cwd="/", close_fds=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(server.folder / "mom.err").open("a"))
    print(f"{number}[].{SERVER}" if job["array"] else members[0][0])


def clock(seconds):
    return f"{int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


def attributes(job):
    yield "Job_Name", job["name"]
    yield "Job_Owner", f"{job['submitter']['LOGNAME']}@{SERVER}"
    if job["state"] == "R":
        yield "resources_used.walltime", clock(time.time() - job["began"])
    yield "job_state", job["state"]
    yield "queue", job["queue"]
    yield "server", SERVER
    if job["account"]:
        yield "Account_Name", job["account"]
    yield "Output_Path", f"{os.uname().nodename}:{job['output'].rpartition(':')[2] or os.path.join(job['workdir'], job['name'] + '.o' + str(job['number']))}"
    yield from ({"project": "_pbs_project_default", "Priority": "0"} | job["attributes"]).items()
    for name, value in summed(job["resources"].get("select", "1")).items():
        yield f"Resource_List.{name}", value
    for name, value in sorted(job["resources"].items()):
        yield f"Resource_List.{name}", clock(seconds_of(value)) if name == "walltime" else value
    if job["run_count"]:
        yield "stime", time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(job["began"]))
    yield "Variable_List", ",".join(f"{name}={escaped(value)}" for name, value in {**origin(job), **job["variables"]}.items())
    yield "run_count", str(job["run_count"])
    if "exit" in job:
        yield "Exit_status", str(job["exit"])


def summed(select):
    """What the server works out from the chunks."""
    sums = {"nodect": sum(int(chunk.partition(":")[0]) for chunk in select.split("+"))}
    for chunk in select.split("+"):
        count, *parts = chunk.split(":")
        for name, value in (part.split("=") for part in parts):
            if value.isdigit():
                sums[name] = sums.get(name, 0) + int(count) * int(value)
    return sums


def escaped(value):
    return value.replace("\\", "\\\\").replace(",", "\\,")


def origin(job):
    """The PBS_O_ variables: where the job came from."""
    place = {f"PBS_O_{name}": value for name, value in job["submitter"].items()}
    return place | {"PBS_O_WORKDIR": job["workdir"], "PBS_O_HOST": os.uname().nodename, "PBS_O_QUEUE": job["from_queue"],
                    "PBS_O_SYSTEM": "Linux"}


def seconds_of(walltime):
    total = 0
    for part in walltime.split(":"):
        total = total * 60 + int(part)
    return total


def folded(line):
    """Long lines go on in the next one after a tab, wherever that is in a value."""
    pieces = [line[:79]] + [line[at:at + 71] for at in range(79, len(line), 71)]
    return "\n\t".join(pieces)


def qstat_fails(server):
    """A busy server refuses a job's own question now and then."""
    if "PBS_JOBID" not in os.environ or not server.config["qstat_fails"]:
        return False
    with server.locked():
        path = server.folder / "qstat_failures"
        done = int(path.read_text()) if path.exists() else 0
        path.write_text(str(done + 1))
    return server.config["qstat_fails"] < 0 or done < server.config["qstat_fails"]


def qstat(server, arguments):
    options, ids = options_of(arguments, "command line")
    if ("f", "") in options and qstat_fails(server):
        raise Refused("qstat: cannot connect to server (errno=15010)", 1)
    for job in [server.load(job_id) for job_id in ids] if ids else server.jobs():
        if job["state"] == "F" and not server.config["history"] and ("x", "") not in options:
            if ids:
                raise Refused(f"qstat: Unknown Job Id {job['id']}", UNKNOWN_JOB)
            continue
        if ("f", "") in options:
            print(f"Job Id: {job['id']}")
            for name, value in attributes(job):
                print(folded(f"    {name} = {value}"))
            print()
        else:
            print(f"{job['id']:17} {job['name'][:16]:16} {job['submitter']['LOGNAME']:16} 00:00:00 {job['state']} {job['queue']}")


def wish(server, job_ids, text, states):
    with server.locked():
        for job_id in job_ids:
            members = [job for job in server.jobs() if job["id"] == server.full(job_id) or
                       ("[]" in job_id and job["number"] == int(job_id.partition("[")[0]))]
            if not members or (len(members) == 1 and members[0]["state"] == "F"):
                raise Refused(f"Unknown Job Id {job_id}", UNKNOWN_JOB)
            for job in members:
                if job["state"] in states:
                    server.save(job | {"wish": text})


def install(folder, settings):
    folder = pathlib.Path(folder).resolve()
    (folder / "jobs").mkdir(parents=True)
    (folder / "bin").mkdir()
    config = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        config[key] = json.loads(value)
        if key not in DEFAULTS:
            raise Refused(f"no such key: {key}")
    (folder / "config.json").write_text(json.dumps(config))
    ssh = folder / "ssh"
    profile = config.get("profile", {}) | {"PATH": config.get("path", DEFAULTS["path"])}
    ssh.write_text(SSH.format(node_tmp=config.get("node_tmp", DEFAULTS["node_tmp"]),
                              environment=" ".join(shlex.quote(f"{name}={value}") for name, value in profile.items())))
    ssh.chmod(0o755)
    for command in ("qsub", "qstat", "qdel", "qsig", "qrerun"):
        path = folder / "bin" / command
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(os.path.abspath(__file__))} '
                        f'{shlex.quote(str(folder))} {command} "$@"\n')
        path.chmod(0o755)


def main(arguments):
    try:
        if arguments[:1] == ["install"]:
            install(arguments[1], arguments[2:])
            return 0
        server, command, rest = Server(arguments[0]), arguments[1], arguments[2:]
        if command == "qsub":
            qsub(server, rest)
        elif command == "qstat":
            qstat(server, rest)
        elif command == "qdel":
            wish(server, rest, "delete", "QHR")
        elif command == "qsig":
            options, ids = options_of(rest, command)
            wish(server, ids, f"signal {dict(options)['s']}", "R")
        elif command == "qrerun":
            wish(server, rest, "rerun", "R")
        return 0
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return refusal.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
