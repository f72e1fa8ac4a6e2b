//! An empty folder of a test's own, removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Folder(PathBuf);

impl Folder {
    /// Tests run concurrently, even in several processes: the name contains the process id and a number.
    #[expect(clippy::new_without_default, reason = "it creates a folder on disk")]
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("maitre-test-{}-{number}", std::process::id()));
        // A process with the same id may have been killed here before.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Replaces a file in one step: a reader sees the old content or the new.
    pub fn replace(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let (written, path) = (self.write(".new", content), self.0.join(name));
        fs::rename(written, &path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
