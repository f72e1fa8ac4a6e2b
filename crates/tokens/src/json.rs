//! JSON into values that templates print as Python would print them.
//!
//! The template engine writes very large and very small numbers in its own way: `1e-05` becomes `0.00001`. Schemas of
//! tools have such defaults. So these few become objects that write themselves as Python does. Arithmetic on them is
//! an error. A comparison of one with a number would give a wrong result; none of the 124 public templates that we
//! tried came out different.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Reads one value; nested no deeper than serde_json allows (128).
pub(crate) fn read(text: &str) -> Result<Value, serde_json::Error> {
    let huge = Cell::new(false);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = JsonReader { huge: &huge }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    if huge.get() && has_long_integer(text) {
        return Err(serde_json::Error::custom("number out of range"));
    }
    Ok(value)
}

/// A float as `repr` writes it: the shortest digits that read back the same, with an exponent from 1e16 up
/// and below 1e-4.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if let Some(written) = with_exponent(value) {
        return written;
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// A number that Python writes with an exponent.
pub(crate) struct Exponent(f64);

impl fmt::Debug for Exponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&float(self.0))
    }
}

impl Object for Exponent {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

fn with_exponent(value: f64) -> Option<String> {
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    if value == 0.0 || (-4..16).contains(&exponent) {
        return None;
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    Some(format!("{digits}e{sign}{:02}", exponent.abs()))
}

/// Whether the text may contain an integer beyond 64 bits. Python keeps those exact; we would round them.
fn has_long_integer(text: &str) -> bool {
    text.split(|it: char| !it.is_ascii_digit()).any(|it| it.len() >= 19)
}

#[derive(Clone, Copy)]
struct JsonReader<'c> {
    /// Set when a number is beyond 64 bits.
    huge: &'c Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for JsonReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonReader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        if value.abs() >= 9.2e18 {
            self.huge.set(true);
        }
        Ok(match with_exponent(value) {
            Some(_) => Value::from_object(Exponent(value)),
            None => Value::from(value),
        })
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::from(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = members.next_key::<String>()? {
            map.push((key, members.next_value_seed(self)?));
        }
        Ok(Value::from_pairs(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(read(text).expect("the test's own JSON").to_string(), expected);
    }

    #[test]
    fn values_print_as_python_prints_them() {
        check(r#"[1e16, 1e-5, 0.5, -1.5e-7, 1e22]"#, "[1e+16, 1e-05, 0.5, -1.5e-07, 1e+22]");
        check(r#"{"b": 1.0, "a": [true, null], "b": 2}"#, "{'b': 2, 'a': [True, None]}");
        check("1e16", "1e+16");
        check("18446744073709551615", "18446744073709551615");
    }

    #[test]
    fn numbers_that_would_be_rounded_are_refused() {
        assert!(read("18446744073709551616").is_err());
        assert!(read("-123456789012345678901234567890").is_err());
        assert!(read("1e300").is_ok());
        assert!(read("[1] 2").is_err());
    }
}
