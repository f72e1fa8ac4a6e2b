//! The terminal: switched to the full screen, and restored however `top` ends.
//!
//! A thread reads the keys, since a terminal cannot be polled like a socket. It checks ten times a second whether `top`
//! has ended.

use std::io;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::model::TopKey;

/// Between two checks whether `top` has ended.
const CHECK: Duration = Duration::from_millis(100);

/// Keys that wait for the loop.
const KEYS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressed {
    Key(TopKey),
    /// Ctrl-C, which is a key in raw mode.
    Interrupt,
    Resized,
}

/// The terminal in raw mode. Its drop restores it; so does a panic, before its message is printed.
pub(super) struct Terminal {
    screen: DefaultTerminal,
}

impl Terminal {
    /// Switches to raw mode. The keys end with the terminal.
    pub(super) fn take() -> io::Result<(Terminal, Receiver<Pressed>)> {
        let screen = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        let (sender, keys) = mpsc::channel(KEYS_MAX);
        let reader = std::thread::Builder::new().name("keys".to_owned()).spawn(move || read(&sender));
        // Not joined: it may be in the middle of a check, and holds nothing that must be released.
        drop(reader.inspect_err(|_| ratatui::restore())?);
        Ok((Terminal { screen }, keys))
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        self.screen.draw(|frame| draw(frame.area(), frame.buffer_mut())).map(|_| ())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
        let _ = self.screen.show_cursor();
        let _ = ratatui::try_restore();
    }
}

fn read(keys: &Sender<Pressed>) {
    while !keys.is_closed() {
        let event = match event::poll(CHECK) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        // Without a terminal there are no keys; dropping the sender ends the loop.
        let Ok(event) = event else { return };
        if let Some(pressed) = meant(&event)
            && keys.blocking_send(pressed).is_err()
        {
            return;
        }
    }
}

fn meant(event: &Event) -> Option<Pressed> {
    match event {
        Event::Resize(..) => Some(Pressed::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key_meant(key),
        _ => None,
    }
}

fn key_meant(key: &KeyEvent) -> Option<Pressed> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    let key = match key.code {
        KeyCode::Char('c') if is_control => return Some(Pressed::Interrupt),
        KeyCode::Char('l') if is_control => return Some(Pressed::Resized),
        KeyCode::Char(letter) if !is_control => TopKey::Letter(letter),
        KeyCode::Up => TopKey::Up,
        KeyCode::Down => TopKey::Down,
        KeyCode::PageUp => TopKey::PageUp,
        KeyCode::PageDown => TopKey::PageDown,
        KeyCode::Tab | KeyCode::BackTab => TopKey::Tab,
        KeyCode::Enter => TopKey::Enter,
        KeyCode::Esc => TopKey::Escape,
        _ => return None,
    };
    Some(Pressed::Key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_help() {
        let key = |code, modifiers| meant(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('q'), none), Some(Pressed::Key(TopKey::Letter('q'))));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Pressed::Interrupt));
        assert_eq!(key(KeyCode::Char('c'), none), Some(Pressed::Key(TopKey::Letter('c'))));
        assert_eq!(key(KeyCode::Char('d'), KeyModifiers::CONTROL), None, "Ctrl-D drains no worker");
        assert_eq!(key(KeyCode::Down, none), Some(Pressed::Key(TopKey::Down)));
        assert_eq!(meant(&Event::Resize(80, 24)), Some(Pressed::Resized));
        let released = KeyEvent::new_with_kind(KeyCode::Enter, none, KeyEventKind::Release);
        assert_eq!(meant(&Event::Key(released)), None, "once, not twice");
    }
}
