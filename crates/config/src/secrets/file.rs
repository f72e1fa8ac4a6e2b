//! Reads a file of one or more secrets, up to a limit, and checks its permissions.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Ten thousand keys with all options fit; a log file given by mistake does not.
const BYTES_MAX: u64 = 4 << 20;

pub(super) struct SecretFile {
    pub(super) text: String,
    /// Permissions that are too wide.
    pub(super) warning: Option<String>,
}

/// No error repeats what the file holds.
pub(super) fn read(path: &Path) -> Result<SecretFile, String> {
    let shown = path.display();
    let cannot = |error| format!("{shown} cannot be read: {error}");
    let file = File::open(path).map_err(cannot)?;
    let warning = warning(&file).map(|what| format!("{shown} {what}"));
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("{shown} is larger than {} KiB", BYTES_MAX >> 10));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8"))?;
    if text.trim().is_empty() {
        return Err(format!("{shown} is empty"));
    }
    Ok(SecretFile { text, warning })
}

#[cfg(unix)]
fn warning(file: &File) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;
    /// Everything except read and write for the owner and read for the group.
    const TOO_WIDE: u32 = 0o037;
    let mode = file.metadata().ok()?.permissions().mode();
    (mode & TOO_WIDE != 0).then(|| {
        format!("is open to others than its owner and group (mode {:03o}); chmod 640 or 600", mode & 0o777)
    })
}

#[cfg(not(unix))]
fn warning(_: &File) -> Option<String> {
    None
}
