//! `maitre top`: a running router in a terminal, live; or once, as text.
//!
//! `model` is what is known and `draw` renders it; both are pure. `follow` reads the router's event stream, `terminal`
//! has the screen and the keys, and the loop between them is here. The router is asked once before the terminal
//! switches to the full screen, so that a wrong address or key is reported as an ordinary line.

mod draw;
mod follow;
mod model;
mod terminal;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::ArgMatches;
use maitre_config::form::{Form as _, Time};
use maitre_console::clock::Stopwatch;
use maitre_console::{flag, out};
use maitre_views::worker::WorkerView;
use ratatui::buffer::Buffer;
use ratatui::crossterm::terminal as size;
use ratatui::layout::Rect;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::operator::client::Client;
use crate::operator::not_asked;
use crate::operator::target::{self, KeyPlaces, Target};
use crate::signals::Signals;

use model::{Command, TopState, Update};
use terminal::{Pressed, Terminal};

const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Columns where the output is no terminal, and at least.
const WIDTH: u16 = 120;
const WIDTH_MIN: u16 = 40;

/// Decisions that `--once` prints.
const DECISIONS_PRINTED: usize = 12;

/// Updates that wait for the loop.
const UPDATES_MAX: usize = 64;

pub fn command() -> clap::Command {
    clap::Command::new("top")
        .about("Watch a running router in the terminal")
        .after_help(
            "Keys: q quits, ? shows the others. Exit status: 2 if the router cannot be reached at the start.",
        )
        .args(target::args())
        .args([
            flag::switch("once").help("Print the screen once as text and exit"),
            flag::value("interval", "DURATION")
                .default_value("1s")
                .value_parser(|it: &str| Time(INTERVALS).read(it))
                .help("Time between two screens, from 100ms to 1m"),
        ])
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let target = match Target::read(matches, &KeyPlaces::from_environment()) {
        Ok(target) => target,
        Err(error) => return Ok(not_asked(&format_args!("{error:#}"))),
    };
    let once = matches.get_flag("once");
    if !once && !io::stdout().is_terminal() {
        return Ok(not_asked(&"standard output is not a terminal; add --once to print the screen as text"));
    }
    let client = Arc::new(Client::new(&target));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let snapshot = match runtime.block_on(follow::snapshot(&client)) {
        Ok(snapshot) => snapshot,
        Err(trouble) => return Ok(not_asked(&trouble)),
    };
    let mut state = TopState::new(&client.url, snapshot);
    if once {
        out::print(&printed(&mut state))?;
        return Ok(ExitCode::SUCCESS);
    }
    let interval = matches.get_one("interval").copied().unwrap_or(Duration::from_secs(1));
    runtime.block_on(watch(client, state, interval))?;
    Ok(ExitCode::SUCCESS)
}

/// The screen as plain text, with all workers and the last decisions.
fn printed(state: &mut TopState) -> String {
    let width = if io::stdout().is_terminal() { size::size().map_or(WIDTH, |it| it.0) } else { WIDTH };
    let too_many = state.decisions.len().saturating_sub(DECISIONS_PRINTED);
    state.decisions.drain(..too_many);
    let width = width.max(WIDTH_MIN);
    let area = Rect::new(0, 0, width, draw::rows(state, width));
    let mut buffer = Buffer::empty(area);
    draw::content(state, None, area, &mut buffer);
    let mut text = format!("{}\n", state.url);
    for row in area.rows() {
        let line: String = row.columns().map(|it| buffer[(it.x, it.y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

/// Draws until the user quits or a signal comes. Restores the terminal however it ends.
async fn watch(client: Arc<Client>, mut state: TopState, interval: Duration) -> anyhow::Result<()> {
    let clock = Stopwatch::start();
    let mut signals = Signals::new()?;
    let (mut terminal, mut keys) = Terminal::take()?;
    let (sender, mut updates) = mpsc::channel(UPDATES_MAX);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow::follow(client.clone(), sender.clone()));
    let mut frames = tokio::time::interval(interval);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|area, buffer| draw::screen(&state, clock.elapsed(), area, buffer))?;
        let mut is_due = false;
        while !is_due {
            is_due = tokio::select! {
                _ = frames.tick() => true,
                () = signals.wait() => return Ok(()),
                Some(it) = updates.recv() => state.apply(it, clock.elapsed()),
                pressed = keys.recv() => match pressed {
                    None | Some(Pressed::Interrupt) => return Ok(()),
                    Some(Pressed::Resized) => true,
                    Some(Pressed::Key(key)) => match state.press(key) {
                        Some(Command::Quit) => return Ok(()),
                        Some(command) => {
                            tasks.spawn(execute(client.clone(), command, sender.clone()));
                            true
                        }
                        None => true,
                    },
                },
            };
        }
        // Commands that are done.
        while tasks.try_join_next().is_some() {}
    }
}

/// Executes a command and sends its result.
async fn execute(client: Arc<Client>, command: Command, updates: mpsc::Sender<Update>) {
    let update = match command {
        Command::Quit => return,
        Command::Worker(action) => {
            let path = format!("/admin/v1/workers/{}/{}", action.worker, action.word());
            let done = client.post::<WorkerView>(&path, Bytes::new()).await;
            Update::Acted(action, done.map(|_| ()))
        }
        Command::Decision(number) => {
            let answer = client.get(&format!("/admin/v1/decisions/{number}")).await;
            Update::Decision(answer.map(Box::new))
        }
    };
    // The receiver is dropped when `top` ends.
    let _ = updates.send(update).await;
}
