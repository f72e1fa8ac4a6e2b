//! `maitre top`: a running router in a terminal, live; or once, as text.
//!
//! `state` is what is known and `draw` its picture; both are pure. `follow` hears the router's event stream,
//! `terminal` has the screen and the keys, and here is the loop between them. Before the screen is taken everything is
//! asked for once: whoever gave a wrong address or key should read so in an ordinary line.

mod draw;
mod follow;
mod state;
mod terminal;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::{Arg, ArgAction, ArgMatches, Command};
use maitre_config::form;
use maitre_console::clock::Stopwatch;
use maitre_console::out;
use ratatui::buffer::Buffer;
use ratatui::crossterm::terminal as size;
use ratatui::layout::Rect;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::operator::client::Client;
use crate::operator::not_asked;
use crate::operator::target::{self, KEY_VARIABLE, Target};
use crate::signals::Signals;

use state::{News, State, Wish};
use terminal::{Pressed, Terminal};

const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// How wide a picture is that no terminal sees, and how narrow one can be.
const WIDTH: u16 = 120;
const WIDTH_MIN: u16 = 40;

/// Decisions in one that is printed.
const DECISIONS_PRINTED: usize = 12;

/// News and keys on their way to the loop.
const WAITING_MAX: usize = 64;

pub fn command() -> Command {
    Command::new("top")
        .about("Watch a running router in the terminal")
        .after_help(
            "Keys: q quits, ? tells the others. Ends with 2 if the router cannot be asked at the start.",
        )
        .args(target::args())
        .args([
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print one picture as text and end"),
            Arg::new("interval")
                .long("interval")
                .value_name("DURATION")
                .default_value("1s")
                .value_parser(|it: &str| form::duration(it, &INTERVALS))
                .help("Between two pictures, from 100ms to 1m"),
        ])
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let target = match Target::read(matches, std::env::var_os(KEY_VARIABLE)) {
        Ok(target) => target,
        Err(error) => return Ok(not_asked(&format_args!("{error:#}"))),
    };
    let once = matches.get_flag("once");
    if !once && !io::stdout().is_terminal() {
        return Ok(not_asked(&"standard output is no terminal; write --once for one picture as text"));
    }
    let client = Arc::new(Client::new(&target));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let picture = match runtime.block_on(follow::picture(&client)) {
        Ok(picture) => picture,
        Err(trouble) => return Ok(not_asked(&trouble)),
    };
    let mut state = State::new(&client.url, picture);
    if once {
        out::print(&printed(&mut state))?;
        return Ok(ExitCode::SUCCESS);
    }
    let interval = matches.get_one("interval").copied().unwrap_or(Duration::from_secs(1));
    runtime.block_on(watch(client, state, interval))?;
    Ok(ExitCode::SUCCESS)
}

/// The picture as plain text, with all workers and the last decisions.
fn printed(state: &mut State) -> String {
    let width = if io::stdout().is_terminal() { size::size().map_or(WIDTH, |it| it.0) } else { WIDTH };
    let too_many = state.decisions.len().saturating_sub(DECISIONS_PRINTED);
    state.decisions.drain(..too_many);
    let width = width.max(WIDTH_MIN);
    let area = Rect::new(0, 0, width, draw::rows(state, width));
    let mut buffer = Buffer::empty(area);
    draw::picture(state, None, area, &mut buffer);
    let mut text = format!("{}\n", state.url);
    for row in area.rows() {
        let line: String = row.columns().map(|it| buffer[(it.x, it.y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

/// Draws and listens until somebody wants it to end. The terminal is as before when this returns, however it does.
async fn watch(client: Arc<Client>, mut state: State, interval: Duration) -> anyhow::Result<()> {
    let clock = Stopwatch::start();
    let mut signals = Signals::new()?;
    let (mut terminal, mut keys) = Terminal::take()?;
    let (tell, mut news) = mpsc::channel(WAITING_MAX);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow::follow(client.clone(), tell.clone()));
    let mut frames = tokio::time::interval(interval);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|area, buffer| draw::screen(&state, clock.elapsed(), area, buffer))?;
        let mut is_due = false;
        while !is_due {
            is_due = tokio::select! {
                _ = frames.tick() => true,
                () = signals.wait() => return Ok(()),
                Some(it) = news.recv() => state.hear(it, clock.elapsed()),
                pressed = keys.recv() => match pressed {
                    None | Some(Pressed::Interrupt) => return Ok(()),
                    Some(Pressed::Resized) => true,
                    Some(Pressed::Key(key)) => match state.press(key) {
                        Some(Wish::Quit) => return Ok(()),
                        Some(wish) => {
                            tasks.spawn(fulfil(client.clone(), wish, tell.clone()));
                            true
                        }
                        None => true,
                    },
                },
            };
        }
        // Wishes that are done.
        while tasks.try_join_next().is_some() {}
    }
}

/// Does what was wished for, and tells what became of it.
async fn fulfil(client: Arc<Client>, wish: Wish, tell: mpsc::Sender<News>) {
    let news = match wish {
        Wish::Quit => return,
        Wish::Act(act) => {
            let path = format!("/admin/v1/workers/{}/{}", act.worker, act.word());
            let done = client.post::<Value>(&path, Bytes::new()).await;
            News::Acted(act, done.map(|_| ()))
        }
        Wish::Weigh(number) => {
            let told = client.get(&format!("/admin/v1/decisions/{number}")).await;
            News::Weighed(told.map(Box::new))
        }
    };
    // Nobody listens any more once it ends.
    let _ = tell.send(news).await;
}
