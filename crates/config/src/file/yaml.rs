//! YAML as a tree with line numbers.
//!
//! Reads mappings, sequences and scalars of one document. Refuses anchors and tags: settings have no use for them, and
//! anchors can expand a small file into a large one.

use std::borrow::Cow;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::{ListNode, Node, SyntaxError, TableNode};

/// Deeper than any key, shallow enough to recurse.
const DEPTH_MAX: usize = 16;

/// The entries in the order of their lines. An empty document has none.
pub(super) fn parse(text: &str) -> Result<Vec<TableNode>, SyntaxError> {
    let options = granit_parser::options! { flow_nesting_limit: DEPTH_MAX, block_nesting_limit: DEPTH_MAX };
    let mut events = Events { parser: Parser::new_from_str_with_options(text, options), line: 1 };
    let mut root = Node::Nothing;
    let mut documents = 0;
    loop {
        match events.next()? {
            Event::StreamStart | Event::DocumentEnd => {}
            Event::StreamEnd => break,
            Event::DocumentStart(..) if documents == 0 => documents += 1,
            Event::DocumentStart(..) => return Err(events.error("a second document begins; one is enough")),
            event => root = events.value(event)?,
        }
    }
    match root {
        Node::Nothing => Ok(Vec::new()),
        Node::Table(entries) => Ok(entries),
        _ => Err(SyntaxError { line: 1, what: "is not a mapping; write \"key: value\"".to_owned() }),
    }
}

struct Events<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Where the last event began.
    line: usize,
}

impl<'a> Events<'a> {
    fn next(&mut self) -> Result<Event<'a>, SyntaxError> {
        match self.parser.next() {
            Some(Ok((event, Span { start, .. }))) => {
                self.line = start.line();
                Ok(event)
            }
            Some(Err(error)) => Err(SyntaxError {
                line: error.marker().line(),
                what: format!("is not YAML: {}", error.info()),
            }),
            None => Ok(Event::StreamEnd),
        }
    }

    fn error(&self, what: &str) -> SyntaxError {
        SyntaxError { line: self.line, what: what.to_owned() }
    }

    /// The value that begins with `event`. Recursion ends at `DEPTH_MAX` of each kind.
    fn value(&mut self, event: Event<'a>) -> Result<Node, SyntaxError> {
        match event {
            Event::Scalar(text, style, 0, None) if is_null(&text, style) => Ok(Node::Nothing),
            Event::Scalar(text, _, 0, None) => Ok(Node::Text(text.into_owned())),
            Event::SequenceStart(_, 0, None) => self.list(),
            Event::MappingStart(_, 0, None) => self.table(),
            _ => Err(self.error("anchors, aliases and tags are not supported; write the value out")),
        }
    }

    fn list(&mut self) -> Result<Node, SyntaxError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Node::List(items)),
                event => items.push(ListNode { line: self.line, value: self.value(event)? }),
            }
        }
    }

    fn table(&mut self) -> Result<Node, SyntaxError> {
        let mut entries = Vec::new();
        loop {
            let event = self.next()?;
            let line = self.line;
            let name = match event {
                Event::MappingEnd => return Ok(Node::Table(entries)),
                Event::Scalar(name, _, 0, None) => Cow::into_owned(name),
                _ => return Err(self.error("a key is one plain text")),
            };
            let event = self.next()?;
            entries.push(TableNode { name, line, value: self.value(event)? });
        }
    }
}

fn is_null(text: &str, style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain && matches!(text, "" | "~" | "null" | "Null" | "NULL")
}
