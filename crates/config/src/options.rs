//! An item with options as one text: `NAME?option=value&option=value`.

/// The name, and the options with their values. The last question mark divides: a name may hold one, an option cannot.
pub(crate) fn split(text: &str) -> (&str, impl Iterator<Item = (&str, &str)>) {
    let (name, options) = text.rsplit_once('?').unwrap_or((text, ""));
    let options = options.split('&').filter(|it| !it.is_empty());
    (name.trim(), options.map(|it| it.split_once('=').unwrap_or((it, ""))))
}

/// The text that `split` divides so.
pub(crate) fn join<const N: usize>(name: &str, options: [Option<String>; N]) -> String {
    let options: Vec<String> = options.into_iter().flatten().collect();
    match options.is_empty() && !name.contains('?') {
        true => name.to_owned(),
        false => format!("{name}?{}", options.join("&")),
    }
}

/// A URL with options; it may have some of its own.
pub(crate) fn append(url: &str, options: &str) -> String {
    if options.is_empty() { url.to_owned() } else { format!("{url}?{options}") }
}

/// Gives each option to `set`, which returns none for a name it does not know. Returns every error.
pub(crate) fn read<'a>(
    options: impl Iterator<Item = (&'a str, &'a str)>,
    known: &str,
    shown: fn(&str) -> String,
    mut set: impl FnMut(&str, &str) -> Option<Result<(), String>>,
) -> Vec<String> {
    let error = |(option, value): (&str, &str)| match set(option, value) {
        Some(result) => result.err().map(|what| format!("{option}: {what}")),
        None => Some(format!("unknown option {:?}; known: {known}", shown(option))),
    };
    options.filter_map(error).collect()
}

/// The errors of one item as one.
pub(crate) fn check(name: &str, errors: &[String]) -> Result<(), String> {
    if errors.is_empty() { Ok(()) } else { Err(format!("{name}: {}", errors.join("; "))) }
}
