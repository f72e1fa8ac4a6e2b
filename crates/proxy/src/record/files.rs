//! The file that is being written, and the rotated files before it.
//!
//! Each file is a trace of its own, with its own time zero. The previous file is FILE.1, the one before that FILE.2. A
//! FILE of an earlier process is rotated at the start like a full one: to append to it, its clock would have to be
//! guessed. A file that is not a record is left alone, and so is one that another process writes. Something that is not
//! a file, such as a pipe, is written to and never rotated.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use maitre_base::Instant;

use super::LineBatch;
use super::encode::LINE_START;
use crate::settings;

/// A trace spans a year at most, or `maitre replay` takes its timestamps for times of day.
const SPAN_MAX: Duration = Duration::from_secs(365 * 86_400);

pub(super) struct RecordFiles {
    path: PathBuf,
    bytes_max: u64,
    count: usize,
    began: Instant,
    /// None if it could not be opened: the next write tries again.
    file: Option<File>,
    bytes: u64,
    /// Whether it is a regular file, which can be rotated and truncated.
    rotates: bool,
}

impl RecordFiles {
    pub(super) fn open(
        path: PathBuf,
        settings: &settings::RecordSettings,
        now: Instant,
    ) -> io::Result<RecordFiles> {
        let bytes_max = settings.bytes_max as u64;
        let count = settings.files.max(1);
        let mut files =
            RecordFiles { path, bytes_max, count, began: now, file: None, bytes: 0, rotates: true };
        files.reopen()?;
        Ok(files)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The zero of this file's timestamps.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Whether the line of a request that arrived `at` belongs into the next file, once the batch is in this one. The
    /// first line of a file always fits.
    pub(super) fn is_full(&self, batch: &LineBatch, line: &str, at: Instant) -> bool {
        let before = self.bytes + batch.text.len() as u64;
        let is_large = before > 0 && before + line.len() as u64 > self.bytes_max;
        self.rotates && self.file.is_some() && (is_large || at.since(self.began) > SPAN_MAX)
    }

    /// Rotates this file and begins the next. If that fails nothing is written until a later write succeeds in it: this
    /// file has reached its size limit.
    pub(super) fn begin_next(&mut self, now: Instant) -> io::Result<()> {
        self.began = now;
        self.file = None;
        self.reopen()
    }

    /// Writes whole lines: all of them, or on failure none.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.reopen()?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let written = file.write_all(lines);
        match written {
            Ok(()) => self.bytes += lines.len() as u64,
            // Half a line would make the file unreadable.
            Err(_) if self.rotates => drop(file.set_len(self.bytes)),
            Err(_) => {}
        }
        written
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.rotates = fs::metadata(&self.path).map_or(true, |it| it.is_file());
        if self.rotates && has_lines(&self.path)? {
            self.rotate()?;
        }
        let file = create(&self.path)?;
        lock(&file)?;
        if self.rotates {
            make_private(&file);
        }
        self.bytes = 0;
        self.file = Some(file);
        Ok(())
    }

    fn rotate(&self) -> io::Result<()> {
        for number in 1..self.count {
            has_lines(&self.numbered(number))?;
        }
        for number in (1..self.count).rev() {
            match fs::rename(self.numbered(number - 1), self.numbered(number)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match self.count {
            1 => fs::remove_file(&self.path),
            _ => Ok(()),
        }
    }

    /// Number zero is the file that is being written.
    fn numbered(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.into()
    }
}

/// Whether the file has any lines. A file that is not a record is an error: it must not be rotated and finally deleted.
fn has_lines(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    lock(&file)?;
    let mut beginning = Vec::new();
    file.take(LINE_START.len() as u64).read_to_end(&mut beginning)?;
    match beginning.as_slice() {
        b"" => Ok(false),
        found if found == LINE_START.as_bytes() => Ok(true),
        _ => {
            let name = path.file_name().unwrap_or_default().display();
            let error = format!("{name} is not a record");
            Err(io::Error::new(ErrorKind::AlreadyExists, error))
        }
    }
}

/// Readable by the owner only: it holds no text, but when each tenant sent how much.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// An empty file that existed before may have any mode. Some file systems have no modes.
fn make_private(file: &File) {
    #[cfg(unix)]
    drop(file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)));
}

/// Two processes that rotate the same file would lose both records.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(ErrorKind::ResourceBusy, "another process is writing it"))
        }
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}
