//! The environment: one variable for each knob, and `MAITRE_CONFIG`.
//!
//! A variable that begins with `MAITRE_` and names no knob is an error: a misspelt setting must not be ignored silently.
//! An empty variable counts as absent, because templates leave out a value that way.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::{ConfigError, Origin};
use crate::knob::{Assignment, RawValue};
use crate::{SourceValues, knob, near, table};

pub(super) const PREFIX: &str = "MAITRE_";
const CONFIG: &str = "MAITRE_CONFIG";
/// Variables that other commands read, and that may be set where this one runs.
pub const BENCH_KEY: &str = "MAITRE_BENCH_KEY";
pub const CALIBRATE_KEY: &str = "MAITRE_CALIBRATE_KEY";
pub const DOCTOR_KEY: &str = "MAITRE_DOCTOR_KEY";
const OF_OTHER_COMMANDS: [&str; 3] = [BENCH_KEY, CALIBRATE_KEY, DOCTOR_KEY];

#[derive(Default)]
pub(super) struct Environment {
    /// The file that the environment names.
    pub(super) file: Option<PathBuf>,
    pub(super) found: SourceValues,
}

pub(super) fn read<T: Into<OsString>>(variables: impl IntoIterator<Item = (T, T)>) -> Environment {
    let mut environment = Environment::default();
    for (name, value) in variables {
        // A name that is not text is not one of ours.
        let (Ok(name), value) = (name.into().into_string(), value.into()) else { continue };
        let is_ours = name.starts_with(PREFIX) && !OF_OTHER_COMMANDS.contains(&name.as_str());
        if !is_ours || value.is_empty() || is_service_link(&name) {
            continue;
        }
        if name == CONFIG {
            environment.file = Some(PathBuf::from(value));
            continue;
        }
        match assignment(name, value) {
            Ok(given) => environment.found.given.push(given),
            Err(error) => environment.found.errors.push(error),
        }
    }
    environment
}

fn assignment(name: String, value: OsString) -> Result<Assignment, ConfigError> {
    let origin = Origin::Variable(name.clone());
    let Some(knob) = table::all().find(|knob| knob.variable() == name) else {
        let mut known: Vec<String> = table::all().map(|knob| knob.variable()).collect();
        known.push(CONFIG.to_owned());
        let hint = match near::RENAMED.iter().find(|it| knob::variable(it.0) == name) {
            Some((_, new)) => near::now_called(&knob::variable(new)),
            None => near::hint(&name, &known, &[]),
        };
        let what = format!("no such variable; {hint}");
        return Err(ConfigError { origin, key: None, what });
    };
    match value.into_string() {
        Ok(text) => Ok(Assignment { knob, value: RawValue::One(text), origin }),
        Err(_) => Err(ConfigError { origin, key: None, what: "is not UTF-8".to_owned() }),
    }
}

/// Whether Kubernetes made this variable to point at a service whose name begins with `maitre`:
/// `MAITRE_SERVICE_HOST`, `MAITRE_PORT`, `MAITRE_ADMIN_PORT_8081_TCP_ADDR` and their like. It does so in
/// every container of the namespace, so these are not settings.
fn is_service_link(name: &str) -> bool {
    let is_number = |rest: &str| rest.starts_with(|it: char| it.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.split("_PORT_").skip(1).any(is_number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn variables_of_kubernetes_services_are_ignored() {
        let added = [
            "MAITRE_SERVICE_HOST",
            "MAITRE_SERVICE_PORT",
            "MAITRE_SERVICE_PORT_HTTP",
            "MAITRE_PORT",
            "MAITRE_PORT_8080_TCP",
            "MAITRE_PORT_8080_TCP_PROTO",
            "MAITRE_ADMIN_PORT_8081_TCP_ADDR",
        ];
        assert!(added.iter().all(|name| is_service_link(name)));
    }

    #[test]
    fn only_our_own_variables_must_be_text() {
        let odd = OsString::from_vec(vec![0xff]);
        let text = OsString::from("MAITRE_THREADS");
        let found = read([(odd.clone(), odd.clone()), ("PATH".into(), odd.clone()), (text, odd)]).found;
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        assert_eq!((errors.join("\n").as_str(), found.given.len()), ("MAITRE_THREADS: is not UTF-8", 0));
    }

    #[test]
    fn the_variable_of_another_command_is_ignored() {
        let found = read([(BENCH_KEY, "secret")]).found;
        assert!(found.errors.is_empty() && found.given.is_empty());
    }

    #[test]
    fn no_knob_looks_like_a_service() {
        assert!(table::all().all(|knob| !is_service_link(&knob.variable())));
    }
}
