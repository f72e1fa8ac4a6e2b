//! Suggests the known name that is nearest to an unknown one.

/// More names than this are not listed: two lines of a terminal. There are 39 top-level tables and 150 keys.
const NAMES_MAX: usize = 12;

/// Names that settings had in earlier builds, and have now.
pub(super) const RENAMED: [(&str, &str); 6] = [
    ("pass", "passthrough"),
    ("ask_patience", "tokenize_timeout"),
    ("cluster.wait", "cluster.join_timeout"),
    ("events.at", "events.endpoint"),
    ("events.replay_at", "events.replay_endpoint"),
    ("timeouts.client_head", "timeouts.client_header"),
];

/// The hint after "no such key": the nearest name; if none is near, those beside it, or all names if there are none.
pub(super) fn hint(wrong: &str, known: &[String], beside: &[String]) -> String {
    if let Some((_, new)) = RENAMED.iter().find(|it| it.0 == wrong) {
        return now_called(new);
    }
    let names = if beside.is_empty() { known } else { beside };
    match nearest(wrong, known).or_else(|| elsewhere(wrong, known)) {
        Some(name) if wrong.contains('.') && !name.contains('.') => {
            format!("did you mean {name}? It belongs to no table")
        }
        Some(name) => format!("did you mean {name}?"),
        None if names.len() > NAMES_MAX => "`maitre serve --help` lists all settings".to_owned(),
        None => format!("known: {}", names.join(", ")),
    }
}

/// The hint for a name of `RENAMED`.
pub(super) fn now_called(new: &str) -> String {
    format!("it is called {new} now")
}

/// The one name that ends like the wrong one: a key in the wrong table. Of several, the one of no table.
fn elsewhere<'a>(wrong: &str, known: &'a [String]) -> Option<&'a str> {
    let last = |name: &'a str| name.rsplit('.').next().unwrap_or(name);
    let own = wrong.rsplit('.').next()?;
    let found: Vec<&str> = known.iter().map(String::as_str).filter(|it| last(it) == own).collect();
    match found[..] {
        [only] => Some(only),
        _ => found.into_iter().find(|it| !it.contains('.')),
    }
}

/// The nearest name, if it is near enough.
pub fn nearest<'a>(wrong: &str, known: &'a [String]) -> Option<&'a str> {
    let section = section(wrong);
    let near = known.iter().filter_map(|name| {
        // At most a third of the letters may differ: beyond that a guess misleads more often than it helps. Letters of a
        // section that both are in tell nothing: `timeouts.foo` is not `timeouts.total`.
        let own = if name.starts_with(section) { &wrong[section.len()..] } else { wrong };
        let count = edits(wrong, name);
        (count <= own.chars().count() / 3).then_some((count, name.as_str()))
    });
    near.min_by_key(|it| it.0).map(|it| it.1)
}

/// What precedes the last part of a key, or the program's name in that of a variable.
fn section(name: &str) -> &str {
    let is_variable = name.starts_with(|it: char| it.is_ascii_uppercase());
    let end = name.rfind('.').or_else(|| name.find('_').filter(|_| is_variable));
    end.map_or("", |it| &name[..=it])
}

/// Letters to add, drop or change to turn one into the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for column in 0..to.len() {
            let changed = diagonal + usize::from(letter != to[column]);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wrong: &str, expected: &str) {
        let known = ["limits.body", "limits.headers", "listen"].map(str::to_owned);
        assert_eq!(hint(wrong, &known, &[]), expected);
    }

    #[test]
    fn a_near_name_is_suggested() {
        check("limits.bodyy", "did you mean limits.body?");
        check("limit.body", "did you mean limits.body?");
        check("lisetn", "did you mean listen?");
        check("colour", "known: limits.body, limits.headers, listen");
        check("", "known: limits.body, limits.headers, listen");
    }

    #[test]
    fn a_common_section_makes_no_name_near() {
        check("limits.sad", "known: limits.body, limits.headers, listen");
        let known = ["MAITRE_HEDGE", "MAITRE_KEYS"].map(str::to_owned);
        assert_eq!(hint("MAITRE_HOME", &known, &[]), "known: MAITRE_HEDGE, MAITRE_KEYS");
        assert_eq!(hint("MAITRE_KEY", &known, &[]), "did you mean MAITRE_KEYS?");
    }

    #[test]
    fn a_long_list_of_names_is_in_the_documentation() {
        let known: Vec<String> = (0..=NAMES_MAX).map(|it| format!("name-{it}")).collect();
        assert_eq!(hint("colour", &known, &[]), "`maitre serve --help` lists all settings");
        assert_eq!(hint("colour", &known, &known[..1]), "known: name-0");
    }

    #[test]
    fn without_a_near_name_those_beside_it_are_listed() {
        let known = ["limits.body", "limits.headers", "listen"].map(str::to_owned);
        assert_eq!(hint("limits.colour", &known, &known[..2]), "known: limits.body, limits.headers");
        assert_eq!(hint("limits.lisetn", &known, &known[..1]), "known: limits.body");
    }

    #[test]
    fn a_key_in_the_wrong_table_is_found_in_its_own() {
        check("body", "did you mean limits.body?");
        check("queue.headers", "did you mean limits.headers?");
        check("queue.listen", "did you mean listen? It belongs to no table");
        let known = ["listen", "cluster.listen", "a.ca", "b.ca"].map(str::to_owned);
        assert_eq!(hint("tls.listen", &known, &[]), "did you mean listen? It belongs to no table");
        assert_eq!(hint("tls.ca", &known, &known[..1]), "known: listen");
    }

    #[test]
    fn edits_count_letters() {
        for (from, to, count) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("é", "e", 1)] {
            assert_eq!((edits(from, to), edits(to, from)), (count, count), "{from} {to}");
        }
    }
}
