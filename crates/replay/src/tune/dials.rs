//! The knobs of each strategy that are worth searching (dials), and the values worth trying.
//!
//! A few values around the default, spaced wider with distance: finer values would fit the knob to the trace,
//! not to the traffic. Knobs with only one sensible value are left out.

use maitre_policy::Name;

use maitre_config::{self as config, Config};

#[derive(Debug)]
pub(super) struct Dial {
    pub(super) key: &'static str,
    /// As written in the configuration, from small to large.
    pub(super) values: &'static [&'static str],
}

/// One dial set to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) value: String,
}

const fn dial(key: &'static str, values: &'static [&'static str]) -> Dial {
    Dial { key, values }
}

static CACHE_AWARE: &[Dial] = &[
    dial("cache_aware.cache_threshold", &["0.1", "0.2", "0.3", "0.5", "0.7", "0.9"]),
    dial("cache_aware.balance_abs_threshold", &["4", "8", "16", "32", "64", "128"]),
    dial("cache_aware.balance_rel_threshold", &["1", "1.1", "1.25", "1.5", "2", "4"]),
];
static PREFIX_HASH: &[Dial] = &[dial("prefix_hash.load_factor", &["1", "1.1", "1.25", "1.5", "2", "3", "5"])];
static DYNAMO_COST: &[Dial] =
    &[dial("dynamo_cost.prefill_weight", &["0.25", "0.5", "1", "2", "4", "8", "16"])];
/// Only their ratios matter, but each may also be zero.
static WEIGHTED: &[Dial] = &[
    dial("weighted.prefix", &["0", "1", "2", "3", "5", "8", "12"]),
    dial("weighted.queue", &["0", "1", "2", "3", "5", "8"]),
    dial("weighted.kv", &["0", "0.5", "1", "2", "3", "5"]),
];
static STICKY_UNTIL_SATURATED: &[Dial] = &[
    dial("sticky_until_saturated.threshold", &["0.2", "0.4", "0.6", "0.8", "0.95"]),
    dial("sticky_until_saturated.seconds", &["0.5", "1", "2", "5", "10", "18", "40"]),
];
static PREBLE: &[Dial] = &[dial("preble.balance", &["1.5", "3", "5", "8", "15", "30", "100"])];
static DUALMAP: &[Dial] = &[dial("dualmap.slo_seconds", &["0.25", "0.5", "1", "2", "3", "5", "10"])];

/// None for strategies without dials.
pub(super) fn of(name: Name) -> &'static [Dial] {
    match name {
        Name::CacheAware => CACHE_AWARE,
        Name::PrefixHash => PREFIX_HASH,
        Name::DynamoCost => DYNAMO_COST,
        Name::Weighted => WEIGHTED,
        Name::StickyUntilSaturated => STICKY_UNTIL_SATURATED,
        Name::Preble => PREBLE,
        Name::Dualmap => DUALMAP,
        Name::RoundRobin | Name::Random | Name::LeastRequest | Name::LeastWork => &[],
        Name::PowerOfTwo | Name::StickySession | Name::LeastDelay | Name::Lmetric => &[],
    }
}

/// The current values of a strategy's dials in `config`.
pub(super) fn settings(name: Name, config: &Config) -> Vec<Setting> {
    let setting = |dial: &Dial| Some(Setting { key: dial.key, value: config::value(config, dial.key)? });
    of(name).iter().filter_map(setting).collect()
}

/// The settings that differ from `others`.
pub(super) fn differing<'a>(settings: &'a [Setting], others: &[Setting]) -> Vec<&'a Setting> {
    settings.iter().filter(|it| !others.contains(it)).collect()
}

/// The strategy, the queue setting and all non-default settings, as lines of a config file.
pub(super) fn toml(name: Name, settings: &[Setting], config: &Config) -> String {
    let mut text = format!("strategy = \"{name}\"\n");
    if !config.settings.brain.queue.enabled {
        text.push_str("queue.enabled = false\n");
    }
    for setting in differing(settings, &self::settings(name, &Config::default())) {
        text.push_str(&format!("{} = {}\n", setting.key, setting.value));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_accepts_and_returns_every_value() {
        for name in Name::ALL {
            for dial in of(name) {
                let default = config::value(&Config::default(), dial.key).unwrap();
                assert!(dial.values.contains(&default.as_str()), "{}: the default is {default}", dial.key);
                for &value in dial.values {
                    let mut config = Config::default();
                    config::set(&mut config, dial.key, value).unwrap();
                    assert_eq!(config::value(&config, dial.key).as_deref(), Some(value), "{}", dial.key);
                }
            }
        }
    }
}
