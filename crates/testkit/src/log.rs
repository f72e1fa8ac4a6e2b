//! Log lines of the test's own thread.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit as FieldVisitor};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Captures lines while it is held.
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl Log {
    /// Captures what an operator sees: info and above.
    #[expect(clippy::new_without_default, reason = "it changes the thread, and is no plain value")]
    pub fn new() -> Log {
        let lines = Arc::default();
        let guard = set_default(Lines(Arc::clone(&lines)));
        Log { lines, _guard: guard }
    }

    /// Lines that contain a text.
    pub fn with(&self, part: &str) -> Vec<String> {
        self.lines.lock().unwrap().iter().filter(|it| it.contains(part)).cloned().collect()
    }

    #[track_caller]
    pub fn check_once(&self, part: &str) {
        let found = self.with(part);
        assert_eq!(found.len(), 1, "with {part:?}: {found:#?} of {:#?}", self.lines.lock().unwrap());
    }
}

struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("maitre")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Text(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl FieldVisitor for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}
