//! Suggests the known name that is nearest to an unknown one.

/// The hint after "no such key": the nearest name; if none is near, those beside it, or all names if there are none.
pub(super) fn hint(wrong: &str, known: &[String], beside: &[String]) -> String {
    match nearest(wrong, known) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("known: {}", if beside.is_empty() { known } else { beside }.join(", ")),
    }
}

/// The nearest name, if it is near enough.
pub fn nearest<'a>(wrong: &str, known: &'a [String]) -> Option<&'a str> {
    // At most a third of the letters may differ: beyond that a guess misleads more often than it helps.
    let edits_max = wrong.chars().count() / 3;
    let measured = known.iter().map(|name| (edits(wrong, name), name.as_str()));
    let (count, name) = measured.min_by_key(|it| it.0)?;
    (count <= edits_max).then_some(name)
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
    fn without_a_near_name_those_beside_it_are_listed() {
        let known = ["limits.body", "limits.headers", "listen"].map(str::to_owned);
        assert_eq!(hint("limits.colour", &known, &known[..2]), "known: limits.body, limits.headers");
        assert_eq!(hint("limits.lisetn", &known, &known[..1]), "known: limits.body");
    }

    #[test]
    fn edits_count_letters() {
        for (from, to, count) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("é", "e", 1)] {
            assert_eq!((edits(from, to), edits(to, from)), (count, count), "{from} {to}");
        }
    }
}
