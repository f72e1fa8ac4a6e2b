//! What to replay: traffic, a fleet, and what the router knows when. Shared by `replay` and `tune`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use maitre_base::Role;
use maitre_base::chunk_reuse::{CHUNK_REUSE_FORM, ChunkReuse};
use maitre_policy::Name;
use maitre_policy::split::SplitRule;
use maitre_sim::lab::{
    self, Autoscale, ChunkKnowledge, Decider, Knowledge, LabConfig, LinkChange, PreparedTrace,
    PullingWorkers, RunObserver, RunOutcome, Script, StoreConfig, Sync, Via, script,
};
use maitre_sim::profile::{self, Profile};
use maitre_sim::report::{CacheKnowledge, Targets};
use maitre_sim::trace::Trace;

use crate::sessions::SessionStudy;
use maitre_config::{self as config, Config};
use maitre_console::clock::Stopwatch;
use maitre_console::flag;

/// A 70B model on eight A100. It holds every prompt of the conversation trace, and that trace keeps eight
/// such workers busy.
const PROFILE: &str = "a100x8-70b";

/// How often a client retries, as in `maitre bench --retry`.
const RETURNS_MAX: u32 = 5;

/// A strategy, or one of the two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StrategyChoice {
    Strategy(Name),
    Oracle,
    IdealCache,
}

impl StrategyChoice {
    pub(crate) fn all() -> Vec<StrategyChoice> {
        let strategies = Name::ALL.into_iter().map(StrategyChoice::Strategy);
        strategies.chain([StrategyChoice::Oracle, StrategyChoice::IdealCache]).collect()
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            StrategyChoice::Strategy(name) => name.as_str(),
            StrategyChoice::Oracle => "oracle",
            StrategyChoice::IdealCache => "ideal-cache",
        }
    }
}

impl fmt::Display for StrategyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for StrategyChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<StrategyChoice, String> {
        let known = || StrategyChoice::all().iter().map(|it| it.as_str()).collect::<Vec<_>>().join(", ");
        let choice = StrategyChoice::all().into_iter().find(|it| it.as_str() == text);
        choice.ok_or_else(|| format!("no strategy is called \"{text}\"; known: {}, all", known()))
    }
}

/// By which rules one run is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlayedRules {
    pub choice: StrategyChoice,
    pub split: SplitRule,
    pub autoscale: Option<Autoscale>,
}

/// Which strategies wait in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueUse {
    /// Published rules do without it, as they were published; our own is played as it is served.
    ByStrategy,
    /// All of them as `queue.enabled` says.
    Configured,
}

/// Everything except the strategies and the speeds.
#[derive(Clone, Debug)]
pub(crate) struct Study {
    pub trace: Trace,
    /// The sessions that the trace consists of, if it does.
    pub sessions: Option<SessionStudy>,
    pub source: String,
    pub fleet: Vec<Profile>,
    /// Of each worker of the fleet.
    pub roles: Vec<Role>,
    pub link: LinkChange,
    pub pulls: PullingWorkers,
    pub store: Option<StoreConfig>,
    pub chunks: ChunkKnowledge,
    pub block_tokens: u32,
    pub knowledge: Knowledge,
    pub event_delay: Duration,
    /// The part of the batches of KV events that never arrive.
    pub event_loss: f64,
    pub scrape_every: Duration,
    pub scrape_delay: Duration,
    pub routers: u32,
    /// How the routers share state.
    pub sync: Option<Sync>,
    pub script: Script,
    /// Whether clients retry when a response asks them to.
    pub retry: bool,
    pub targets: Targets,
    pub config: Config,
    pub queue: QueueUse,
    pub seed: u64,
}

fn duration(text: &str) -> Result<Duration, String> {
    config::duration(text)
}

/// A number from 0 to 1.
fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|it| (0.0..=1.0).contains(it));
    part.ok_or_else(|| "a number from 0 to 1, such as 0.1".to_owned())
}

fn parse_chunks(text: &str) -> Result<ChunkReuse, String> {
    text.parse().map_err(|()| format!("write {CHUNK_REUSE_FORM}"))
}

/// A bare number is milliseconds.
fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(number) => Ok(Duration::from_millis(number.into())),
        Err(_) => duration(text),
    }
}

