//! Server-sent events: bytes in, whole events out.
//!
//! Reads the format of the admin API: a name, data of one line or more, comments. Lines end in a line feed,
//! with or without a carriage return. Ids and retry times are ignored.

/// Maximum event size. Chosen: an overview of several thousand workers; bounds the memory that a wrong server
/// can take.
const EVENT_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub(crate) name: String,
    pub(crate) data: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadStream {
    #[error("an event is longer than {EVENT_BYTES_MAX} bytes")]
    Long,
    #[error("an event is not UTF-8")]
    Text,
}

/// Takes each piece of one stream, in order.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    /// An incomplete line.
    rest: Vec<u8>,
    name: String,
    data: Option<String>,
}

impl EventReader {
    /// The events that this piece completes. After an error the stream cannot be continued.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Result<Vec<SseEvent>, BadStream> {
        let mut events = Vec::new();
        let mut lines = piece.split(|&it| it == b'\n');
        // The last one is incomplete; often it is empty.
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            self.keep(line)?;
            let whole = std::mem::take(&mut self.rest);
            let whole = whole.strip_suffix(b"\r").unwrap_or(&whole);
            events.extend(self.read(std::str::from_utf8(whole).map_err(|_| BadStream::Text)?));
        }
        self.keep(last)?;
        Ok(events)
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), BadStream> {
        let held = self.rest.len() + self.data.as_ref().map_or(0, String::len);
        if held + part.len() > EVENT_BYTES_MAX {
            return Err(BadStream::Long);
        }
        self.rest.extend_from_slice(part);
        Ok(())
    }

    /// One line; an empty one ends the event.
    fn read(&mut self, line: &str) -> Option<SseEvent> {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), self.data.take());
            return data.map(|data| SseEvent { name, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match (field, &mut self.data) {
            ("event", _) => value.clone_into(&mut self.name),
            ("data", None) => self.data = Some(value.to_owned()),
            ("data", Some(data)) => {
                data.push('\n');
                data.push_str(value);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { name: name.to_owned(), data: data.to_owned() }
    }

    /// The stream read in pieces of every size.
    #[track_caller]
    fn check(stream: &str, expected: &[SseEvent]) {
        for bytes in 1..=stream.len() {
            let mut reader = EventReader::default();
            let pieces = stream.as_bytes().chunks(bytes);
            let events: Vec<SseEvent> = pieces.flat_map(|it| reader.feed(it).unwrap()).collect();
            assert_eq!(events, expected, "in pieces of {bytes}");
        }
    }

    #[test]
    fn a_stream_is_the_same_in_pieces_of_any_size() {
        check(
            "event: overview\ndata: {\"a\":1}\n\n: still here\n\nevent: decisions\r\ndata: {}\r\n\r\n",
            &[event("overview", "{\"a\":1}"), event("decisions", "{}")],
        );
    }

    #[test]
    fn rare_forms_are_read_as_the_format_says() {
        check("data: one\ndata: two\n\n", &[event("", "one\ntwo")]);
        check("event: nothing\n\ndata\n\n", &[event("", "")]);
        check("id: 7\nretry: 9\ndata:tight\n\n", &[event("", "tight")]);
        check("data: cut off\n", &[]);
        check("event: überblick\ndata: ü\n\n", &[event("überblick", "ü")]);
    }

    #[test]
    fn a_stream_of_another_kind_is_an_error() {
        let mut reader = EventReader::default();
        let piece = vec![b'x'; 1 << 20];
        let error = (0..20).map(|_| reader.feed(&piece)).find_map(Result::err);
        assert_eq!(error, Some(BadStream::Long), "one endless line");
        let mut reader = EventReader::default();
        let line = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
        let error = (0..20).map(|_| reader.feed(&line)).find_map(Result::err);
        assert_eq!(error, Some(BadStream::Long), "one endless event");
        assert_eq!(EventReader::default().feed(b"data: \xff\n\n"), Err(BadStream::Text));
    }
}
