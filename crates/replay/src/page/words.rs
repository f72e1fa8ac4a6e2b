//! Text of the report: escaped, with the right plural, and numbers as people write them.

/// Makes text from outside safe as content and as an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // These would hide or reverse the text after them.
            _ if letter.is_control() || is_direction(letter) => escaped.push('\u{FFFD}'),
            _ => escaped.push(letter),
        }
    }
    escaped
}

fn is_direction(letter: char) -> bool {
    matches!(letter, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// `12,031`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 request`, `12,031 requests`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", count(number)),
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn listed(items: &[String]) -> String {
    joined(items, " and ")
}

/// The same for items that contain commas.
pub(super) fn clauses(items: &[String]) -> String {
    joined(items, ", and ")
}

fn joined(items: &[String], and: &str) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{}{and}{last}", first.join(", ")),
    }
}

/// `2 s`, `1.5 s`, `100 ms`: as it would be typed, to the millisecond.
pub(super) fn span(seconds: f64) -> String {
    let round = |it: f64| (it * 1e3).round() / 1e3;
    match seconds {
        _ if seconds >= 1.0 => format!("{} s", round(seconds)),
        _ => format!("{} ms", round(seconds * 1e3)),
    }
}

/// A share as a percentage, with one more digit near 0 and near 100.
pub(super) fn percent(part: f64) -> String {
    let value = part * 100.0;
    match value {
        _ if (9.95..90.0).contains(&value) => format!("{value:.0} %"),
        _ if value == 0.0 || value == 100.0 => format!("{value:.0} %"),
        _ => format!("{value:.1} %"),
    }
}

/// The sentence as it stands after a comma.
pub(super) fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|it| it.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// A word quoted for a shell.
pub(super) fn quoted(word: &str) -> String {
    let plain = |it: char| it.is_alphanumeric() || "-_=.,/:+@%".contains(it);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(escape("<b a='1' c=\"2\">&"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
        assert_eq!(escape("a\u{202E}b\nc"), "a\u{FFFD}b\u{FFFD}c");
    }

    #[test]
    fn numbers_are_written_as_people_write_them() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), expected);
        }
        assert_eq!((counted(1, "worker"), counted(2, "worker")), ("1 worker".into(), "2 workers".into()));
        for (part, expected) in [
            (0.0, "0 %"),
            (0.004, "0.4 %"),
            (0.0994, "9.9 %"),
            (0.5, "50 %"),
            (0.987, "98.7 %"),
            (1.0, "100 %"),
        ] {
            assert_eq!(percent(part), expected);
        }
    }

    #[test]
    fn spans_have_no_trailing_zeros() {
        for (seconds, expected) in
            [(2.0, "2 s"), (1.25, "1.25 s"), (0.1, "100 ms"), (0.0, "0 ms"), (300.0, "300 s")]
        {
            assert_eq!(span(seconds), expected);
        }
    }

    #[test]
    fn lists_end_with_and() {
        let items = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(
            [listed(&items[..1]), listed(&items[..2]), listed(&items)],
            ["a", "a and b", "a, b and c"]
        );
    }

    #[test]
    fn quoted_words_survive_a_shell() {
        for (word, expected) in [("a-b=1,2", "a-b=1,2"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
