//! The admin key of a router that made its own, in a file that only its user can read.
//!
//! `maitre serve` without `admin_key` makes a key for the run and writes it here; `top`, `explain` and `key --admin` on the
//! same machine, by the same user, find it by the port of the admin listener. The file is removed when the router ends.
//!
//! Another user may have made the folder in order to read what is written there. So a key is written only into a folder of
//! our own that nobody else can write to.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Keys are short; a longer file is something else.
pub(crate) const KEY_BYTES_MAX: u64 = 4_096;

/// The folder of the packaged service and of the container image.
const SERVICE_FOLDER: &str = "/run/maitre";

/// Where a key may be, best first: systemd's folder for the service, that of the login session, the user's state, the
/// temporary files.
pub(crate) fn folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let variable = |name: &str| variable(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let folders = [
        variable("RUNTIME_DIRECTORY"),
        variable("XDG_RUNTIME_DIR").map(|it| it.join("maitre")),
        variable("HOME").map(|it| it.join(".local/state/maitre")),
        Some(std::env::temp_dir().join("maitre")),
    ];
    folders.into_iter().flatten().collect()
}

fn path(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!("admin-{port}.key"))
}

/// A key that is in a file until this is dropped.
#[derive(Debug)]
pub(crate) struct KeyFile(PathBuf);

impl KeyFile {
    /// Writes the key into the first of these folders that allows it; or returns why the last did not.
    pub(crate) fn write(folders: &[PathBuf], port: u16, key: &str) -> io::Result<KeyFile> {
        let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "there is no folder for it"));
        for folder in folders {
            result = write(folder, port, key).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path(folder, port).display()))
            });
            if result.is_ok() {
                break;
            }
        }
        result
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn write(folder: &Path, port: u16, key: &str) -> io::Result<KeyFile> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let path = path(folder, port);
    // Of a router that was killed.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Only a new file: not one that somebody holds open, nor a link to another place.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = KeyFile(path);
    let (made, around) = (file.metadata()?, fs::symlink_metadata(folder)?);
    if !around.is_dir() || around.uid() != made.uid() || around.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder is open to other users"));
    }
    writeln!(file, "{key}")?;
    Ok(written)
}

/// The key of the router on this machine whose admin listener has this port.
pub(crate) fn find(folders: &[PathBuf], port: u16) -> Option<(PathBuf, String)> {
    let service = Path::new(SERVICE_FOLDER);
    folders.iter().map(PathBuf::as_path).chain([service]).find_map(|folder| {
        let path = path(folder, port);
        // A pipe would never end.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let mut text = String::new();
        File::open(&path).ok()?.take(KEY_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some((path, text.trim().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use maitre_testkit::folder::Folder;

    use super::*;

    #[test]
    fn a_key_is_found_by_its_port_until_the_router_ends() {
        let folder = Folder::new();
        let folders = [folder.path().join("maitre")];
        let kept = KeyFile::write(&folders, 8081, "s3cret").unwrap();
        assert_eq!(fs::metadata(kept.path()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&folders[0]).unwrap().mode() & 0o777, 0o700);
        assert_eq!(find(&folders, 8081), Some((kept.path().to_owned(), "s3cret".to_owned())));
        assert_eq!(find(&folders, 8082), None);
        drop(kept);
        assert_eq!(find(&folders, 8081), None);
    }

    #[test]
    fn a_new_key_replaces_that_of_a_router_that_was_killed() {
        let folder = Folder::new();
        let folders = [folder.path().join("maitre")];
        std::mem::forget(KeyFile::write(&folders, 1, "old").unwrap());
        let kept = KeyFile::write(&folders, 1, "new").unwrap();
        assert_eq!(find(&folders, 1).unwrap().1, "new");
        drop(kept);
    }

    #[test]
    fn a_folder_that_others_can_write_to_gets_no_key() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = Folder::new();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = KeyFile::write(std::slice::from_ref(&open), 1, "s3cret").unwrap_err().to_string();
        assert!(error.contains("open to other users") && !error.contains("s3cret"), "{error}");
        assert_eq!(fs::read_dir(&open).unwrap().count(), 0, "nothing is left there");
        // A link could lead into a folder of another user.
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(KeyFile::write(&[link], 1, "s3cret").is_err());
        // The next one will do.
        let kept = KeyFile::write(&[open, folder.path().join("own")], 1, "s3cret").unwrap();
        assert!(kept.path().starts_with(folder.path().join("own")));
    }

    #[test]
    fn the_folders_follow_from_the_environment() {
        let variable = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/7".into());
        let folders = folders(variable);
        assert_eq!(folders[0], Path::new("/run/user/7/maitre"));
        assert_eq!(folders.len(), 2);
    }
}
