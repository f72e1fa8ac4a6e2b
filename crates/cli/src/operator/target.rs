//! Which router, and its key: from flags, the page's URL, the environment, or the file of a router on this machine.
//!
//! Anyone who can list processes sees a key on the command line. So it can be given in other ways too, and no
//! message repeats it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgMatches, value_parser};
use http::HeaderValue;
use maitre_net::address::Address;
use maitre_net::dial::Dialer;

use maitre_console::{dial, flag};

use crate::key_file::{self, KEY_BYTES_MAX};

/// The same variables from which `maitre serve` reads its own key.
pub(super) const KEY_VARIABLE: &str = "MAITRE_ADMIN_KEY";
const FILE_VARIABLE: &str = "MAITRE_ADMIN_KEY_FILE";

const URL: &str = "http://127.0.0.1:8081";

/// The address and the credentials.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    /// The value of the `authorization` header. None if no key was found: only the router knows whether it needs one.
    pub(crate) key: Option<HeaderValue>,
    /// A client that can connect to the address.
    pub(crate) dialer: Arc<Dialer>,
}

/// Where a key is looked for that no flag names.
#[derive(Default)]
pub(crate) struct KeyPlaces {
    variable: Option<OsString>,
    file_variable: Option<OsString>,
    /// Of the key files of routers on this machine.
    folders: Vec<PathBuf>,
}

impl KeyPlaces {
    pub(crate) fn from_environment() -> KeyPlaces {
        KeyPlaces {
            variable: std::env::var_os(KEY_VARIABLE),
            file_variable: std::env::var_os(FILE_VARIABLE),
            folders: key_file::folders(|name| std::env::var_os(name)),
        }
    }

    /// The key and where it was; none if there is none.
    fn find(&self, address: &Address) -> anyhow::Result<Option<(String, String)>> {
        let given = |it: &Option<OsString>| it.clone().filter(|it| !it.is_empty());
        if let Some(key) = given(&self.variable) {
            // Bytes that are not text are not a key; a line break is refused below.
            return Ok(Some((key.into_string().unwrap_or("\n".to_owned()), KEY_VARIABLE.to_owned())));
        }
        if let Some(path) = given(&self.file_variable) {
            let place = format!("{FILE_VARIABLE}={}", path.display());
            return Ok(Some((in_file(Path::new(&path)).context(place.clone())?, place)));
        }
        let host = address.host();
        let is_here = host == "localhost" || host.parse().is_ok_and(|it: IpAddr| it.is_loopback());
        let found = if is_here { key_file::find(&self.folders, address.port()) } else { None };
        Ok(found.map(|(path, key)| (key, path.display().to_string())))
    }
}

pub(crate) fn args() -> [Arg; 4] {
    let text =
        |name: &'static str, value: &'static str, help: &'static str| flag::value(name, value).help(help);
    [
        text("url", "URL", "The router's admin address, or the page's with its key").default_value(URL),
        text("key", "KEY", "The admin key; other users may see it in the list of processes")
            .conflicts_with("key-file"),
        text("key-file", "FILE", "A file that holds it [default: the variables MAITRE_ADMIN_KEY and MAITRE_ADMIN_KEY_FILE, then the file that a router on this machine wrote]")
            .value_parser(value_parser!(PathBuf)),
        dial::arg(),
    ]
}

impl Target {
    pub(crate) fn read(matches: &ArgMatches, places: &KeyPlaces) -> anyhow::Result<Target> {
        let url: &String = matches.get_one("url").context("url")?;
        let (place, fragment) = url.split_once('#').unwrap_or((url, ""));
        let address: Address = place.parse().context("--url")?;
        let ca = matches.get_one::<PathBuf>("ca");
        let dialer = dial::dialer(ca.map(PathBuf::as_path), [&address])?;
        let in_url = fragment.split('&').find_map(|it| it.strip_prefix("key=")).filter(|it| !it.is_empty());
        let found = if let Some(key) = matches.get_one::<String>("key") {
            Some((key.clone(), "--key".to_owned()))
        } else if let Some(path) = matches.get_one::<PathBuf>("key-file") {
            let place = format!("--key-file {}", path.display());
            Some((in_file(path).context(place.clone())?, place))
        } else if let Some(key) = in_url {
            Some((key.to_owned(), "--url".to_owned()))
        } else {
            places.find(&address)?
        };
        let key = found.map(|(key, from)| header(&key).with_context(|| from)).transpose()?;
        Ok(Target { address, key, dialer })
    }
}

fn in_file(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|it| it.take(KEY_BYTES_MAX + 1).read_to_string(&mut text));
    read?;
    ensure!(
        text.len() as u64 <= KEY_BYTES_MAX,
        "longer than {KEY_BYTES_MAX} bytes, so it holds more than a key"
    );
    Ok(text.trim().to_owned())
}

