//! The flags of `maitre engine` about a KV store that its engines share.

use clap::{Arg, ArgMatches};
use maitre_console::flag;
use maitre_sim::http::StoreMember;
use maitre_sim::link::LinkModel;
use maitre_sim::profile::Profile;
use maitre_sim::store::{SharedStore, StoreSize};

use super::transfer::{parse_bandwidth, set};

pub(super) fn args() -> [Arg; 3] {
    [
        flag::value("kv-store", "TOKENS|TIMESx")
            .value_parser(|text: &str| text.parse::<StoreSize>())
            .help("Share a KV store of this size, as with LMCache: in tokens, or as a multiple of all caches, such as 4x"),
        flag::value("kv-store-floor", "DURATION")
            .value_parser(maitre_config::duration)
            .requires("kv-store")
            .help("What every load from the store takes [default: 26ms; 0ms with the profile instant]"),
        flag::value("kv-store-bandwidth", "GB/S")
            .value_parser(parse_bandwidth)
            .requires("kv-store")
            .help(
                "Gigabytes of KV a second that an engine loads from the store [default: 17; unlimited with the profile \
                 instant]",
            ),
    ]
}

/// The part of each of `count` engines in the store, if there is to be one.
pub(super) fn read(
    matches: &ArgMatches,
    profile: &Profile,
    count: u16,
) -> anyhow::Result<Option<StoreMember>> {
    let Some(size) = matches.get_one::<StoreSize>("kv-store") else { return Ok(None) };
    let cache_tokens = profile.kv_tokens().saturating_mul(u64::from(count));
    let blocks = size
        .blocks(cache_tokens, profile.block_tokens)
        .map_err(|problem| anyhow::anyhow!("--kv-store: {problem}"))?;
    let mut link = LinkModel::of(profile);
    set(&mut link.floor, matches, "kv-store-floor");
    set(&mut link.bytes_per_second, matches, "kv-store-bandwidth");
    set(&mut link.token_bytes, matches, "kv-token-bytes");
    Ok(Some(StoreMember { store: SharedStore::new(blocks), link }))
}

#[cfg(test)]
mod tests {
    use super::*;

    use maitre_sim::profile::H100X2_32B;

    fn parse(flags: &[&str]) -> anyhow::Result<Option<StoreMember>> {
        let command = crate::engine::command();
        let matches = command.try_get_matches_from([&["engine"], flags].concat())?;
        read(&matches, &H100X2_32B, 2)
    }

    #[test]
    fn a_store_has_a_size_and_a_link() {
        assert!(parse(&[]).unwrap().is_none());
        let member = parse(&["--kv-store", "4x"]).unwrap().unwrap();
        assert_eq!(member.store.capacity_blocks(), 4 * 2 * 19_208);
        assert_eq!((member.link.floor.as_millis(), member.link.bytes_per_second), (26, 17e9));
        let flags = ["--kv-store", "32000", "--kv-store-floor", "2ms", "--kv-store-bandwidth", "0.5"];
        let member = parse(&flags).unwrap().unwrap();
        assert_eq!((member.store.capacity_blocks(), member.link.floor.as_millis()), (2_000, 2));
        assert_eq!(member.link.bytes_per_second, 5e8);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for (flags, expected) in [
            (&["--kv-store", "much"][..], "write tokens"),
            (&["--kv-store", "5"], "0 blocks of 16 tokens"),
            (&["--kv-store-floor", "2ms"], "--kv-store"),
        ] {
            let error = parse(flags).unwrap_err().to_string();
            assert!(error.contains(expected), "{flags:?}: {error}");
        }
    }
}
