//! The file of a report, replaced atomically: it holds either the old report or the whole new one.
//!
//! The path is checked before the runs, which may take minutes, and written after them.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub(super) struct ReportFile {
    /// The path as given.
    asked: PathBuf,
    /// With links resolved, so that a link stays a link.
    path: PathBuf,
}

impl ReportFile {
    pub(super) fn new(asked: &Path) -> anyhow::Result<ReportFile> {
        let path = asked.canonicalize().unwrap_or_else(|_| asked.to_owned());
        // Never replace a device such as /dev/stdout, nor the file that it leads to.
        let is_stream = path != asked && (asked.starts_with("/dev") || asked.starts_with("/proc"));
        let is_free = !path.exists() || path.is_file();
        anyhow::ensure!(is_free && !is_stream, "--html {}: not a file", asked.display());
        anyhow::ensure!(path.file_name().is_some(), "--html {}: not the name of a file", asked.display());
        anyhow::ensure!(folder(&path).is_dir(), "--html {}: its folder does not exist", asked.display());
        Ok(ReportFile { asked: asked.to_owned(), path })
    }

    /// Writes a temporary file beside it, then renames it.
    pub(super) fn write(&self, text: &str) -> anyhow::Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let beside = folder(&self.path).join(format!(".{name}.{}", std::process::id()));
        // Removes what a killed run left there; `create_new` follows no link.
        let _ = std::fs::remove_file(&beside);
        let written = File::create_new(&beside).and_then(|mut it| it.write_all(text.as_bytes()));
        let written = written.and_then(|()| std::fs::rename(&beside, &self.path));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_stream_is_not_replaced_whatever_it_leads_to() {
        let file = std::env::temp_dir().join(format!("maitre-place-{}", std::process::id()));
        let open = File::create(&file).unwrap();
        let stream = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
        assert!(ReportFile::new(Path::new(&stream)).is_err());
        ReportFile::new(&file).unwrap().write("x").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
        std::fs::remove_file(&file).unwrap();
    }
}
