//! What a name that we do not know was probably meant to be.

/// The rest of the sentence after "no such key": the nearest name, or all of them if none is near.
pub(super) fn hint(wrong: &str, known: &[String]) -> String {
    match nearest(wrong, known) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("known: {}", known.join(", ")),
    }
}

/// The name that is nearest, if any is near.
pub fn nearest<'a>(wrong: &str, known: &'a [String]) -> Option<&'a str> {
    // A third of the name may be wrong: further off, a guess is more likely to mislead than to help.
    let edits_max = wrong.chars().count() / 3;
    let measured = known.iter().map(|name| (edits(wrong, name), name.as_str()));
    let (count, name) = measured.min_by_key(|it| it.0)?;
    (count <= edits_max).then_some(name)
}

/// Letters to add, drop or change to get from one to the other.
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
        assert_eq!(hint(wrong, &known), expected);
    }

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_gets_the_list() {
        check("limits.bodyy", "did you mean limits.body?");
        check("limit.body", "did you mean limits.body?");
        check("lisetn", "did you mean listen?");
        check("colour", "known: limits.body, limits.headers, listen");
        check("", "known: limits.body, limits.headers, listen");
    }

    #[test]
    fn edits_count_letters() {
        for (from, to, count) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("é", "e", 1)] {
            assert_eq!((edits(from, to), edits(to, from)), (count, count), "{from} {to}");
        }
    }
}
