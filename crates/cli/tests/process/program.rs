//! A running `maitre`: its output, and how it is stopped. Dropping the value kills the process, whatever the
//! test did.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::watch;

use crate::client::{Client, within};

/// Time between two polls of a state that sends no notification.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Program {
    child: Child,
    /// The lines written to standard error so far.
    said: watch::Receiver<Vec<String>>,
    pause: Arc<AtomicBool>,
    resume: mpsc::Sender<()>,
}

/// Runs to the end.
pub(crate) fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_maitre"));
    // The environment of the tests may contain settings.
    command.args(args).env_clear().stdin(Stdio::null());
    // Keys of routers go here, and not among those of the user.
    command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
    command
}

impl Program {
    pub(crate) fn start(args: &[&str]) -> Program {
        Program::start_with(args, &[])
    }

    /// With these variables, and no others.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Program {
        let mut command = command(args);
        command.envs(variables.iter().copied());
        Program::spawn(command)
    }

    /// After this command of the shell, such as `ulimit`.
    pub(crate) fn start_after(shell: &str, args: &[&str]) -> Program {
        let script = format!("{shell} && exec \"$0\" \"$@\"");
        let binary = [script.as_str(), env!("CARGO_BIN_EXE_maitre")];
        let mut command = Command::new("sh");
        command.arg("-c").args(binary).args(args).env_clear().stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
        Program::spawn(command)
    }

    fn spawn(mut command: Command) -> Program {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tell, said) = watch::channel(Vec::new());
        let (resume, resumed) = mpsc::channel();
        let pause = Arc::new(AtomicBool::new(false));
        let paused = pause.clone();
        let read = move || {
            for line in lines.map_while(Result::ok) {
                tell.send_modify(|it| it.push(line));
                if paused.load(Ordering::Relaxed) {
                    // An error means that the test is over.
                    let _ = resumed.recv();
                }
            }
        };
        // Ends with the process.
        std::thread::Builder::new().spawn(read).unwrap();
        Program { child, said, pause, resume }
    }

    /// Reads at most one more line of its standard error, until `read_on`.
    pub(crate) fn stop_reading(&self) {
        self.pause.store(true, Ordering::Relaxed);
    }

    pub(crate) fn read_on(&self) {
        self.pause.store(false, Ordering::Relaxed);
        self.resume.send(()).unwrap();
    }

    /// All output so far.
    pub(crate) fn said(&self) -> String {
        self.said.borrow().join("\n")
    }

    /// The first line, earlier or later, for which `read` returns a value.
    pub(crate) async fn until_says<T>(&mut self, read: impl Fn(&str) -> Option<T>) -> T {
        let find = |lines: &Vec<String>| lines.iter().find_map(|it| read(it));
        let heard = within(self.said.wait_for(|lines| find(lines).is_some())).await.is_ok();
        let found = find(&self.said.borrow());
        found.unwrap_or_else(|| panic!("ended: {}; it said:\n{}", !heard, self.said()))
    }

    /// Waits for the process to end, and returns its status. After that, `said` is the complete output.
    pub(crate) async fn until_ends(&mut self) -> ExitStatus {
        let status = self.until_exits().await;
        // The reader's channel closes when it has read to the end.
        while within(self.said.changed()).await.is_ok() {}
        status
    }

    pub(crate) fn signal(&self, name: &str) {
        // The shell's own `kill`: slim images have no other.
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    async fn until_exits(&mut self) -> ExitStatus {
        let mut looks = tokio::time::interval(LOOK_AGAIN);
        let child = &mut self.child;
        within(async {
            loop {
                looks.tick().await;
                if let Some(status) = child.try_wait().unwrap() {
                    return status;
                }
            }
        })
        .await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One `maitre engine` process.
pub(crate) struct Engine {
    pub(crate) program: Program,
    pub(crate) url: String,
}

impl Engine {
    pub(crate) async fn start(args: &[&str]) -> Engine {
        let mut program = Program::start(&[&["engine", "--listen", "127.0.0.1:0"], args].concat());
        let url = program.until_says(|it| it.strip_prefix("engine 0: ").map(str::to_owned)).await;
        Engine { program, url }
    }

    pub(crate) async fn start_some(count: usize, args: &[&str]) -> Vec<Engine> {
        let mut engines = Vec::new();
        for _ in 0..count {
            engines.push(Engine::start(args).await);
        }
        engines
    }
}

/// One `maitre serve` process, ready.
pub(crate) struct Serve {
    pub(crate) program: Program,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Serve {
    /// In front of these engines, once it has found them all.
    pub(crate) async fn start(engines: &[Engine], args: &[&str]) -> Serve {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        all.extend(engines.iter().flat_map(|it| ["--worker", &it.url]));
        let serve = Serve::of(Program::start(&[&all, args].concat())).await;
        for engine in engines {
            serve.until_worker(&engine.url, "ready").await;
            // The last page that the router requests of a new worker.
            serve.until_metrics(&format!("maitre_worker_engine_blocks{{worker=\"{}\"}}", engine.url)).await;
        }
        serve
    }

    /// A router that was started elsewhere, once it has printed its address.
    pub(crate) async fn of(mut program: Program) -> Serve {
        let listen = program.until_says(|it| address(it, "listen=")).await;
        let admin = program.until_says(|it| address(it, "admin=")).await;
        Serve { program, listen, admin }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.listen).await
    }

    pub(crate) async fn metrics(&self) -> String {
        Client::connect(self.admin).await.get("/metrics").await.text()
    }

    /// Waits until the router reports this state for the worker.
    pub(crate) async fn until_worker(&self, url: &str, state: &str) {
        self.until_metrics(&format!("maitre_worker_state{{worker=\"{url}\",state=\"{state}\"}} 1")).await;
    }

    async fn until_metrics(&self, line: &str) {
        let mut looks = tokio::time::interval(LOOK_AGAIN);
        within(async {
            while !self.metrics().await.contains(line) {
                looks.tick().await;
            }
        })
        .await;
    }
}

/// The address after `key` in a log line, which may be coloured.
pub(crate) fn address(line: &str, key: &str) -> Option<SocketAddr> {
    let plain = without_colours(line);
    plain.contains("serving").then_some(())?;
    plain.split_whitespace().find_map(|it| it.strip_prefix(key)?.parse().ok())
}

pub(crate) fn without_colours(line: &str) -> String {
    let mut pieces = line.split('\x1b');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once('m').map_or("", |it| it.1))
}
