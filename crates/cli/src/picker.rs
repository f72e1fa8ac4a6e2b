//! `maitre picker`: `maitre serve` for gateways that carry requests themselves and ask where to send them.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use maitre_config as config;
use maitre_proxy::RouterSettings;

use crate::reload::Sources;
use crate::serve;

const MORE: &str = "\
Example: maitre picker --listen 127.0.0.1:9002 --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000

The settings are those of `maitre serve`, and work the same. Workers are named to the gateway as ip:port, so give
IP addresses, or discover them. `maitre picker --help` lists every setting.";

pub fn command() -> Command {
    let listen = RouterSettings::for_gateways().listen;
    let listen = format!("Where gateways connect, by gRPC. [default: {listen}]");
    Command::new("picker")
        .about("Pick workers for a gateway (Envoy ext_proc)")
        .args(config::args())
        .mut_arg("listen", |arg| arg.help(listen.clone()).long_help(listen))
        .after_help(MORE)
        .after_long_help("")
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    serve::run_with(Sources::over(RouterSettings::for_gateways(), matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_its_own_port_and_the_settings_of_serve() {
        let help = command().render_long_help().to_string();
        for part in ["127.0.0.1:9002", "by gRPC", "--worker", "--picker-fallbacks", "--discovery-from"] {
            assert!(help.contains(part), "{part}");
        }
        assert!(!help.contains("Where clients connect"), "{help}");
    }
}
