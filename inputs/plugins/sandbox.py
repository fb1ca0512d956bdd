# Runs commands of a policy, for sandbox_shell.py and unit_tests.py: by bubblewrap, without network, with processes and files of their own:
# they see /usr and a folder, as /work. Nothing runs without it.
import resource, subprocess, sys, tempfile

BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "HOME",
         "/work", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
         "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--proc", "/proc",
         "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/work"]


def run(command, folder, seconds=10, megabytes=512, most=4000):
    """Exit code and output of a shell command; the code is None when it took too long."""
    def limits():
        bytes_ = megabytes << 20
        for what, limit in ((resource.RLIMIT_AS, bytes_), (resource.RLIMIT_FSIZE, bytes_), (resource.RLIMIT_CPU, seconds + 1), (resource.RLIMIT_NPROC, 4096)):
            resource.setrlimit(what, (limit, limit))

    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([*BWRAP, "--bind", folder, "/work", "/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   preexec_fn=limits)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()  # its processes have a namespace of their own and end with it
            code = process.wait() and None
        output.seek(max(0, output.seek(0, 2) - most))
        text = output.read().decode(errors="replace")
    return code, text + ("\n(time limit)" if code is None else "")


def require(folder):
    """Ends the program with the reason where there is no sandbox."""
    try:
        code, text = run("true", folder)
    except FileNotFoundError:
        sys.exit("bwrap is missing (nothing is run outside of a sandbox): install bubblewrap")
    if code != 0:
        sys.exit(f"bubblewrap makes no sandbox here ({text.strip()}): allow user namespaces (user.max_user_namespaces, kernel.unprivileged_userns_clone)")
