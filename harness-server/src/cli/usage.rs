//! Mistakes on the command line, told in one line.

use std::process::ExitCode;

use clap::error::ErrorKind;

use super::output;

/// Exit code of a mistake on the command line.
const USAGE: u8 = 2;

/// Tells what the parser has to say: help and version as they are, a mistake in one line.
pub(super) fn tell(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::help(error);
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::help(error);
            ExitCode::from(USAGE)
        }
        _ => {
            output::mistake(&one_line(&error.to_string()));
            ExitCode::from(USAGE)
        }
    }
}

/// Joins the lines of each paragraph, then the paragraphs.
fn one_line(text: &str) -> String {
    let paragraphs: Vec<String> = text
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .map(|paragraph| paragraph.trim_start_matches("error: ").to_owned())
        .filter(|paragraph| !paragraph.is_empty() && !paragraph.starts_with("For more information"))
        .collect();
    paragraphs.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_one_line_with_its_tip_and_usage() {
        let told = "error: unexpected argument '--lisen' found\n\n  tip: a similar argument \
                    exists: '--listen'\n\nUsage: harness serve [OPTIONS]\n\nFor more information, \
                    try '--help'.\n";
        assert_eq!(
            one_line(told),
            "unexpected argument '--lisen' found; tip: a similar argument exists: '--listen'; \
             Usage: harness serve [OPTIONS]"
        );
    }
}