pub(crate) fn args() -> Vec<Arg> {
    let mut args = traffic_args();
    args.extend(fleet_args());
    args.extend(knowledge_args());
    args
}

/// How many runs at once, and the output format.
pub(crate) fn run_args() -> [Arg; 2] {
    [
        flag::value("jobs", "N")
            .value_parser(value_parser!(u32).range(1..=256))
            .help("Concurrent runs [default: one per core]"),
        flag::switch("json").help("Print one JSON object"),
    ]
}

fn traffic_args() -> Vec<Arg> {
    vec![
        flag::value("trace", "FILE|WORKLOAD")
            .required(true)
            .help("A trace (JSONL, optionally gzipped), or a workload of `maitre generate`"),
        flag::value("limit", "N")
            .value_parser(value_parser!(usize))
            .help("Only the first N requests, or sessions"),
        flag::value("seed", "N")
            .default_value("1")
            .value_parser(value_parser!(u64))
            .help("Seed of workloads and strategies"),
        flag::value("ttft-target", "DURATION")
            .default_value("2s")
            .value_parser(duration)
            .help("Goodput: maximum time to first token"),
        flag::value("tpot-target", "DURATION")
            .default_value("100ms")
            .value_parser(duration)
            .help("Goodput: maximum mean time per output token"),
        flag::switch("retry").help("Refused clients retry after their Retry-After, up to 5 times"),
    ]
}

fn fleet_args() -> Vec<Arg> {
    vec![
        flag::value("profile", "NAME|FILE")
            .default_value(PROFILE)
            .help("The engine of workers that are given only by number: a built-in one, or a file from `maitre calibrate`"),
        flag::value("kv-tokens", "N")
            .value_parser(value_parser!(u64).range(1_024..=1 << 32))
            .help("Tokens in each worker's KV cache [default: the profile's]"),
        flag::value("block-tokens", "N")
            .value_parser(value_parser!(u32).range(1..=1_024))
            .help("Tokens per KV block [default: a profile file's; else 16 to 128, the largest that the trace allows]"),
        flag::value("chunks", "PART")
            .value_parser(parse_chunks)
            .help("Engines reuse the texts of a prompt at any position, and compute this part of them again, such as 0.15"),
        flag::switch("chunks-hidden")
            .requires("chunks")
            .help("The router does not know of --chunks"),
        flag::value("script", "FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Events of workers over time: join, leave, drain, resume, slow, crash, start, restart"),
    ]
}

fn knowledge_args() -> Vec<Arg> {
    let delay = |name: &'static str, default: &'static str, help: &'static str| {
        flag::value(name, "DURATION").default_value(default).value_parser(duration).help(help)
    };
    vec![
        flag::value("knowledge", "LEVEL")
            .default_value("reported")
            .value_parser(["reported", "predicted", "none"])
            .help("What the router knows of caches: KV events, its own placements, or nothing"),
        delay("event-delay", "0ms", "Delay from a change in a cache to the router"),
        flag::value("event-loss", "PART").default_value("0").value_parser(parse_part).help(
            "The part of the batches of KV events that never arrive, 0 to 1; engines have no replay then",
        ),
        delay("scrape-every", "1s", "Interval between two scrapes of a worker's metrics"),
        delay("scrape-delay", "0ms", "Delay from a scrape to the router"),
        flag::value("routers", "N")
            .default_value("1")
            .value_parser(value_parser!(u32).range(1..=64))
            .help("Number of routers; each takes requests in turn"),
        flag::value("sync", "HOW")
            .default_value("none")
            .value_parser(["none", "redis", "mesh"])
            .help("How routers share state"),
        flag::value("sync-delay", "MS")
            .default_value("50")
            .value_parser(milliseconds)
            .help("Delay from one router to the others, in milliseconds or with a unit"),
        flag::value("config", "FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Knobs of strategies, from a config file of `maitre serve`"),
        flag::value("set", "KEY=VALUE")
            .action(ArgAction::Append)
            .help("One knob, such as cache_aware.cache_threshold=0.5"),
    ]
}

/// Whether a flag was written, and is not just its default.
pub(super) fn is_given(matches: &ArgMatches, flag: &str) -> bool {
    matches.value_source(flag) == Some(ValueSource::CommandLine)
}

