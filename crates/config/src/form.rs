//! Forms: how a value is written as text, and read back from it.
//!
//! A number that measures something carries its unit. Text that cannot be read is answered with an example of text
//! that can. `types.rs` has the forms of all types that knobs have.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// How values of one type are written.
pub trait Form: Sync {
    type Value: Clone + PartialEq;

    /// One word for what is written, such as `DURATION`.
    fn name(&self) -> &'static str;

    /// The error says what is wrong with the text and what to write instead.
    fn read(&self, text: &str) -> Result<Self::Value, String>;

    /// The text that `read` takes for this value.
    fn show(&self, value: &Self::Value) -> String;

    fn shape(&self) -> ValueShape {
        ValueShape::Text
    }

    fn secrecy(&self, _: &Self::Value) -> Secrecy {
        Secrecy::Public
    }
}

/// How a value is written in a file.
pub enum ValueShape {
    Text,
    /// Written without quotes.
    Number,
    /// Written without quotes; as a flag without a value it means true.
    Switch,
    List(Option<ItemTable>),
    /// Holds a description of the values, for errors.
    Map(&'static str),
}

/// How an item of a list is written as a table.
#[derive(Clone, Copy)]
pub struct ItemTable {
    /// What an item is, for errors.
    pub(crate) what: &'static str,
    /// The key that every item has.
    pub(crate) key: &'static str,
    /// Makes one text of the value of that key and the options, which are `name=value&name=value`.
    pub(crate) join: fn(&str, &str) -> String,
    /// As much of an item's name as an error may show.
    pub(crate) shown: fn(&str) -> String,
    /// Whether the list may be a table of tables by the items' names.
    pub(crate) by_name: bool,
}

impl ItemTable {
    pub(crate) const fn new(what: &'static str, key: &'static str) -> ItemTable {
        ItemTable {
            what,
            key,
            // The mark stands even without options: the name may hold one, and the last one divides.
            join: |name, options| format!("{name}?{options}"),
            shown: str::to_owned,
            by_name: false,
        }
    }
}

/// Who may see a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Secrecy {
    Public,
    /// Printed into a config file, not shown to operators or in logs. A short key can be guessed from its hash, and the
    /// name of a tenant may be its key.
    ForFiles,
    /// Printed nowhere.
    Hidden,
}

/// An address to listen on: an IP and a port, or `localhost` and a port.
pub fn socket(text: &str) -> Result<SocketAddr, String> {
    let wrong = "is not an address; write an IP and a port, as in \"127.0.0.1:8080\"";
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let address = match host.eq_ignore_ascii_case("localhost") {
        true => port.parse().ok().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        // Other names are not resolved: which of their addresses was meant?
        false => text.parse().ok(),
    };
    address.ok_or_else(|| format!("{text:?} {wrong}"))
}

/// Units of one measure, from small to large.
struct Units {
    known: [(&'static str, u64); 4],
    /// The unit proposed for a number without one.
    usual: &'static str,
    wrong: &'static str,
}

/// In milliseconds: what is finer cannot be set, and is not shown.
const DURATIONS: Units = Units {
    known: [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)],
    usual: "s",
    wrong: "is not a duration; write a whole number and ms, s, m or h, as in \"5s\"",
};
/// In bytes.
const SIZES: Units = Units {
    known: [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)],
    usual: "B",
    wrong: "is not a size; write a whole number and B, KiB, MiB or GiB, as in \"16MiB\"",
};

impl Units {
    fn read(&self, text: &str, [least, most]: [u64; 2]) -> Result<u64, String> {
        let end = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
        let (number, name) = text.split_at(end);
        if !number.is_empty() && name.is_empty() {
            return Err(format!("{text:?} has no unit; write \"{number}{}\"", self.usual));
        }
        let unit = self.known.iter().find(|it| it.0 == name && !number.is_empty());
        let (_, unit) = unit.ok_or_else(|| format!("{text:?} {}", self.wrong))?;
        let value = number.parse::<u64>().ok().and_then(|it| it.checked_mul(*unit));
        value.filter(|it| (least..=most).contains(it)).ok_or_else(|| {
            let [least, most] = [least, most].map(|it| self.show(it));
            format!("{text:?} is out of range; write \"{least}\" to \"{most}\"")
        })
    }

    /// In the largest unit that divides it.
    fn show(&self, value: u64) -> String {
        let largest = self.known.iter().rev().find(|it| value >= it.1 && value.is_multiple_of(it.1));
        largest.map_or(format!("0{}", self.usual), |(name, unit)| format!("{}{name}", value / unit))
    }
}

/// A duration in whole milliseconds.
pub struct Time(pub RangeInclusive<Duration>);

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Form for Time {
    type Value = Duration;

    fn name(&self) -> &'static str {
        "DURATION"
    }

    fn read(&self, text: &str) -> Result<Duration, String> {
        let range = [*self.0.start(), *self.0.end()].map(milliseconds);
        DURATIONS.read(text, range).map(Duration::from_millis)
    }

    fn show(&self, value: &Duration) -> String {
        show_duration(*value)
    }
}

pub(crate) fn show_duration(duration: Duration) -> String {
    DURATIONS.show(milliseconds(duration))
}

/// A number of bytes.
pub(crate) struct Size(pub(crate) RangeInclusive<usize>);

impl Form for Size {
    type Value = usize;

