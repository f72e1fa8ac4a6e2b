//! Reads the parts of the Prometheus text format that a router needs: names, labels, values.
//!
//! A scrape is text from a server we do not control, and most of it is histograms we do not need. So nothing
//! is collected: samples are returned one by one, borrowed from the text. A malformed line is skipped,
//! because one broken metric must not hide the load of a worker. Types, help, timestamps and exemplars are
//! ignored.

use std::borrow::Cow;

use memchr::memchr;

/// One line of a scrape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    pub name: &'a str,
    pub value: f64,
    /// The text between the braces, validated.
    labels: &'a str,
}

/// All samples of a scrape, in its order.
pub fn samples(scrape: &[u8]) -> impl Iterator<Item = Sample<'_>> {
    scrape.split(|&byte| byte == b'\n').filter_map(sample)
}

impl<'a> Sample<'a> {
    /// The value of a label; borrowed unless it contains escapes.
    pub fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        while let Some((label, after)) = next_label(rest) {
            if label.name == name {
                return Some(label.value());
            }
            rest = after;
        }
        None
    }

    /// The name without the `_total` that newer clients append to counters.
    pub fn base_name(&self) -> &'a str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }
}

struct Label<'a> {
    name: &'a str,
    /// The text between the quotes, still escaped.
    quoted: &'a str,
}

impl<'a> Label<'a> {
    fn value(&self) -> Cow<'a, str> {
        if !self.quoted.contains('\\') {
            return Cow::Borrowed(self.quoted);
        }
        let mut value = String::with_capacity(self.quoted.len());
        let mut characters = self.quoted.chars();
        while let Some(character) = characters.next() {
            value.push(match character {
                '\\' => match characters.next() {
                    Some('n') => '\n',
                    Some(other) => other,
                    None => '\\',
                },
                other => other,
            });
        }
        Cow::Owned(value)
    }
}

fn sample(line: &[u8]) -> Option<Sample<'_>> {
    let line = std::str::from_utf8(line).ok()?.trim_ascii();
    let name_length = line.bytes().take_while(|&byte| is_name_byte(byte)).count();
    let (name, rest) = line.split_at(name_length);
    if name.is_empty() {
        return None;
    }
    let (labels, rest) = match rest.trim_ascii_start().strip_prefix('{') {
        Some(rest) => split_labels(rest)?,
        None => ("", rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, value, labels })
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

/// Splits `a="1",b="2"} 3` at its closing brace, which may also occur in a value.
fn split_labels(text: &str) -> Option<(&str, &str)> {
    let mut rest = text;
    while let Some((_, after)) = next_label(rest) {
        rest = after;
    }
    let after = rest.trim_ascii_start().strip_prefix('}')?;
    Some((&text[..text.len() - rest.len()], after))
}

/// The next label and what follows it and its comma. `None` at the closing brace, or at garbage.
fn next_label(text: &str) -> Option<(Label<'_>, &str)> {
    let (name, rest) = text.split_once('=')?;
    let name = name.trim_ascii();
    if name.is_empty() || !name.bytes().all(is_name_byte) {
        return None;
    }
    let quoted_on = rest.trim_ascii_start().strip_prefix('"')?;
    let end = quoted_end(quoted_on)?;
    let rest = quoted_on[end + 1..].trim_ascii_start();
    Some((Label { name, quoted: &quoted_on[..end] }, rest.strip_prefix(',').unwrap_or(rest)))
}

fn quoted_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let at = from + memchr(b'"', bytes.get(from..)?)?;
        let backslashes = bytes[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
        if backslashes % 2 == 0 {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line, and the name, value and label `l` read from it.
    #[track_caller]
    fn check(line: &str, expected: Option<(&str, f64, Option<&str>)>) {
        let all: Vec<_> = samples(line.as_bytes()).collect();
        let actual = all.first().map(|it| (it.name, it.value, it.label("l")));
        let expected = expected.map(|(name, value, label)| (name, value, label.map(Cow::Borrowed)));
        assert_eq!(actual, expected, "line: {line}");
    }

    #[test]
    fn all_forms_of_a_sample_are_read() {
        check("up 1", Some(("up", 1.0, None)));
        check("up{} 1", Some(("up", 1.0, None)));
        check("  up\t1.5e+09  ", Some(("up", 1.5e9, None)));
        check("vllm:x{l=\"a\"} 2.0 1700000000", Some(("vllm:x", 2.0, Some("a"))));
        check("x { k = \"b\" , l = \"a\" , } 2", Some(("x", 2.0, Some("a"))));
        check("x{l=\"a\",k=\"b\"} 3 # {trace=\"t\"} 0.5", Some(("x", 3.0, Some("a"))));
        check("x{l=\"}, l=\"} 3", Some(("x", 3.0, Some("}, l="))));
        check(r#"x{k="\\",l="a\"b\\c\nd"} 1"#, Some(("x", 1.0, Some("a\"b\\c\nd"))));
        check("x +Inf\r", Some(("x", f64::INFINITY, None)));
    }

    #[test]
    fn malformed_lines_are_skipped() {
        for line in [
            "",
            "# HELP up help",
            "# TYPE up gauge",
            "up",
            "up one",
            "{l=\"a\"} 1",
            "x{l=\"a\" 1",
            "x{l=a} 1",
            "x{l} 1",
            "x{l=\"a} 1",
            "x{=\"a\"} 1",
            "é 1",
        ] {
            check(line, None);
        }
        let names: Vec<_> = samples(b"a 1\n\xff\xfe 2\nb{ 3\nc 4").map(|it| it.name).collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn counters_have_one_name_with_and_without_their_suffix() {
        let names: Vec<_> = samples(b"hits 1\nhits_total 1").map(|it| it.base_name()).collect();
        assert_eq!(names, ["hits", "hits"]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(scrape: Vec<u8>) {
            samples(&scrape).for_each(|it| drop(it.label("l")));
        }

        #[test]
        fn random_label_syntax_never_panics(scrape in r#"([a-z]\{)?[a-z=",\\{}0-9 \n]{0,60}"#) {
            samples(scrape.as_bytes()).for_each(|it| drop(it.label("a")));
        }

        #[test]
        fn any_label_value_is_read_back(value in "[ -~é\n]{0,30}") {
            let escaped = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n");
            let line = format!("x{{a=\"{escaped}\",l=\"{escaped}\"}} 1");
            let read = samples(line.as_bytes()).next().and_then(|it| it.label("l"));
            prop_assert_eq!(read.as_deref(), Some(value.as_str()));
        }
    }
}
