//! Lines and files alone. `data_plane` tests what requests write into them.

use std::fs;

use maitre_index::prefix::{PrefixHash, Unit};

use super::encode::LINE_START;
use super::*;
use crate::settings;

/// A folder of its own, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("maitre-files-{}-{name}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("trace")
    }

    fn open(&self, bytes_max: usize, files: usize) -> io::Result<RecordFiles> {
        let settings = settings::RecordSettings { file: None, bytes_max, files };
        RecordFiles::open(self.file(), &settings, Instant::ZERO)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().map(Result::unwrap);
        let mut names: Vec<String> = entries.map(|it| it.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn entry(unit: Unit, units: u64, block: u32) -> RecordEntry {
    let chain = (1..=units / u64::from(block)).map(PrefixHash).collect();
    let prompt = PromptChain { unit, units, block, chain, chunks: None };
    RecordEntry {
        prompt: RecordedPrompt { model: "m".into(), prompt },
        session: None,
        class: ClassId(1),
        tenant: TenantId(0),
        deadline: None,
        form: Form::Stream,
    }
}

fn encoder() -> LineEncoder {
    LineEncoder::new(&maitre_queue::QueueSettings::default())
}

fn ending(prompt: Option<u64>, output: Option<u64>) -> RecordEnding {
    let usage = Usage { prompt_tokens: prompt, completion_tokens: output, cached_tokens: None };
    RecordEnding { arrived: Instant::from_millis(5), usage: Some(usage), chunks: 7, times: None }
}

fn value(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Checks the lengths of prompt, output and block in a line, and how many blocks have numbers.
#[track_caller]
fn check(entry: &RecordEntry, ending: RecordEnding, expected: (u64, u64, u64, usize)) {
    check_with(&mut encoder(), entry, ending, expected);
}

#[track_caller]
fn check_with(
    encoder: &mut LineEncoder,
    entry: &RecordEntry,
    ending: RecordEnding,
    expected: (u64, u64, u64, usize),
) {
    let line = value(&encoder.line(entry, ending, Instant::ZERO));
    let length = |key: &str| line[key].as_u64().unwrap();
    let numbers = line["hash_ids"].as_array().unwrap().len();
    let found = (length("input_length"), length("output_length"), length("block_size"), numbers);
    assert_eq!(found, expected, "{line}");
}

#[test]
fn blocks_are_about_128_tokens() {
    for (block, expected) in [(1, 128), (16, 128), (48, 96), (64, 128), (128, 128), (256, 256)] {
        let numbers = 10_000 / expected as usize;
        check(&entry(Unit::Tokens, 10_000, block), ending(None, None), (10_000, 7, expected, numbers));
    }
}

#[test]
fn the_engines_count_overrides_ours() {
    check(&entry(Unit::Tokens, 1_000, 16), ending(Some(1_010), Some(50)), (1_010, 50, 128, 7));
    // Never more blocks than the prompt has tokens for: readers reject such a line.
    check(&entry(Unit::Tokens, 1_000, 16), ending(Some(300), Some(50)), (300, 50, 128, 3));
    check(&entry(Unit::Tokens, 0, 16), ending(Some(0), Some(0)), (1, 0, 128, 0));
    check(&entry(Unit::Tokens, 10, 16), ending(Some(u64::MAX), Some(u64::MAX)), (16 << 20, 1 << 20, 128, 0));
}

#[test]
fn a_block_of_words_has_as_many_tokens_in_every_line() {
    let mut encoder = encoder();
    let long = entry(Unit::Words, 2_560, 16);
    // No engine has counted yet; then the prompt is too short to fix the ratio.
    check_with(&mut encoder, &long, ending(None, None), (2_560, 7, 128, 20));
    check_with(&mut encoder, &entry(Unit::Words, 256, 16), ending(Some(300), None), (300, 7, 128, 2));
    check_with(&mut encoder, &long, ending(Some(2_000), None), (2_000, 7, 100, 20));
    // From now on the ratio is fixed: without a count, with a higher one, and with a lower one.
    check_with(&mut encoder, &long, ending(None, None), (2_000, 7, 100, 20));
    check_with(&mut encoder, &long, ending(Some(3_000), None), (3_000, 7, 100, 20));
    check_with(&mut encoder, &long, ending(Some(1_500), None), (1_500, 7, 100, 15));
}

#[test]
fn numbers_depend_on_the_run_and_fit_a_double() {
    let (mut encoder, mut other) = (encoder(), encoder());
    let mut entry = entry(Unit::Tokens, 1_280, 16);
    entry.session = Some(128 / 16);
    let line = |encoder: &mut LineEncoder| value(&encoder.line(&entry, ending(None, None), Instant::ZERO));
    let (first, again, elsewhere) = (line(&mut encoder), line(&mut encoder), line(&mut other));
    assert_eq!(first, again);
    assert_ne!(first["hash_ids"], elsewhere["hash_ids"]);
    assert_ne!(first["session"], first["hash_ids"][0], "one number for two things");
    let numbers = first["hash_ids"].as_array().unwrap();
    assert!(numbers.iter().chain([&first["session"]]).all(|it| it.as_u64().unwrap() < 1 << 53), "{first}");
}

#[test]
fn a_line_has_class_tenant_and_deadline_but_no_name() {
    let mut encoder = encoder();
    let arrived = Instant::from_millis(5);
    for (class, tenant, deadline_ms, expected) in [
        (1, 0, None, (None, false, None)),
        (0, 7, Some(1_505), (Some("interactive"), true, Some(1_500))),
        (2, 0, Some(1), (Some("batch"), false, Some(1))),
        (9, 7, Some(1 << 40), (None, true, Some(86_400_000))),
    ] {
        let mut entry = entry(Unit::Tokens, 256, 16);
        (entry.class, entry.tenant) = (ClassId(class), TenantId(tenant));
        entry.deadline = deadline_ms.map(Instant::from_millis);
        let line =
            value(&encoder.line(&entry, RecordEnding { arrived, ..ending(None, None) }, Instant::ZERO));
        let found = (line["class"].as_str(), line["tenant"].is_u64(), line["deadline_ms"].as_u64());
        assert_eq!(found, expected, "{line}");
        assert_ne!(line["tenant"], 7, "the tenant itself");
    }
}

#[test]
fn a_tenant_has_one_number_of_its_own() {
    let mut encoder = encoder();
    let mut number = |tenant: u64, session: Option<u64>| {
        let mut entry = entry(Unit::Tokens, 256, 16);
        (entry.tenant, entry.session) = (TenantId(tenant), session);
        let line = value(&encoder.line(&entry, ending(None, None), Instant::ZERO));
        assert!(line["tenant"].as_u64().unwrap() < 1 << 53);
        assert_ne!(line["tenant"], line["session"]);
        line["tenant"].clone()
    };
    assert_eq!(number(7, None), number(7, Some(7)));
    assert_ne!(number(7, None), number(8, None));
}

#[test]
fn timestamps_have_microseconds_and_are_never_negative() {
    let stamp = |arrived: Instant, began: Instant| {
        let ending = RecordEnding { arrived, usage: None, chunks: 0, times: None };
        let line = encoder().line(&entry(Unit::Tokens, 10, 16), ending, began);
        value(&line)["timestamp"].as_f64().unwrap()
    };
    assert_eq!(stamp(Instant::from_nanos(1_234_567_000), Instant::from_millis(1_000)), 234.567);
    assert_eq!(stamp(Instant::from_millis(1), Instant::from_millis(2)), 0.0);
}

#[test]
fn only_a_complete_answer_has_times_and_only_a_stream_a_first_token() {
    let times = RecordedTimes {
        first_chunk: Duration::from_micros(812_113),
        last_chunk: Duration::from_micros(2_034_900),
    };
    for (form, times, cached, expected) in [
        (Form::Stream, None, Some(64), ""),
        (Form::Stream, Some(times), None, ",\"ttft_ms\":812.113,\"e2e_ms\":2034.900"),
        (Form::Whole, Some(times), Some(64), ",\"e2e_ms\":2034.900,\"cached_length\":64"),
        // Never more than the prompt.
        (Form::Whole, Some(times), Some(999), ",\"e2e_ms\":2034.900,\"cached_length\":256"),
    ] {
        let usage = Usage { prompt_tokens: Some(256), completion_tokens: Some(9), cached_tokens: cached };
        let ending = RecordEnding { times, usage: Some(usage), ..ending(None, None) };
        let line =
            encoder().line(&RecordEntry { form, ..entry(Unit::Tokens, 256, 16) }, ending, Instant::ZERO);
        let (_, observed) = line.split_once(",\"block_size\":128").unwrap();
        assert_eq!(observed, format!("{expected}}}\n"));
    }
}

#[test]
fn files_rotate_and_the_oldest_is_deleted() {
    let folder = Folder::new("move");
    for round in 0..5 {
        let mut files = folder.open(100, 3).unwrap();
        files.write(format!("{LINE_START}{round}}}\n").as_bytes()).unwrap();
    }
    assert_eq!(folder.names(), ["trace", "trace.1", "trace.2"]);
    for (name, round) in [("trace", 4), ("trace.1", 3), ("trace.2", 2)] {
        let text = fs::read_to_string(folder.0.join(name)).unwrap();
        assert_eq!(text, format!("{LINE_START}{round}}}\n"));
    }
    // An empty file is not kept, and with one file in all no old one is.
    drop(folder.open(100, 1).unwrap());
    drop(folder.open(100, 3).unwrap());
    assert_eq!(fs::read_to_string(folder.file()).unwrap(), "");
    assert_eq!(folder.names(), ["trace", "trace.1", "trace.2"]);
}

#[test]
fn a_file_is_full_before_it_is_too_large_and_after_a_year() {
    let folder = Folder::new("full");
    let mut files = folder.open(100, 2).unwrap();
    let (soon, late) = (Instant::from_millis(1), Instant::ZERO + Duration::from_secs(366 * 86_400));
    let batch = |bytes: usize| LineBatch { text: "x".repeat(bytes), lines: 1 };
    let is_full = |files: &RecordFiles, before, line| files.is_full(&batch(before), &"x".repeat(line), soon);
    assert!(!is_full(&files, 0, 1_000), "one line alone always fits");
    assert_eq!([40, 41].map(|it| is_full(&files, 60, it)), [false, true]);
    files.write(&[b'x'; 60]).unwrap();
    assert_eq!([40, 41].map(|it| is_full(&files, 0, it)), [false, true]);
    assert!(files.is_full(&batch(0), "x", late));
}

#[test]
fn a_foreign_file_or_one_in_use_is_left_alone() {
    let folder = Folder::new("foreign");
    let error = |folder: &Folder| folder.open(100, 1).err().unwrap().to_string();
    fs::write(folder.file(), "listen = \"127.0.0.1:80\"\n").unwrap();
    assert_eq!(error(&folder), "trace is not a record");
    assert_eq!(folder.names(), ["trace"]);
    fs::remove_file(folder.file()).unwrap();
    let held = folder.open(100, 1).unwrap();
    assert_eq!(error(&folder), "another process is writing it");
    drop(held);
    folder.open(100, 1).unwrap();
}

#[test]
fn a_foreign_file_is_not_rotated() {
    let folder = Folder::new("numbered");
    fs::write(folder.file(), format!("{LINE_START}1}}\n")).unwrap();
    fs::write(folder.0.join("trace.1"), "mine").unwrap();
    assert_eq!(folder.open(100, 3).err().unwrap().to_string(), "trace.1 is not a record");
    assert_eq!(folder.names(), ["trace", "trace.1"]);
    assert_eq!(fs::read_to_string(folder.0.join("trace.1")).unwrap(), "mine");
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new("mode");
    let mode = || fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777;
    folder.open(100, 1).unwrap();
    assert_eq!(mode(), 0o600);
    // Also if the file existed before.
    fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o644)).unwrap();
    folder.open(100, 1).unwrap();
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_queue_that_is_full_drops_and_counts() {
    let (jobs, _unread) = sync_channel(2);
    let (counts, prefixes) = (RecordCounts::default(), Arc::new(AtomicUsize::new(0)));
    let recorder =
        Recorder { jobs, prefixes: prefixes.clone(), counts: counts.clone(), writer: Mutex::new(None) };
    let take = |units: u64| recorder.take(Box::new(entry(Unit::Tokens, units, 1)), ending(None, None));
    take(PREFIXES_MAX as u64 + 1);
    assert_eq!((counts.dropped.get(), prefixes.load(Ordering::Relaxed)), (1, 0));
    (0..5).for_each(|_| take(10));
    assert_eq!((counts.dropped.get(), prefixes.load(Ordering::Relaxed)), (4, 20));
}

/// On a disk that is nearly full a short batch fits and a long one does not.
#[test]
fn a_disk_that_fails_by_turns_is_logged_once_a_minute() {
    let mut log = FailureLog::default();
    let mut lines = Vec::new();
    for second in 0..300 {
        let failed = second % 2 == 0 && second < 200;
        if let Some(change) = log.change(Instant::from_millis(second * 1_000), failed) {
            lines.push((second, change));
        }
    }
    let expected = [
        (0, DiskState::Failing),
        (61, DiskState::Writing),
        (122, DiskState::Failing),
        (183, DiskState::Writing),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn the_last_state_of_a_disk_is_always_logged() {
    let mut log = FailureLog::default();
    let mut at = |second: u64, failed: bool| log.change(Instant::from_millis(second * 1_000), failed);
    assert_eq!(at(0, false), None);
    assert_eq!(at(1, true), Some(DiskState::Failing));
    assert_eq!(at(2, false), None, "a minute has not passed");
    assert_eq!(at(62, false), Some(DiskState::Writing));
    assert_eq!(at(63, false), None);
}
