//! The binary `maitre`.

use std::process::ExitCode;

use maitre_cli::commands;

fn main() -> ExitCode {
    match commands::run(&commands::command().get_matches()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("maitre: {error:#}");
            ExitCode::FAILURE
        }
    }
}