/// Refuses flags about what routers share where they share nothing.
fn check_sync(matches: &ArgMatches) -> anyhow::Result<()> {
    let how: &String = matches.get_one("sync").context("sync")?;
    let routers: u32 = *matches.get_one("routers").context("routers")?;
    anyhow::ensure!(how == "none" || routers > 1, "--sync {how}: there is one router; write --routers 4");
    let is_idle = is_given(matches, "sync-delay") && !is_given(matches, "sync");
    anyhow::ensure!(!is_idle, "--sync-delay: routers share nothing; write --sync mesh");
    Ok(())
}

impl Study {
    pub(crate) fn read(matches: &ArgMatches, workers: &str) -> anyhow::Result<Study> {
        let seed = *matches.get_one("seed").context("seed")?;
        let source: &String = matches.get_one("trace").context("trace")?;
        let limit = matches.get_one("limit").copied().unwrap_or(usize::MAX);
        let sessions = crate::sessions::read(matches, source, limit)?;
        let mut trace = match &sessions {
            Some(sessions) => sessions.trace.trace.clone(),
            None => crate::trace::load(source, seed).map_err(|it| crate::sessions::explain(source, it))?,
        };
        trace.requests.truncate(if sessions.is_some() { usize::MAX } else { limit });
        anyhow::ensure!(!trace.requests.is_empty(), "--limit leaves no request");
        let profile: &String = matches.get_one("profile").context("profile")?;
        let (fleet, roles): (Vec<Profile>, Vec<Role>) = fleet(workers, profile)?.into_iter().unzip();
        let block_tokens = match matches.get_one("block-tokens").copied() {
            Some(tokens) => tokens,
            None => measured_block(&fleet)?.unwrap_or_else(|| lab::block_tokens(&trace)),
        };
        let kv_tokens: Option<u64> = matches.get_one("kv-tokens").copied();
        let set = |it: Profile| it.with_cache(kv_tokens.unwrap_or_else(|| it.kv_tokens()), block_tokens);
        let mut fleet: Vec<Profile> = fleet.into_iter().map(set).collect();
        check_blocks(&fleet)?;
        if let Some(sessions) = &sessions {
            sessions.fit(&mut fleet)?;
        }
        let mut script = match matches.get_one::<PathBuf>("script") {
            Some(path) => read_script(path)?,
            None => Script::default(),
        };
        script.set_cache(set);
        script.check(fleet.len()).map_err(|it| anyhow::anyhow!("--script: {it}"))?;
        check_sync(matches)?;
        let time = |name: &str| matches.get_one::<Duration>(name).copied().context("duration");
        let scrape_every = time("scrape-every")?;
        anyhow::ensure!(scrape_every >= Duration::from_millis(1), "--scrape-every: at least 1ms");
        Ok(Study {
            trace,
            sessions,
            source: source.clone(),
            fleet,
            roles,
            link: LinkChange::default(),
            pulls: PullingWorkers::None,
            store: None,
            chunks: ChunkKnowledge {
                engines: matches.get_one("chunks").copied(),
                is_hidden: matches.get_flag("chunks-hidden"),
            },
            block_tokens,
            knowledge: match matches.get_one::<String>("knowledge").map(String::as_str) {
                Some("predicted") => Knowledge::Predicted,
                Some("none") => Knowledge::None,
                _ => Knowledge::Reported,
            },
            event_delay: time("event-delay")?,
            event_loss: *matches.get_one("event-loss").context("event-loss")?,
            scrape_every,
            scrape_delay: time("scrape-delay")?,
            routers: *matches.get_one("routers").context("routers")?,
            sync: match matches.get_one::<String>("sync").map(String::as_str) {
                Some("redis") => Some(Sync { via: Via::Redis, delay: time("sync-delay")? }),
                Some("mesh") => Some(Sync { via: Via::Mesh, delay: time("sync-delay")? }),
                _ => None,
            },
            script,
            retry: matches.get_flag("retry"),
            targets: Targets { first_token: time("ttft-target")?, per_token: time("tpot-target")? },
            config: read_config(matches)?,
            queue: QueueUse::Configured,
            seed,
        })
    }

