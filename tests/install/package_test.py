#!/usr/bin/env python3
"""What `cmake --install` makes, moved to another folder: the program with the libraries beside it, decks and batch scripts, the modulefile, and the CMake package,
against which docs/examples/embed is built and run.

    package_test.py            TRIREME_BINARY_DIR and TRIREME_SOURCE_DIR name the build; the generator is the build's
    package_test.py --archive  cpack's archive instead: its size, and that it runs from where it is unpacked (second ring)
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["TRIREME_SOURCE_DIR"]).resolve()
BUILD = pathlib.Path(os.environ["TRIREME_BINARY_DIR"]).resolve()
MPIEXEC = [os.environ.get("TRIREME_MPIEXEC", "mpirun"), *filter(None, os.environ.get("TRIREME_MPI_FLAGS", "").split(";"))]
# Of the system, and MPI with what it brings along: never beside the program.
NOT_BUNDLED = re.compile(r"(ld-linux|linux-vdso|lib(c|m|dl|pthread|rt|resolv|util|gcc_s|stdc\+\+)\.so|lib(mpi|open-|pmix|hwloc|event|udev|cap|z\.))")


def run(*command, cwd=None, code=0, **environment):
    # The loader has no hints but those in the files.
    kept = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "TRIREME_TORCH_ROOT")}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=kept | environment, stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode != code:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def cache_value(name):
    return re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)[1]


class Relocated:
    """Of an installation that is not where it was made: nothing in it may lead back."""

    prefix: pathlib.Path
    folder: pathlib.Path

    def program(self, *arguments, **options):
        return run(self.prefix / "bin/trireme", *arguments, cwd=self.folder, **options)

    def test_libraries_are_its_own(self):
        listed = re.findall(r"^\s*(\S+) => (not found|\S+)", run("ldd", self.prefix / "bin/trireme"), re.MULTILINE)
        self.assertGreater(len(listed), 20)
        strangers = [f"{name} in {place}" for name, place in listed if not NOT_BUNDLED.match(name) and not place.startswith(f"{self.prefix}/")]
        self.assertEqual(strangers, [])
        self.assertIn("libmpi", " ".join(name for name, _ in listed), "MPI is the machine's")
        bundled = [path.name for path in (self.prefix / "lib/trireme").iterdir() if ".so" in path.name]
        self.assertEqual([name for name in bundled if name.startswith(("libmpi", "libc.so", "libstdc++"))], [])
        if shutil.which("dpkg-query"):
            texts = list((self.prefix / "share/trireme/licenses").iterdir())
            self.assertTrue(all(path.stat().st_size > 500 for path in texts))
            self.assertGreater(len(texts), 15)

    def test_the_tutorial_from_its_own_decks(self):
        shutil.copytree(self.prefix / "share/trireme/inputs", self.folder / "inputs")
        run(*MPIEXEC, "-n", "2", self.prefix / "bin/trireme", "sft", "inputs/tutorial/tiny-sft.toml", "run.iterations=2", cwd=self.folder)
        self.assertTrue((self.folder / "runs/tiny-sft/hf/model.safetensors").exists())

    def test_batch_scripts_find_the_program(self):
        home = self.prefix / "share/trireme"
        settings = {"TRIREME_DRY_RUN": "1", "TRIREME_HOME": str(home), "TRIREME_COMMAND": "sft", "TRIREME_DECK": "inputs/tutorial/tiny-sft.toml",
                    "TRIREME_RUN_DIR": str(self.folder / "batch"), "TRIREME_GPUS_PER_NODE": "0"}
        for script in ("slurm/trireme.sh", "pbs/trireme.pbs"):
            said = run("bash", home / script, cwd=home, **settings)
            self.assertIn("deck: valid for sft", said)
            self.assertIn(f"{home}/../../bin/trireme", said)

    def test_modulefile(self):
        (module,) = (self.prefix / "share/modulefiles/trireme").iterdir()
        if not shutil.which("tclsh"):
            self.skipTest("no tclsh to read the modulefile with")
        script = self.folder / "module.tcl"
        script.write_text(f"set ModulesCurrentModulefile {module}\nproc module-whatis text {{}}\nproc conflict name {{}}\n"
                          "proc prepend-path {name value} { puts \"$name=$value\" }\nproc setenv {name value} { puts \"$name=$value\" }\n"
                          f"source {module}\n")
        self.assertEqual(run("tclsh", script).split(),
                         [f"PATH={self.prefix}/bin", f"CMAKE_PREFIX_PATH={self.prefix}", f"TRIREME_HOME={self.prefix}/share/trireme"])


class Installed(Relocated, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-installed-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        run("cmake", "--install", BUILD, "--prefix", cls.folder / "first")
        linked = run("ldd", cls.folder / "first/bin/trireme")
        assert "not found" not in linked, linked  # without the bundle it uses what the build used
        run("cmake", "--install", BUILD, "--prefix", cls.folder / "first", "--component", "bundle")
        cls.prefix = cls.folder / "moved"
        (cls.folder / "first").rename(cls.prefix)

    def test_embedding(self):
        """The package's user needs no more than CMake's own words, and gets the program's results."""
        sources, build = self.prefix / "share/trireme/docs/examples/embed", self.folder / "embed"
        run("cmake", "-G", cache_value("CMAKE_GENERATOR"), "-S", sources, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={cache_value('CMAKE_CXX_COMPILER')}")
        run("cmake", "--build", build)
        for name in ("sampler.cpp", "trainer.cpp"):
            self.assertLessEqual(len((sources / name).read_text().splitlines()), 40, name)

        tutorial = ROOT / "inputs/tutorial"
        model = self.folder / "model"
        self.program("init", "--shape", tutorial / "tiny-model", "--output", model, "--tokenizer", tutorial / "tokenizer", "--dtype", "fp32")
        (self.folder / "one.jsonl").write_text('{"prompt": "1+2="}\n')
        self.program("generate", "--model", model, "--input", "one.jsonl", "--output", "three.jsonl", "--n", "3", "--temperature", "0.7",
                     "--max-new-tokens", "32", "--dtype", "fp32")
        texts = sorted(json.loads(line)["text"] for line in (self.folder / "three.jsonl").read_text().splitlines())
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(sorted(run(build / "sampler", model, "1+2=", "3").split("\n")), sorted(["", *"\n".join(texts).split("\n")]))

        examples = tutorial / "data/tiny-sft.jsonl"
        run(*MPIEXEC, "-n", "2", build / "trainer", model, examples, self.folder / "embedded")
        (self.folder / "same.toml").write_text((self.folder / "embedded/deck.toml").read_text())
        run(*MPIEXEC, "-n", "2", self.prefix / "bin/trireme", "sft", "same.toml", "run.dir=same", cwd=self.folder)
        losses = [[json.loads(line)["loss"] for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()] for name in ("embedded", "same")]
        self.assertEqual(len(losses[0]), 4)
        self.assertEqual(losses[0], losses[1])
        self.assertIn("no such folder", run(build / "sampler", self.folder / "nowhere", "1", code=66))


class Archive(Relocated, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-archive-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", cls.folder)
        (archive,) = cls.folder.glob("trireme-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(cls.folder)
            names = file.getnames()
        cls.prefix = cls.folder / names[0].split("/")[0]
        print(f"{archive.name}: {archive.stat().st_size / 1e6:.0f} MB, {len(names)} files", flush=True)

    def test_program_alone(self):
        self.assertEqual(sorted(path.name for path in self.prefix.iterdir()), ["bin", "lib", "share"])
        self.assertEqual([path for path in (self.prefix / "lib").rglob("*.a")], [])


if __name__ == "__main__":
    chosen = Archive if "--archive" in sys.argv else Installed
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(chosen)
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
