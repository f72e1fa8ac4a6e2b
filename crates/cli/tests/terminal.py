"""A router that was started in a terminal ends with the terminal, and SIGHUP from elsewhere reloads its settings."""

import os
import pty
import re
import select
import signal
import time
import unittest

from processes import PATIENCE_S, main

# Tests may themselves run under nohup, which children inherit.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SERVE = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


class Terminal:
    """A `maitre` that is the foreground command of a terminal of its own."""

    def __init__(self, *command):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)
        self.text = ""

    def until_says(self, pattern):
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text):
            if not select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"never said {pattern!r}:\n{self.text}")
            self.text += re.sub(r"\x1b\[[0-9;]*m", "", os.read(self.master, 65536).decode())

    def close(self):
        os.close(self.master)

    def until_ends(self):
        """The exit code, or None if it is left behind."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class HangUp(unittest.TestCase):
    def test_a_closed_terminal_ends_the_router(self):
        router = Terminal(os.environ["MAITRE"], *SERVE)
        router.until_says("serving")
        router.close()
        self.assertEqual(router.until_ends(), 0, "left behind")

    def test_so_it_does_in_a_shell(self):
        # The shell is the leader of the session, and passes the signal on.
        command = " ".join([os.environ["MAITRE"], *SERVE])
        router = Terminal("sh", "-c", f"{command} & echo pid=$!=; wait")
        router.until_says("pid=.*=")
        router.until_says("serving")
        pid = int(re.search(r"pid=(\d+)=", router.text).group(1))
        router.close()
        router.until_ends()
        # Not a child of ours: it is gone when its folder in /proc is.
        deadline = time.monotonic() + PATIENCE_S
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.02)
        left = os.path.exists(f"/proc/{pid}")
        if left:
            os.kill(pid, signal.SIGKILL)
        self.assertFalse(left, "left behind")

    def test_a_signal_from_elsewhere_reloads(self):
        router = Terminal(os.environ["MAITRE"], *SERVE)
        self.addCleanup(router.kill)
        router.until_says("serving")
        os.kill(router.pid, signal.SIGHUP)
        router.until_says("settings reloaded")

    def test_nohup_keeps_it(self):
        # As nohup starts it, but for its output.
        command = " ".join([os.environ["MAITRE"], *SERVE])
        router = Terminal("sh", "-c", f"trap '' HUP; exec {command}")
        self.addCleanup(router.kill)
        router.until_says("serving")
        router.close()
        time.sleep(1)
        self.assertEqual(os.waitpid(router.pid, os.WNOHANG), (0, 0), "it ended with its terminal")


if __name__ == "__main__":
    main()