    fn name(&self) -> &'static str {
        "SIZE"
    }

    fn read(&self, text: &str) -> Result<usize, String> {
        // Whatever is within the range fits.
        SIZES.read(text, [*self.0.start() as u64, *self.0.end() as u64]).map(|it| it as usize)
    }

    fn show(&self, value: &usize) -> String {
        SIZES.show(*value as u64)
    }
}

/// A whole number.
pub(crate) struct Count<T>(pub(crate) RangeInclusive<T>);

impl<T: FromStr + PartialOrd + Display + Clone + Sync> Form for Count<T> {
    type Value = T;

    fn name(&self) -> &'static str {
        "COUNT"
    }

    fn read(&self, text: &str) -> Result<T, String> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_whole = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
        let wrong = if is_whole { "out of range" } else { "not a whole number" };
        let value = text.parse().ok().filter(|it| is_whole && self.0.contains(it));
        value.ok_or_else(|| format!("{text:?} is {wrong}; write {} to {}", self.0.start(), self.0.end()))
    }

    fn show(&self, value: &T) -> String {
        value.to_string()
    }

    fn shape(&self) -> ValueShape {
        ValueShape::Number
    }
}

/// A number with a fraction.
pub struct Ratio(pub RangeInclusive<f64>);

impl Form for Ratio {
    type Value = f64;

    fn name(&self) -> &'static str {
        "NUMBER"
    }

    fn read(&self, text: &str) -> Result<f64, String> {
        let parsed = text.parse::<f64>().ok();
        // Not-a-number is in no range, and neither infinity is in a range that ends.
        let wrong = if parsed.is_some() { "out of range" } else { "not a number" };
        let value = parsed.filter(|it| self.0.contains(it));
        value.ok_or_else(|| format!("{text:?} is {wrong}; write {} to {}", self.0.start(), self.0.end()))
    }

    fn show(&self, value: &f64) -> String {
        value.to_string()
    }

    fn shape(&self) -> ValueShape {
        ValueShape::Number
    }
}

pub(crate) struct Switch;

impl Form for Switch {
    type Value = bool;

    fn name(&self) -> &'static str {
        "BOOL"
    }

    fn read(&self, text: &str) -> Result<bool, String> {
        text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }

    fn shape(&self) -> ValueShape {
        ValueShape::Switch
    }
}

/// One of a few words: the name of the form, and the words with their values.
pub(crate) struct OneOf<T: 'static>(pub(crate) &'static str, pub(crate) &'static [(&'static str, T)]);

impl<T: Clone + PartialEq + Sync> Form for OneOf<T> {
    type Value = T;

    fn name(&self) -> &'static str {
        self.0
    }

    fn read(&self, text: &str) -> Result<T, String> {
        let known = self.1.iter().find(|it| it.0 == text);
        known.map(|it| it.1.clone()).ok_or_else(|| {
            let mut words: Vec<&str> = self.1.iter().map(|it| it.0).collect();
            let last = words.pop().unwrap_or_default();
            format!("{text:?} is unknown; write {} or {last}", words.join(", "))
        })
    }

    fn show(&self, value: &T) -> String {
        self.1.iter().find(|it| it.1 == *value).map_or_else(String::new, |it| it.0.to_owned())
    }
}

/// A text that must satisfy a rule.
pub(crate) struct Word {
    pub(crate) name: &'static str,
    pub(crate) is_valid: fn(&str) -> bool,
    /// The error, after the text itself.
    pub(crate) wrong: &'static str,
}

impl Form for Word {
    type Value = String;

    fn name(&self) -> &'static str {
        self.name
    }

    fn read(&self, text: &str) -> Result<String, String> {
        if (self.is_valid)(text) { Ok(text.to_owned()) } else { Err(format!("{text:?} {}", self.wrong)) }
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// Any other type, by its functions.
pub(crate) struct Custom<T> {
    pub(crate) name: &'static str,
    pub(crate) read: fn(&str) -> Result<T, String>,
    pub(crate) show: fn(&T) -> String,
    pub(crate) secrecy: fn(&T) -> Secrecy,
}

/// A form whose values anyone may see.
pub(crate) const fn public<T>(
    name: &'static str,
    read: fn(&str) -> Result<T, String>,
    show: fn(&T) -> String,
) -> Custom<T> {
    Custom { name, read, show, secrecy: |_| Secrecy::Public }
}

impl<T: Clone + PartialEq> Form for Custom<T> {
    type Value = T;

    fn name(&self) -> &'static str {
        self.name
    }

    fn read(&self, text: &str) -> Result<T, String> {
        (self.read)(text)
    }

    fn show(&self, value: &T) -> String {
        (self.show)(value)
    }

    fn secrecy(&self, value: &T) -> Secrecy {
        (self.secrecy)(value)
    }
}

/// Empty text is no value.
pub(crate) struct Optional<F>(pub(crate) F);

impl<F: Form> Form for Optional<F> {
    type Value = Option<F::Value>;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn read(&self, text: &str) -> Result<Option<F::Value>, String> {
        if text.is_empty() { Ok(None) } else { self.0.read(text).map(Some) }
    }

    fn show(&self, value: &Option<F::Value>) -> String {
        value.as_ref().map_or_else(String::new, |it| self.0.show(it))
    }

    fn secrecy(&self, value: &Option<F::Value>) -> Secrecy {
        value.as_ref().map_or(Secrecy::Public, |it| self.0.secrecy(it))
    }
}

#[cfg(test)]
pub(crate) mod tests;
