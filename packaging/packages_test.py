"""Starts the demo from the wheel, the .deb and the image, each in a clean environment or root.

MAITRE names the packed binary. pip installs the wheel into a new virtual environment. dpkg installs the .deb into a root that
contains only a shell and the libraries that it depends on. buildah runs the image as a user other than root, in the host's
network. Needs dpkg, buildah and binutils; the roots need root or a user namespace.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import packages  # noqa: E402

DEMO = ["demo", "--headless", "--json", "--seconds", "3", "--rate", "4", "--engines", "2"]
# Timeout for every step.
PATIENCE_S = 300


def in_root(root, *command):
    """A command in its own root. Users other than root get one through a user namespace."""
    chroot = ["chroot", root] if os.getuid() == 0 else ["unshare", "--map-root-user", "chroot", root]
    return [*chroot, *command]


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.place = pathlib.Path(cls.folder.name)
        os.umask(0o022)
        cls.binary = packages.stripped(os.environ["MAITRE"], cls.place)

    def demo(self, command):
        """Runs the demo; it prints what it served."""
        done = subprocess.run(
            [*command, *DEMO], capture_output=True, text=True, timeout=PATIENCE_S, env={"PATH": os.environ["PATH"]}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["strategies"]
        self.assertGreater(rows[0]["requests"], 0, done.stdout)

    def test_the_wheel_gives_an_environment_the_command(self):
        wheel = packages.wheel(self.binary, self.place)
        with zipfile.ZipFile(wheel) as archive:
            self.assertIsNone(archive.testzip())
        environment = self.place / "environment"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip = [environment / "bin/pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-index", wheel], check=True, timeout=PATIENCE_S)
        self.demo([environment / "bin/maitre"])
        subprocess.run([*pip, "uninstall", "--yes", "maitre"], check=True, timeout=PATIENCE_S)
        self.assertFalse((environment / "bin/maitre").exists(), "pip knows every file of it")

    def test_the_deb_installs_into_an_empty_root(self):
        deb = packages.deb(self.binary, self.place, compression="none")
        root = self.place / "root"
        (root / "var/lib/dpkg/info").mkdir(parents=True)
        (root / "var/lib/dpkg/updates").mkdir()
        (root / "var/lib/dpkg/status").touch()
        shell = os.path.realpath("/bin/sh")
        for path in {*packages.libraries(self.binary), *packages.libraries(shell)}:
            packages.put(root / path.lstrip("/"), pathlib.Path(path).read_bytes(), 0o755)
        # What every runtime mounts and the demo needs: it makes the admin key from it.
        packages.put(root / "dev/urandom", os.urandom(1 << 16))
        packages.put(root / "bin/sh", pathlib.Path(shell).read_bytes(), 0o755)
        # The libraries are present, but not as packages known to dpkg.
        install = ["dpkg", f"--root={root}", "--force-depends", "--force-not-root", "--install", deb]
        prefix = [] if os.getuid() == 0 else ["unshare", "--map-root-user"]
        subprocess.run([*prefix, *install], check=True, capture_output=True, timeout=PATIENCE_S)
        status = (root / "var/lib/dpkg/status").read_text()
        self.assertIn("Status: install ok installed", status)
        self.demo(in_root(root, "/usr/bin/maitre"))
        unit = (root / "usr/lib/systemd/system/maitre.service").read_text()
        self.assertIn("ExecStart=/usr/bin/maitre serve", unit)
        self.assertNotIn("/usr/local", unit)

    def test_the_image_runs_without_root_in_it(self):
        image = packages.image(self.binary, self.place)
        with tarfile.open(image) as archive:
            self.assertIn("oci-layout", [it.name.removeprefix("./") for it in archive])
        storage = self.place / "storage"
        buildah = ["buildah", "--storage-driver", "vfs", "--root", storage / "root", "--runroot", storage / "run"]

        def call(*command):
            done = subprocess.run([*buildah, *command], capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        container = call("from", f"oci-archive:{image}").split()[-1]
        self.addCleanup(call, "rm", "--all")
        config = json.loads(call("inspect", "--type", "container", container))["OCIv1"]["config"]
        self.assertEqual((config["Entrypoint"], config["User"]), (["/maitre"], packages.USER))
        self.demo([*buildah, "run", "--isolation", "chroot", "--network", "host", container, "--", "/maitre"])

    def test_the_list_of_parts_is_complete(self):
        document = json.loads(packages.sbom(self.place).read_text())
        names = {it["name"] for it in document["components"]}
        self.assertLessEqual({"tokio", "rustls", "maitre-proxy", "maitre-dispatch"}, names)
        self.assertNotIn("proptest", names, "what tests need is not linked")
        for component in document["components"]:
            foreign = not component["name"].startswith("maitre-")
            self.assertTrue(component["licenses"], component)
            self.assertTrue("hashes" in component or not foreign, component)

    def test_checksums_are_those_of_the_files(self):
        one = self.place / "one"
        one.write_bytes(b"text")
        sums = packages.checksums([one], self.place).read_text()
        self.assertEqual(sums, f"{hashlib.sha256(b'text').hexdigest()}  one\n")

    def test_the_same_binary_gives_the_same_wheel(self):
        first = packages.wheel(self.binary, self.place).read_bytes()
        self.assertEqual(first, packages.wheel(self.binary, self.place).read_bytes())


if __name__ == "__main__":
    missing = [it for it in ["dpkg-deb", "buildah", "strip"] if shutil.which(it) is None]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}; apt-get install dpkg buildah binutils")
    unittest.main()
