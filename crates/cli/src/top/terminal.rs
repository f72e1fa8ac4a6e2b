//! The terminal: taken whole, and given back however this ends.
//!
//! Keys are read by a thread of their own, since a terminal cannot be waited for like a socket. It looks up often
//! enough to end soon after nobody wants keys any more.

use std::io;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::model::Key;

/// Between two looks at whether anybody still wants keys.
const LOOK: Duration = Duration::from_millis(100);

/// Keys on their way.
const KEYS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressed {
    Key(Key),
    /// Ctrl-C, which raw mode hands us as a key.
    Interrupt,
    Resized,
}

/// The terminal while it is ours. Its drop gives it back; a panic does so before it is told.
pub(super) struct Terminal {
    screen: DefaultTerminal,
}

impl Terminal {
    /// Takes it. Keys end when the terminal does.
    pub(super) fn take() -> io::Result<(Terminal, Receiver<Pressed>)> {
        let screen = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        let (tell, keys) = mpsc::channel(KEYS_MAX);
        let reader = std::thread::Builder::new().name("keys".to_owned()).spawn(move || read(&tell));
        // Nobody waits for it: it may be in the middle of a look, and holds nothing that must be given back.
        drop(reader.inspect_err(|_| ratatui::restore())?);
        Ok((Terminal { screen }, keys))
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        self.screen.draw(|frame| draw(frame.area(), frame.buffer_mut())).map(|_| ())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = self.screen.show_cursor();
        let _ = ratatui::try_restore();
    }
}

fn read(tell: &Sender<Pressed>) {
    while !tell.is_closed() {
        let event = match event::poll(LOOK) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        // Without a terminal there are no keys; the loop ends when it learns that.
        let Ok(event) = event else { return };
        if let Some(pressed) = meant(&event)
            && tell.blocking_send(pressed).is_err()
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
        KeyCode::Char(letter) if !is_control => Key::Letter(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        _ => return None,
    };
    Some(Pressed::Key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_help_says() {
        let key = |code, modifiers| meant(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('q'), none), Some(Pressed::Key(Key::Letter('q'))));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Pressed::Interrupt));
        assert_eq!(key(KeyCode::Char('c'), none), Some(Pressed::Key(Key::Letter('c'))));
        assert_eq!(key(KeyCode::Char('d'), KeyModifiers::CONTROL), None, "Ctrl-D drains nobody");
        assert_eq!(key(KeyCode::Down, none), Some(Pressed::Key(Key::Down)));
        assert_eq!(meant(&Event::Resize(80, 24)), Some(Pressed::Resized));
        let released = KeyEvent::new_with_kind(KeyCode::Enter, none, KeyEventKind::Release);
        assert_eq!(meant(&Event::Key(released)), None, "once, not twice");
    }
}
