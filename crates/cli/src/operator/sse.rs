//! An event stream, read as it arrives: bytes in, whole events out.
//!
//! As much of the format as the admin API writes: a name, data of one line or more, comments. Lines end in a line feed,
//! with or without a carriage return. Ids and retry times are passed over.

/// The longest event. Chosen: an overview of some thousand workers, and a bound on what a wrong server can cost.
const EVENT_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Bad {
    #[error("an event is longer than {EVENT_BYTES_MAX} bytes")]
    Long,
    #[error("an event is not UTF-8")]
    Text,
}

/// Fed each piece of one stream, in order.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// A line that has not ended.
    rest: Vec<u8>,
    name: String,
    data: Option<String>,
}

impl Reader {
    /// The events that this piece completes. After an error the stream cannot be read on.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Result<Vec<Event>, Bad> {
        let mut events = Vec::new();
        let mut lines = piece.split(|&it| it == b'\n');
        // The last one has not ended; often it is empty.
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            self.keep(line)?;
            let whole = std::mem::take(&mut self.rest);
            let whole = whole.strip_suffix(b"\r").unwrap_or(&whole);
            events.extend(self.read(std::str::from_utf8(whole).map_err(|_| Bad::Text)?));
        }
        self.keep(last)?;
        Ok(events)
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), Bad> {
        let held = self.rest.len() + self.data.as_ref().map_or(0, String::len);
        if held + part.len() > EVENT_BYTES_MAX {
            return Err(Bad::Long);
        }
        self.rest.extend_from_slice(part);
        Ok(())
    }

    /// One line; an empty one ends the event.
    fn read(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), self.data.take());
            return data.map(|data| Event { name, data });
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

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.to_owned(), data: data.to_owned() }
    }

    /// The stream read in pieces of every size.
    #[track_caller]
    fn check(stream: &str, expected: &[Event]) {
        for bytes in 1..=stream.len() {
            let mut reader = Reader::default();
            let pieces = stream.as_bytes().chunks(bytes);
            let events: Vec<Event> = pieces.flat_map(|it| reader.feed(it).unwrap()).collect();
            assert_eq!(events, expected, "in pieces of {bytes}");
        }
    }

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        check(
            "event: overview\ndata: {\"a\":1}\n\n: still here\n\nevent: decisions\r\ndata: {}\r\n\r\n",
            &[event("overview", "{\"a\":1}"), event("decisions", "{}")],
        );
    }

    #[test]
    fn odd_streams_are_read_as_the_format_has_it() {
        check("data: one\ndata: two\n\n", &[event("", "one\ntwo")]);
        check("event: nothing\n\ndata\n\n", &[event("", "")]);
        check("id: 7\nretry: 9\ndata:tight\n\n", &[event("", "tight")]);
        check("data: cut off\n", &[]);
        check("event: überblick\ndata: ü\n\n", &[event("überblick", "ü")]);
    }

    #[test]
    fn a_stream_that_is_none_of_ours_is_told() {
        let mut reader = Reader::default();
        let piece = vec![b'x'; 1 << 20];
        let told = (0..20).map(|_| reader.feed(&piece)).find_map(Result::err);
        assert_eq!(told, Some(Bad::Long), "one endless line");
        let mut reader = Reader::default();
        let line = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
        let told = (0..20).map(|_| reader.feed(&line)).find_map(Result::err);
        assert_eq!(told, Some(Bad::Long), "one endless event");
        assert_eq!(Reader::default().feed(b"data: \xff\n\n"), Err(Bad::Text));
    }
}
