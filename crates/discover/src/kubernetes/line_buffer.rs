//! Splits a stream of bytes into lines, within a limit.

use std::collections::VecDeque;

/// Bytes received and not yet returned as lines.
#[derive(Debug)]
pub(super) struct LineBuffer {
    bytes: VecDeque<u8>,
    /// How many of these bytes are known to contain no line end.
    searched: usize,
    bytes_max: usize,
}

/// A line exceeds the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl LineBuffer {
    pub(super) fn new(bytes_max: usize) -> LineBuffer {
        LineBuffer { bytes: VecDeque::new(), searched: 0, bytes_max }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// The next complete line, without its end. Bytes after the last line end are never a line.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let end = self.bytes.iter().skip(self.searched).position(|it| *it == b'\n');
        match end.map(|it| it + self.searched) {
            Some(end) if end > self.bytes_max => Err(TooLong),
            Some(end) => {
                let line = self.bytes.drain(..=end).take(end).collect();
                self.searched = 0;
                Ok(Some(line))
            }
            None if self.bytes.len() > self.bytes_max => Err(TooLong),
            None => {
                self.searched = self.bytes.len();
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut LineBuffer) -> Result<Vec<String>, TooLong> {
        let mut found = Vec::new();
        while let Some(line) = lines.next()? {
            found.push(String::from_utf8(line).unwrap());
        }
        Ok(found)
    }

    #[test]
    fn chunk_boundaries_make_no_difference_and_an_incomplete_line_is_none() {
        let text = b"one\n\nthree\ntorn";
        for cut in 0..text.len() {
            let (mut lines, mut found) = (LineBuffer::new(8), Vec::new());
            for piece in [&text[..cut], &text[cut..]] {
                lines.push(piece);
                found.extend(all(&mut lines).unwrap());
            }
            assert_eq!(found, ["one", "", "three"], "cut at {cut}");
        }
    }

    #[test]
    fn a_line_over_the_limit_is_refused_before_it_ends() {
        let mut lines = LineBuffer::new(4);
        lines.push(b"four\n");
        assert_eq!(all(&mut lines), Ok(vec!["four".to_owned()]));
        lines.push(b"five5");
        assert_eq!(all(&mut lines), Err(TooLong));
        let mut lines = LineBuffer::new(4);
        lines.push(b"five5\n");
        assert_eq!(all(&mut lines), Err(TooLong));
    }
}