    /// The requests over time, at this multiple of the speed.
    pub(crate) fn hastened(&self, speed: f64) -> Trace {
        let mut trace = self.trace.clone();
        trace.hasten(speed);
        trace
    }

    /// Whether a worker prefills for others, now or when it has joined.
    pub(crate) fn has_prefill_workers(&self) -> bool {
        self.roles.contains(&Role::Prefill) || self.script.joins(Role::Prefill)
    }

    /// Whether requests wait in the queue under this strategy.
    pub(crate) fn has_queue(&self, choice: StrategyChoice) -> bool {
        let configured = self.config.settings.brain.queue.enabled;
        match (choice, self.queue) {
            // They place every request when it arrives.
            (StrategyChoice::Oracle | StrategyChoice::IdealCache, _) => false,
            (StrategyChoice::Strategy(_), QueueUse::Configured) => configured,
            (StrategyChoice::Strategy(name), QueueUse::ByStrategy) => configured && name == Name::LeastDelay,
        }
    }

    /// What this strategy knows of caches.
    pub(crate) fn cache_knowledge(&self, choice: StrategyChoice) -> CacheKnowledge {
        match (choice, self.knowledge) {
            (StrategyChoice::Oracle | StrategyChoice::IdealCache, _) => CacheKnowledge::Exact,
            (StrategyChoice::Strategy(name), _) if !name.needs().cache => CacheKnowledge::Unused,
            (_, Knowledge::Reported) => CacheKnowledge::Reported,
            (_, Knowledge::Predicted) => CacheKnowledge::Predicted,
            (_, Knowledge::None) => CacheKnowledge::None,
        }
    }

    pub(crate) fn play(
        &self,
        rules: PlayedRules,
        prepared: &PreparedTrace<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> RunOutcome {
        let PlayedRules { choice, split, autoscale } = rules;
        let mut brain = unwatched(&self.config);
        brain.strategies.clear();
        (brain.seed, brain.split) = (self.seed, split);
        brain.queue.enabled = self.has_queue(choice);
        if let StrategyChoice::Strategy(name) = choice {
            brain.strategy = name;
        }
        let settings = LabConfig {
            decider: match choice {
                StrategyChoice::Strategy(_) => Decider::Brain,
                StrategyChoice::Oracle => Decider::Oracle,
                StrategyChoice::IdealCache => Decider::IdealCache,
            },
            knowledge: self.knowledge,
            event_delay: self.event_delay,
            event_loss: self.event_loss,
            scrape_every: self.scrape_every,
            scrape_delay: self.scrape_delay,
            routers: self.routers as usize,
            // A single router has no peers.
            sync: self.sync.filter(|_| self.routers > 1),
            script: self.script.clone(),
            autoscale,
            retries_max: if self.retry { RETURNS_MAX } else { 0 },
            roles: self.roles.clone(),
            link: self.link,
            pulls: self.pulls.clone(),
            store: self.store,
            chunks: self.chunks,
            sessions: self.sessions.as_ref().map_or_else(Vec::new, |it| it.open.clone()),
            are_sessions_hidden: self.sessions.as_ref().is_some_and(|it| it.are_hidden),
            ..LabConfig::new(self.fleet.clone(), brain)
        };
        lab::play(&settings, prepared, &mut Watch { watch: Stopwatch::start(), progress })
    }
}

struct Watch<'a> {
    watch: Stopwatch,
    progress: &'a mut dyn FnMut(usize),
}

impl RunObserver for Watch<'_> {
    fn arrived(&mut self, requests: usize) {
        (self.progress)(requests);
    }

    fn wall(&mut self) -> Duration {
        self.watch.elapsed()
    }
}

/// The block of the engines whose profile is a file. The built-in ones have none worth keeping: a coarser block is
/// faster to play, and hits the same.
fn measured_block(fleet: &[Profile]) -> anyhow::Result<Option<u32>> {
    let mut measured = fleet.iter().filter(|it| Profile::named(it.name).is_none());
    let Some(first) = measured.next() else { return Ok(None) };
    let other = measured.find(|it| it.block_tokens != first.block_tokens);
    anyhow::ensure!(
        other.is_none(),
        "--workers: \"{}\" and \"{}\" have blocks of different sizes; choose one with --block-tokens",
        first.name,
        other.map_or("", |it| it.name)
    );
    Ok(Some(first.block_tokens))
}

