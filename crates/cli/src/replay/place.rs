//! Where a report goes: a file that is either the old one or the whole new one.
//!
//! The place is looked at before the runs, which may take minutes, and written after them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub(super) struct Place {
    /// As it was asked for.
    asked: PathBuf,
    /// With links followed, so that a link stays one.
    path: PathBuf,
}

impl Place {
    pub(super) fn new(asked: &Path) -> anyhow::Result<Place> {
        let path = asked.canonicalize().unwrap_or_else(|_| asked.to_owned());
        // Never put a file in the place of a device such as /dev/stdout.
        anyhow::ensure!(!path.exists() || path.is_file(), "--html {}: not a file", asked.display());
        anyhow::ensure!(path.file_name().is_some(), "--html {}: not the name of a file", asked.display());
        anyhow::ensure!(folder(&path).is_dir(), "--html {}: its folder does not exist", asked.display());
        Ok(Place { asked: asked.to_owned(), path })
    }

    /// Writes beside it first, then renames.
    pub(super) fn put(&self, text: &str) -> anyhow::Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let beside = folder(&self.path).join(format!(".{name}.{}", std::process::id()));
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written.with_context(|| format!("--html {}", self.asked.display()))
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
