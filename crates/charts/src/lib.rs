//! What every chart needs: uPlot, and the colours and options that the live page and the replay report share.
//!
//! The files are constants because both users embed them: the live page serves them from the binary, the report
//! copies them into its one file. Nothing is fetched from another host.
//!
//! Left out: what each chart shows. The live page and the report each have a script of their own for that.

/// uPlot 1.6.32 as published: a classic script that defines `uPlot`.
pub const UPLOT_SCRIPT: &str = include_str!("vendor/uPlot.iife.min.js");
pub const UPLOT_STYLE: &str = include_str!("vendor/uPlot.min.css");
/// MIT. Every copy of the script must carry it.
pub const UPLOT_LICENSE: &str = include_str!("vendor/uPlot.LICENSE");

/// A classic script that defines `plotting`: options that all charts share.
pub const PLOT_SCRIPT: &str = include_str!("plot.js");
/// Colours, for light and dark screens, and uPlot's cursor in these colours.
pub const PLOT_STYLE: &str = include_str!("plot.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_ends_the_tag_that_embeds_it() {
        for script in [UPLOT_SCRIPT, PLOT_SCRIPT] {
            assert!(!script.contains("</") && !script.contains("<!--"));
        }
        for style in [UPLOT_STYLE, PLOT_STYLE] {
            assert!(!style.contains('<') && !style.contains("@import") && !style.contains("url("));
        }
    }

    #[test]
    fn the_license_names_its_holder() {
        assert!(UPLOT_LICENSE.contains("MIT") && UPLOT_LICENSE.contains("Copyright"));
        assert!(!UPLOT_LICENSE.contains("*/"), "the report has it in a comment");
    }
}