/// `8`, `4xh100x2-32b`, `4xprofile.toml`, `4@prefill`, or several of these separated by commas.
fn fleet(text: &str, profile: &str) -> anyhow::Result<Vec<(Profile, Role)>> {
    let mut fleet = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (count, role) = part.split_once('@').map_or((part, ""), |it| (it.0, &part[it.0.len()..]));
        let spec = match count.parse::<u32>() {
            Ok(count) => {
                profile::file::find(profile).map_err(|it| anyhow::anyhow!("--profile {profile}: {it}"))?;
                format!("{count}x{profile}{role}")
            }
            Err(_) => part.to_owned(),
        };
        let group = script::workers(&spec).map_err(|it| anyhow::anyhow!("--workers {part}: {it}"))?;
        fleet.extend(std::iter::repeat_n((group.profile, group.role), group.count as usize));
    }
    anyhow::ensure!(
        fleet.len() <= script::WORKERS_MAX as usize,
        "--workers {text}: at most {} are possible",
        script::WORKERS_MAX
    );
    anyhow::ensure!(
        fleet.iter().any(|it| it.1 != Role::Prefill),
        "--workers {text}: no worker answers; prefill workers need decode workers"
    );
    Ok(fleet)
}

/// Maximum blocks in all caches together: about 13 GB for each run.
const BLOCKS_MAX: u64 = 1 << 28;

fn check_blocks(fleet: &[Profile]) -> anyhow::Result<()> {
    let blocks: u64 = fleet.iter().map(|it| u64::from(it.kv_blocks)).sum();
    anyhow::ensure!(
        blocks <= BLOCKS_MAX,
        "--kv-tokens: {blocks} blocks at all workers together; at most {BLOCKS_MAX} are possible, so take larger \
         --block-tokens or fewer workers"
    );
    Ok(())
}

fn read_script(path: &PathBuf) -> anyhow::Result<Script> {
    let text = std::fs::read_to_string(path).with_context(|| format!("--script {}", path.display()))?;
    text.parse().with_context(|| format!("--script {}", path.display()))
}

fn read_config(matches: &ArgMatches) -> anyhow::Result<Config> {
    let base = match matches.get_one::<PathBuf>("config") {
        Some(path) => config::check_file(path)?,
        None => Config::default(),
    };
    set_and_check(&base, &set_pairs(matches)?).map_err(|it| anyhow::anyhow!("--set {it}"))
}

/// Key and value of each `--set`.
pub(crate) fn set_pairs<'a>(matches: &'a ArgMatches) -> anyhow::Result<Vec<(&'a str, &'a str)>> {
    let pair = |pair: &'a String| {
        let (key, value) = pair.split_once('=').with_context(|| format!("--set {pair}: write KEY=VALUE"))?;
        Ok((key.trim(), value.trim()))
    };
    matches.get_many::<String>("set").unwrap_or_default().map(pair).collect()
}

/// Applies the settings, if each of them affects a replay.
fn set_and_check(base: &Config, pairs: &[(&str, &str)]) -> Result<Config, String> {
    let config = set_all(base, pairs)?;
    for (place, (key, value)) in pairs.iter().enumerate() {
        let mut others = pairs.to_vec();
        others.remove(place);
        // Required keys cannot be left out, so they count as having an effect.
        let Ok(without) = set_all(base, &others) else { continue };
        let differs = config::value(&without, key) != config::value(&config, key);
        if differs && seen(&without) == seen(&config) {
            return Err(format!("{key}={value}: a replay does not use {key}"));
        }
    }
    Ok(config)
}

fn set_all(base: &Config, pairs: &[(&str, &str)]) -> Result<Config, String> {
    let mut config = base.clone();
    for (key, value) in pairs {
        config::set_unresolved(&mut config, key, value).map_err(|it| format!("{key}={value}: {it}"))?;
    }
    let all = || pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ");
    config::resolve(&mut config).map_err(|it| format!("{}: {it}", all()))?;
    Ok(config)
}

