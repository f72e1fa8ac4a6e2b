"""Other routers as processes: how to install, start and measure them. For the scripts that compare Maitre with them."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# One virtual environment for each, under target/: sglang-router and SMG install a command of the same name.
FOLDER = "target/routers"
PACKAGES = {"sglang-router": "sglang-router==0.3.2", "smg": "smg==1.13.0", "vllm-router": "vllm-router==0.1.16"}
# The name of each router's warning level; at their default level the routers log a line for each request.
LAUNCH = {"sglang-router": ("-m", "sglang_router.launch_router"), "smg": ("-m", "smg", "launch"), "vllm-router": ("-m", "vllm_router.launch_router")}
QUIET = {"sglang-router": "warn", "smg": "warn", "vllm-router": "warning"}
# From SIGTERM to SIGKILL.
END_SECONDS = 3

# No buffering, which would delay tokens, and kept connections to workers: what every guide to nginx before an LLM server says.
NGINX_CONF = """
worker_processes {processes}; daemon off; pid {dir}/nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 16m; client_body_buffer_size 128k; keepalive_requests 1000000000;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;
  scgi_temp_path {dir}/s;
  upstream engines {{ {balance} {servers} keepalive 512; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def python_of(name):
    """The path relative to the root of the repository, so that published command lines name no local folders."""
    return os.path.join(FOLDER, name, "bin/python")


def nginx():
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def install(names):
    """Installs nginx, haproxy and the Python packages, where missing."""
    here = {"nginx": nginx(), "haproxy": shutil.which("haproxy")}
    missing = ["nginx-light" if name == "nginx" else name for name in here.keys() & set(names) if not here[name]]
    # Debian's python3 lacks the part of `venv` that installs pip.
    missing += [] if importlib.util.find_spec("ensurepip") else ["python3-venv"]
    if missing:
        root = [] if os.getuid() == 0 else ["sudo"]
        subprocess.run([*root, "apt-get", "update", "-qq"], check=True)
        subprocess.run([*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y", *missing], check=True)
    for name in PACKAGES.keys() & set(names):
        python = os.path.join(ROOT, python_of(name))
        if not os.path.exists(python):
            subprocess.run([sys.executable, "-m", "venv", os.path.join(ROOT, FOLDER, name)], check=True)
        if f"{name}=={version(name)}" != PACKAGES[name]:
            subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGES[name]], check=True)


def version(name):
    """The installed program, or None."""
    if name == "nginx":
        return subprocess.run([nginx(), "-v"], capture_output=True, text=True).stderr.strip().rpartition("/")[2]
    ask = f"import importlib.metadata as m; print(m.version('{name}'))"
    told = subprocess.run([os.path.join(ROOT, python_of(name)), "-c", ask], capture_output=True, text=True)
    return told.stdout.strip() or None


def launch(name, port, workers, policy):
    """The command of one of PACKAGES; its metrics are at the next port."""
    return [python_of(name), *LAUNCH[name], "--worker-urls", *workers, "--policy", policy, "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + 1), "--log-level", QUIET[name]]


def launch_nginx(directory, port, workers, processes=1, balance=""):
    """Writes its configuration and returns its command."""
    os.makedirs(directory, exist_ok=True)
    conf = os.path.join(directory, "nginx.conf")
    servers = " ".join(f"server {worker.removeprefix('http://')};" for worker in workers)
    with open(conf, "w") as file:
        file.write(NGINX_CONF.format(dir=os.path.abspath(directory), port=port, servers=servers, processes=processes, balance=balance))
    return [nginx(), "-p", os.path.abspath(directory), "-c", os.path.abspath(conf), "-e", "stderr"]


@contextlib.contextmanager
def running(command, core, log):
    """A separate process group, pinned to a core if given, ended when the block ends."""
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    with open(log, "wb") as out:
        process = subprocess.Popen([*pinned, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=ROOT)
    try:
        yield process
    finally:
        for sign in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            if sign != signal.SIGCONT:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)


def family(pid):
    """A process and its descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                children.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
    members = [pid]
    for member in members:
        members += children.get(member, [])
    return members


def cpu_ns(pid):
    """CPU time of a process and its descendants, including ended threads, from their CPU clocks (utime and stime, in nanoseconds)."""
    return sum(time.clock_gettime_ns((~member << 3) | 2) for member in family(pid))


def peak_bytes(pid):
    """Peak memory of a process and its descendants: the sum of their VmHWM."""
    total = 0
    for member in family(pid):
        with contextlib.suppress(OSError), open(f"/proc/{member}/status") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    return total
