"""Makes packages from one binary: a wheel, a .deb, a container image, a list of its parts, and checksums.

    packaging/packages.py --binary target/dist/maitre --out dist

Needs Python, `strip` (binutils), dpkg-deb and buildah, but neither root nor network. The same binary gives the same bytes,
except for the image: its tool writes the time into it unless SOURCE_DATE_EPOCH is set.
"""

import argparse
import base64
import gzip
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
SUMMARY = "A router for LLM inference in front of vLLM, SGLang, TensorRT-LLM and llama.cpp"
# The date of files in a wheel; zip knows none before 1980.
EPOCH = (1980, 1, 1, 0, 0, 0)
# The same unnamed user as in docker/Dockerfile.
USER = "65532:65532"


def version():
    """The version of the workspace."""
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^version = "([^"]+)"', text, re.MULTILINE)[1]


def machine():
    """This machine's architecture in the names of wheels, Debian and images."""
    names = {"x86_64": ("x86_64", "amd64", "amd64"), "aarch64": ("aarch64", "arm64", "arm64")}
    return names[platform.machine()]


def libraries(binary):
    """The shared libraries that a binary needs, including its loader; none if it is static."""
    run = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False)
    if run.returncode != 0 or "statically linked" in run.stdout:
        return []
    return sorted(set(re.findall(r"(/\S+) \(0x", run.stdout)))


def glibc(binary):
    """The newest glibc symbols that a binary needs, as in (2, 34); none if it is static."""
    if not libraries(binary):
        return None
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)\0", pathlib.Path(binary).read_bytes())
    return max((int(major), int(minor)) for major, minor in found)


