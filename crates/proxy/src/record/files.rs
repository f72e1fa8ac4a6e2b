//! The file that is being written, and those before it.
//!
//! Each file is a trace of its own, with its own zero. The one before is FILE.1, the one before that FILE.2.
//! What an earlier process left in FILE is moved on at the start like a file that is full: to go on in it,
//! its clock would have to be guessed. A file that is not ours is left alone, and so is one that another
//! process writes. What is no file at all, such as a pipe, is written to and never moved.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use maitre_base::Instant;

use super::Batch;
use super::line::BEGINNING;
use crate::settings;

/// A trace spans a year at the most, or `maitre replay` takes its stamps for times of day.
const SPAN_MAX: Duration = Duration::from_secs(365 * 86_400);

pub(super) struct Files {
    path: PathBuf,
    bytes_max: u64,
    count: usize,
    began: Instant,
    /// None after it could not be opened: the next write tries again.
    file: Option<File>,
    bytes: u64,
    /// Whether it is a file, to be moved and cut.
    moves: bool,
}

impl Files {
    pub(super) fn open(path: PathBuf, settings: &settings::Record, now: Instant) -> io::Result<Files> {
        let bytes_max = settings.bytes_max as u64;
        let count = settings.files.max(1);
        let mut files = Files { path, bytes_max, count, began: now, file: None, bytes: 0, moves: true };
        files.reopen()?;
        Ok(files)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The zero of this file's stamps.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Whether the line of a request that came at `at` belongs into the next file, once the batch is in this
    /// one. A line that comes first always fits.
    pub(super) fn is_full(&self, batch: &Batch, line: &str, at: Instant) -> bool {
        let before = self.bytes + batch.text.len() as u64;
        let is_large = before > 0 && before + line.len() as u64 > self.bytes_max;
        self.moves && self.file.is_some() && (is_large || at.since(self.began) > SPAN_MAX)
    }

    /// Moves this file on and begins the next. On failure nothing is written until a later write succeeds in
    /// that: this file has grown as large as it may.
    pub(super) fn begin_next(&mut self, now: Instant) -> io::Result<()> {
        self.began = now;
        self.file = None;
        self.reopen()
    }

    /// Writes whole lines. On failure none of them is there.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.reopen()?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let written = file.write_all(lines);
        match written {
            Ok(()) => self.bytes += lines.len() as u64,
            // Half a line would make the whole file unreadable.
            Err(_) if self.moves => drop(file.set_len(self.bytes)),
            Err(_) => {}
        }
        written
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.moves = fs::metadata(&self.path).map_or(true, |it| it.is_file());
        if self.moves && holds_lines(&self.path)? {
            self.move_on()?;
        }
        let file = create(&self.path)?;
        lock(&file)?;
        if self.moves {
            make_private(&file);
        }
        self.bytes = 0;
        self.file = Some(file);
        Ok(())
    }

    fn move_on(&self) -> io::Result<()> {
        for number in 1..self.count {
            holds_lines(&self.numbered(number))?;
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

    /// Zero is the one that is being written.
    fn numbered(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.into()
    }
}

/// Whether there is anything in the file. What is not ours must not be moved, and in the end deleted.
fn holds_lines(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    lock(&file)?;
    let mut beginning = Vec::new();
    file.take(BEGINNING.len() as u64).read_to_end(&mut beginning)?;
    match beginning.as_slice() {
        b"" => Ok(false),
        found if found == BEGINNING.as_bytes() => Ok(true),
        _ => {
            let name = path.file_name().unwrap_or_default().display();
            let what = format!("{name} holds something else than a record");
            Err(io::Error::new(ErrorKind::AlreadyExists, what))
        }
    }
}

/// For our eyes only: there is no text in it, but who spoke when, and how much.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// A file that was there, empty, has whatever mode it was given. Some file systems know no modes.
fn make_private(file: &File) {
    #[cfg(unix)]
    drop(file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)));
}

/// Two processes that move one file from under each other would lose both records.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(ErrorKind::ResourceBusy, "another process writes it"))
        }
        // Some file systems know no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}
