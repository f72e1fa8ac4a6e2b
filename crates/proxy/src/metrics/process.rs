//! Memory, CPU time and file descriptors of this process, under the names that every exporter uses; and the log lines that
//! the program dropped.
//!
//! Read from `/proc/self` at each scrape, before the brain is locked: counting thousands of descriptors takes a while. On
//! other systems than Linux, and where a file cannot be read, the numbers are absent.

use std::fmt;
use std::fs;
use std::sync::OnceLock;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Linux reports the CPU time of processes in ticks of this length, on every architecture that we are built for.
const TICKS_PER_SECOND: f64 = 100.0;

/// The process as of the last `refresh`.
#[derive(Default)]
pub(crate) struct Process {
    stats: Mutex<ProcessStats>,
    /// Asks the program that writes the log.
    log_lines_dropped: OnceLock<Box<ReadCount>>,
}

type ReadCount = dyn Fn() -> u64 + Send + Sync;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessStats {
    open_files: Option<f64>,
    open_files_max: Option<f64>,
    resident_bytes: Option<f64>,
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    log_lines_dropped: u64,
}

impl Process {
    /// Reads the number of log lines that were dropped, from now on.
    pub(crate) fn read_log_drops(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        // A router has one program all its life.
        let _ = self.log_lines_dropped.set(Box::new(read));
    }

    pub(crate) fn refresh(&self) {
        let read = |path| fs::read_to_string(path).ok();
        let stat = read("/proc/self/stat");
        let stats = ProcessStats {
            open_files: open_files(),
            open_files_max: read("/proc/self/limits").and_then(|it| open_files_max(&it)),
            resident_bytes: read("/proc/self/status").and_then(|it| resident_bytes(&it)),
            cpu_seconds: stat.as_deref().and_then(cpu_seconds),
            start_seconds: stat.zip(read("/proc/stat")).and_then(|it| start_seconds(&it.0, &it.1)),
            log_lines_dropped: self.log_lines_dropped.get().map_or(0, |read| read()),
        };
        *self.stats.lock() = stats;
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("stats", &*self.stats.lock()).finish_non_exhaustive()
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats = *self.stats.lock();
        let gauges = [
            ("process_open_fds", "File descriptors in use", stats.open_files),
            ("process_max_fds", "Limit of file descriptors", stats.open_files_max),
            ("process_resident_memory_bytes", "Resident memory", stats.resident_bytes),
            ("process_start_time_seconds", "Start time, in seconds since 1970", stats.start_seconds),
        ];
        for (name, help, value) in gauges {
            let Some(gauge) = value.map(ConstGauge::new) else { continue };
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        if let Some(counter) = stats.cpu_seconds.map(ConstCounter::new) {
            // The encoder adds the suffix of counters.
            let (name, help) = ("process_cpu_seconds", "CPU time");
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let dropped = ConstCounter::new(stats.log_lines_dropped);
        let (name, help) =
            ("maitre_log_lines_dropped", "Log lines dropped because standard error was not read");
        dropped.encode(encoder.encode_descriptor(name, help, None, dropped.metric_type())?)?;
        Ok(())
    }
}

/// Linux reports the count as the size of the folder. Before 6.2 the size is zero, and the entries are counted.
fn open_files() -> Option<f64> {
    const FOLDER: &str = "/proc/self/fd";
    match fs::metadata(FOLDER).ok()?.len() {
        // One of them is the open folder itself.
        0 => Some(fs::read_dir(FOLDER).ok()?.count().saturating_sub(1) as f64),
        count => Some(count as f64),
    }
}

/// The soft limit.
fn open_files_max(limits: &str) -> Option<f64> {
    let row = limits.lines().find_map(|it| it.strip_prefix("Max open files"))?;
    match row.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

fn resident_bytes(status: &str) -> Option<f64> {
    let row = status.lines().find_map(|it| it.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = row.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024.0)
}

/// A field by its number in proc(5). The second field is the program's name, which may contain anything: fields are
/// counted from its end.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS_PER_SECOND)
}

fn start_seconds(stat: &str, machine: &str) -> Option<f64> {
    let boot = machine.lines().find_map(|it| it.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + field(stat, 22)? / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    /// The program's name contains blanks and brackets.
    const STAT: &str = "42 (a) b (c) S 1 42 42 0 -1 4194560 101 0 0 0 250 50 0 0 20 0 9 0 12345 1000 200 18446744073709551615";

    #[test]
    fn numbers_are_found_where_linux_writes_them() {
        assert_eq!(cpu_seconds(STAT), Some(3.0));
        assert_eq!(start_seconds(STAT, "cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_123.45));
        assert_eq!(resident_bytes("VmHWM:\t  99 kB\nVmRSS:\t    12 kB\n"), Some(12_288.0));
        assert_eq!(
            open_files_max("Max open files            1024                 524288  files"),
            Some(1_024.0)
        );
        assert_eq!(
            open_files_max("Max open files  unlimited unlimited files").map(|it| it as u64),
            Some(u64::MAX)
        );
        for odd in ["", "42 (a", "42 (a) S 1", "42 (a) S x x x x x x x x x x x x x x x x x x x x x x"] {
            assert_eq!(
                (cpu_seconds(odd), start_seconds(odd, "btime 1"), resident_bytes(odd)),
                (None, None, None)
            );
        }
    }

    #[test]
    fn unknown_numbers_are_absent() {
        let mut registry = Registry::default();
        let stats = ProcessStats {
            open_files_max: Some(1_024.0),
            cpu_seconds: Some(2.5),
            log_lines_dropped: 3,
            ..ProcessStats::default()
        };
        registry.register_collector(Box::new(Process { stats: Mutex::new(stats), ..Process::default() }));
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        let samples: Vec<&str> = page.lines().filter(|it| !it.starts_with('#')).collect();
        assert_eq!(
            samples,
            ["process_max_fds 1024.0", "process_cpu_seconds_total 2.5", "maitre_log_lines_dropped_total 3"]
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_measured() {
        let process = Process::default();
        process.refresh();
        let stats = *process.stats.lock();
        let (open, most) = (stats.open_files.unwrap(), stats.open_files_max.unwrap());
        // Standard input, output and error.
        assert!(open >= 3.0 && open <= most, "{stats:?}");
        assert!(stats.resident_bytes.unwrap() > 100_000.0 && stats.cpu_seconds.is_some(), "{stats:?}");
        assert!(stats.start_seconds.unwrap() > 1_600_000_000.0, "{stats:?}");
        let more: Vec<_> = (0..20).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        process.refresh();
        assert!(process.stats.lock().open_files.unwrap() >= 23.0);
        drop(more);
    }
}