def wheel(binary, out):
    """`pip install` puts the binary into the scripts folder of an environment. The wheel contains no Python."""
    # A static binary runs wherever a wheel of the oldest tag does.
    major, minor = glibc(binary) or (2, 17)
    tag = f"py3-none-manylinux_{major}_{minor}_{machine()[0]}"
    name = f"maitre-{version()}"
    info = f"{name}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: maitre\nVersion: {version()}\nSummary: {SUMMARY}\n"
        "License: Apache-2.0\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
        + (ROOT / "README.md").read_text()
    )
    files = {
        f"{name}.data/scripts/maitre": pathlib.Path(binary).read_bytes(),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: maitre\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    record = f"{info}/RECORD"
    lines = [f"{path},{record_hash(data)},{len(data)}" for path, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    path = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for place, data in files.items():
            entry = zipfile.ZipInfo(place, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in place else 0o100644) << 16
            archive.writestr(entry, data)
    return path


def record_hash(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def deb(binary, out, compression="xz"):
    """The binary, its manual and completions, the systemd unit and the user that it runs as."""
    _, architecture, _ = machine()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        put(root / "usr/bin/maitre", pathlib.Path(binary).read_bytes(), 0o755)
        unit = (ROOT / "packaging/systemd/maitre.service").read_text().replace("/usr/local/bin/", "/usr/bin/")
        # Installs what the head of the unit says.
        put(root / "usr/lib/systemd/system/maitre.service", unit[unit.index("[Unit]") :].encode())
        put(root / "usr/lib/sysusers.d/maitre.conf", (ROOT / "packaging/systemd/maitre.sysusers").read_bytes())
        manuals = root / "usr/share/man/man1"
        run([binary, "man", "--out", manuals])
        for page in sorted(manuals.iterdir()):
            put(manuals / f"{page.name}.gz", packed(page.read_bytes()))
            page.unlink()
        put(root / "usr/share/bash-completion/completions/maitre", output(binary, "completions", "bash"))
        put(root / "usr/share/doc/maitre/copyright", (ROOT / "LICENSE").read_bytes())
        put(root / "usr/share/doc/maitre/changelog.gz", packed((ROOT / "CHANGELOG.md").read_bytes()))
        kibibytes = sum(it.stat().st_size for it in root.rglob("*") if it.is_file()) // 1024
        needed = glibc(binary)
        depends = f"Depends: libc6 (>= {needed[0]}.{needed[1]}), libgcc-s1\n" if needed else ""
        control = (
            f"Package: maitre\nVersion: {version()}\nArchitecture: {architecture}\n{depends}"
            f"Maintainer: The Maitre authors <maitre@localhost>\nInstalled-Size: {kibibytes}\n"
            f"Section: net\nPriority: optional\nDescription: {SUMMARY}\n"
            " It prices every worker in seconds of delay and sends each request where it delays everyone least.\n"
        )
        put(root / "DEBIAN/control", control.encode())
        put(root / "DEBIAN/postinst", POSTINST, 0o755)
        path = out / f"maitre_{version()}_{architecture}.deb"
        run(["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", root, path])
    return path


# The user of the unit. Systems without systemd do not need it.
POSTINST = b"""#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then systemd-sysusers maitre.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""


def image(binary, out):
    """An image FROM scratch with the binary as its entry point, as an archive that every container tool loads."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        content = place / "content"
        put(content / "maitre", pathlib.Path(binary).read_bytes(), 0o755)
        for library in libraries(binary):
            put(content / library.lstrip("/"), pathlib.Path(library).read_bytes(), 0o755)
        (content / "run/maitre").mkdir(parents=True)
        (content / "run/maitre").chmod(0o777)
        buildah = ["buildah", "--storage-driver", "vfs", "--root", place / "storage", "--runroot", place / "run"]
        container = run([*buildah, "from", "scratch"]).strip()
        run([*buildah, "copy", container, content, "/"])
        # The same steps as in docker/Dockerfile.
        settings = ["--user", USER, "--port", "8080", "--port", "8081", "--port", "7946", "--stop-signal", "SIGTERM"]
        settings += ["--env", "RUNTIME_DIRECTORY=/run/maitre", "--cmd", "serve", "--entrypoint", '["/maitre"]']
        run([*buildah, "config", *settings, container])
        path = out / f"maitre-{version()}-{machine()[2]}.oci.tar"
        run([*buildah, "commit", "--quiet", container, f"oci-archive:{path}:maitre:{version()}"])
        # Its storage has folders of other users, which only buildah can remove.
        run([*buildah, "rm", "--all"])
        run([*buildah, "rmi", "--all", "--force"])
    return path


def sbom(out):
    """The crates linked into the binary, as CycloneDX, each with version, licence and checksum."""
    metadata = json.loads(run(["cargo", "metadata", "--locked", "--format-version", "1"], cwd=ROOT))
    packages = {it["id"]: it for it in metadata["packages"]}
    nodes = {it["id"]: it for it in metadata["resolve"]["nodes"]}
    root = next(id for id, it in packages.items() if it["name"] == "maitre-cli")
    linked, left = set(), [root]
    while left:
        id = left.pop()
        if id not in linked:
            linked.add(id)
            left += [it["pkg"] for it in nodes[id]["deps"] if any(kind["kind"] is None for kind in it["dep_kinds"])]
    checksums = lock_checksums()

    def component(it):
        found = {
            "type": "library",
            "bom-ref": f"{it['name']}@{it['version']}",
            "name": it["name"],
            "version": it["version"],
            "licenses": [{"expression": it["license"]}] if it["license"] else [],
            "purl": f"pkg:cargo/{it['name']}@{it['version']}",
        }
        if checksum := checksums.get((it["name"], it["version"])):
            found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return found

    def name(id):
        return f"{packages[id]['name']}@{packages[id]['version']}"

    components = sorted((component(packages[it]) for it in linked - {root}), key=lambda it: it["bom-ref"])
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(packages[root]), "type": "application", "name": "maitre"}},
        "components": components,
        "dependencies": [
            {"ref": name(id), "dependsOn": sorted(name(it["pkg"]) for it in nodes[id]["deps"] if it["pkg"] in linked)}
            for id in sorted(linked, key=name)
        ],
    }
    path = out / f"maitre-{version()}.cdx.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def lock_checksums():
    """The checksums of Cargo.lock, by name and version."""
    pattern = r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([^"]+)"'
    return {(name, version): sum for name, version, sum in re.findall(pattern, (ROOT / "Cargo.lock").read_text())}


def checksums(paths, out):
    lines = [f"{hashlib.sha256(it.read_bytes()).hexdigest()}  {it.name}\n" for it in sorted(paths)]
    path = out / "SHA256SUMS"
    path.write_text("".join(lines))
    return path


def put(path, data, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def packed(data):
    return gzip.compress(data, mtime=0)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def run(command, **options):
    """The output of a command; raises with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def stripped(binary, folder):
    """A copy without symbols: they are half of a binary."""
    copy = folder / "maitre"
    shutil.copyfile(binary, copy)
    run(["strip", copy])
    copy.chmod(0o755)
    return copy


def main():
    parser = argparse.ArgumentParser(description="Makes packages from one binary.")
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        binary = stripped(arguments.binary, pathlib.Path(folder))
        paths = [make(binary, out) for make in [wheel, deb, image]] + [sbom(out)]
    for path in [*paths, checksums(paths, out)]:
        print(f"{path.stat().st_size:>11,}  {path}")


if __name__ == "__main__":
    main()