/// Nobody reads the decisions of a replay, but without some there are no forecasts. Shadows would only cost time.
fn unwatched(config: &Config) -> maitre_dispatch::BrainSettings {
    let usual = maitre_dispatch::BrainSettings::default();
    let mut brain = config.settings.brain.clone();
    brain.explain.decisions = usual.explain.decisions;
    (brain.shadows, brain.shadow_sample) = (usual.shadows, usual.shadow_sample);
    brain
}

/// The settings that affect a replay. Any other knob is refused, because its result would wrongly suggest
/// that it does not matter.
fn seen(config: &Config) -> String {
    let mut brain = unwatched(config);
    // `--strategy` sets these.
    (brain.strategy, brain.strategies) = (Name::LeastDelay, BTreeMap::new());
    format!("{brain:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleets_are_read() {
        for (text, expected) in [
            ("3", "h200-8b h200-8b h200-8b"),
            ("2xh100x2-32b,1", "h100x2-32b h100x2-32b h200-8b"),
            ("a10g-8b", "a10g-8b"),
        ] {
            let names: Vec<&str> = fleet(text, "h200-8b").unwrap().iter().map(|it| it.0.name).collect();
            assert_eq!(names.join(" "), expected, "{text}");
        }
        let roles: Vec<Role> =
            fleet("1@prefill,a10g-8b@decode,1", "h200-8b").unwrap().into_iter().map(|it| it.1).collect();
        assert_eq!(roles, [Role::Prefill, Role::Decode, Role::Both]);
        for (text, expected) in [
            ("0", "0 workers"),
            ("4xabacus", "unknown profile \"abacus\""),
            ("", "unknown profile"),
            ("1000,1000", "at most 1024"),
            ("2@cook", "\"cook\" is not a role"),
            ("2@prefill", "no worker answers"),
        ] {
            let error = fleet(text, "h200-8b").unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = fleet("8", "abacus").unwrap_err().to_string();
        assert!(error.starts_with("--profile abacus: unknown profile"), "{error}");
    }

    #[test]
    fn blocks_of_measured_engines_are_kept() {
        let measured = |name, block_tokens| Profile { name, block_tokens, ..maitre_sim::profile::A10G_8B };
        let builtin = maitre_sim::profile::H200_8B;
        assert_eq!(measured_block(&[builtin]).unwrap(), None);
        assert_eq!(measured_block(&[builtin, measured("a", 128), measured("a", 128)]).unwrap(), Some(128));
        let error = measured_block(&[measured("a", 128), measured("b", 64)]).unwrap_err().to_string();
        assert!(error.contains("\"a\" and \"b\"") && error.contains("--block-tokens"), "{error}");
    }

    #[test]
    fn caches_that_no_machine_can_hold_are_refused() {
        let fleet = |tokens: u64| vec![maitre_sim::profile::A100X8_70B.with_cache(tokens, 1); 2];
        assert!(check_blocks(&fleet(1 << 26)).is_ok());
        assert!(check_blocks(&fleet(1 << 32)).unwrap_err().to_string().contains("--block-tokens"));
    }

    #[test]
    fn a_knob_that_would_change_nothing_is_refused() {
        for (pairs, expected) in [
            (&[("preble.balance", "3")][..], ""),
            (&[("preble.balance", "15")], ""),
            (&[("prefix_hash.head_bytes", "64")], "prefix_hash.head_bytes=64: a replay does not use"),
            (&[("strategy", "random")], "strategy=random: a replay does not use strategy"),
            (&[("classes", "all"), ("queue.standard", "all")], ""),
            (&[("queue.standard", "all"), ("classes", "all")], ""),
            (&[("classes", "all")], "classes=all: "),
        ] {
            let actual = set_and_check(&Config::default(), pairs).map(|_| ()).err().unwrap_or_default();
            let fits = actual.is_empty() == expected.is_empty() && actual.starts_with(expected);
            assert!(fits, "{pairs:?}: {actual}");
        }
    }

    #[test]
    fn choices_are_strategies_and_bounds() {
        for choice in StrategyChoice::all() {
            assert_eq!(choice.as_str().parse(), Ok(choice));
        }
        assert!("best".parse::<StrategyChoice>().unwrap_err().contains("dualmap, oracle"));
    }
}