fn header(key: &str) -> anyhow::Result<HeaderValue> {
    ensure!(!key.is_empty(), "there is no key in it");
    ensure!(
        !key.starts_with("sha256:"),
        "this is the hash of a key, which opens nothing; write the key itself"
    );
    // The key itself is not repeated: it would end up in a log.
    let value = HeaderValue::try_from(format!("Bearer {key}"));
    let mut value =
        value.ok().context("not a key that a header can carry; write it in one line of plain text")?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use clap::Command;
    use maitre_testkit::folder::Folder;

    use super::*;
    use crate::key_file::KeyFile;

    fn read(args: &[&str], variable: &str) -> anyhow::Result<Target> {
        let command = Command::new("x").args(super::args());
        let matches = command.try_get_matches_from([&["x"], args].concat())?;
        Target::read(&matches, &KeyPlaces { variable: Some(variable.into()), ..KeyPlaces::default() })
    }

    #[track_caller]
    fn check(args: &[&str], variable: &str, expected: Result<(&str, &str), &str>) {
        match (read(args, variable), expected) {
            (Ok(target), Ok((url, key))) => {
                let given = target.key.as_ref().map_or("", |it| it.to_str().unwrap());
                assert_eq!((target.address.to_string().as_str(), given), (url, key));
                assert!(!format!("{target:?}").contains("s3cret"), "a key in somebody's log: {target:?}");
            }
            (Err(error), Err(part)) => {
                let said = format!("{error:#}");
                assert!(said.contains(part), "{said}");
                assert!(!said.contains("s3cret"), "{said}");
            }
            (actual, expected) => panic!("{args:?}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn the_most_specific_source_of_a_key_wins() {
        const HERE: &str = "http://127.0.0.1:8081";
        let page = "http://10.0.0.1:9/#key=s3cret-url&decision=7";
        check(&[], "s3cret-env", Ok((HERE, "Bearer s3cret-env")));
        check(&["--url", page], "s3cret-env", Ok(("http://10.0.0.1:9", "Bearer s3cret-url")));
        check(&["--url", page, "--key", "s3cret"], "", Ok(("http://10.0.0.1:9", "Bearer s3cret")));
        check(&["--url", "http://a:1/#decision=7"], "k", Ok(("http://a:1", "Bearer k")));
        check(&["--url", "localhost:8081"], "k", Ok(("http://localhost:8081", "Bearer k")));
        check(&["--url", "https://a/#key=s3cret"], "", Ok(("https://a:443", "Bearer s3cret")));
        // The router may need none, or there may be no router.
        check(&["--url", "http://a:1/#key="], "", Ok(("http://a:1", "")));
        check(&[], "", Ok((HERE, "")));
    }

    #[test]
    fn the_key_of_a_router_on_this_machine_is_found() {
        let folder = Folder::new();
        let folders = vec![folder.path().join("maitre")];
        let _kept = KeyFile::write(&folders, 8081, "s3cret-made").unwrap();
        let file = folder.write("given", "s3cret-given");
        let places = |file: Option<&Path>| KeyPlaces {
            variable: None,
            file_variable: file.map(Into::into),
            folders: folders.clone(),
        };
        let read = |args: &[&str], places: &KeyPlaces| {
            let command = Command::new("x").args(super::args());
            Target::read(&command.try_get_matches_from([&["x"], args].concat()).unwrap(), places)
        };
        let key = |args: &[&str], places: &KeyPlaces| {
            read(args, places).unwrap().key.map_or(String::new(), |it| it.to_str().unwrap().to_owned())
        };
        assert_eq!(key(&[], &places(None)), "Bearer s3cret-made");
        assert_eq!(key(&["--url", "localhost:8081"], &places(None)), "Bearer s3cret-made");
        assert_eq!(key(&[], &places(Some(&file))), "Bearer s3cret-given");
        assert_eq!(key(&["--key", "k"], &places(Some(&file))), "Bearer k");
        // Another port is another router, and another machine must not get the key of this one.
        for url in ["localhost:8082", "http://10.0.0.1:8081", "http://router:8081"] {
            assert_eq!(key(&["--url", url], &places(None)), "", "{url}");
        }
    }

    #[test]
    fn a_file_holds_one_key() {
        let folder = std::env::temp_dir().join(format!("maitre-target-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.join(name);
            std::fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let url = "http://127.0.0.1:8081";
        check(&["--key-file", &file("good", " s3cret-file\n")], "other", Ok((url, "Bearer s3cret-file")));
        check(&["--key-file", &file("empty", "\n")], "other", Err("there is no key in it"));
        check(&["--key-file", &file("two", "s3cret\ns3cret")], "", Err("not a key that a header can carry"));
        check(&["--key-file", &file("long", &"s3cret".repeat(1_000))], "", Err("longer than 4096 bytes"));
        check(&["--key-file", "/nonexistent/key"], "", Err("--key-file /nonexistent/key: No such file"));
        check(&["--key-file", "x", "--key", "s3cret"], "", Err("cannot be used with"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn errors_do_not_contain_the_key() {
        check(&["--key", "s3cret\nx"], "", Err("--key: not a key that a header can carry"));
        check(&["--key", "sha256:s3cret"], "", Err("the hash of a key"));
        check(&["--url", "ftp://a/#key=s3cret"], "", Err("scheme ftp is not supported; use http or https"));
        check(&["--url", "http://a/#key=s3cret", "--ca", "x"], "", Err("begins with https://"));
        check(&["--url", "https://a/#key=s3cret", "--ca", "absent"], "", Err("--ca absent: No such file"));
        check(&["--url", "http://a/b#key=s3cret"], "", Err("has a path"));
        check(&["--url", "127.0.0.1#key=s3cret"], "", Err("--url"));
    }
}
