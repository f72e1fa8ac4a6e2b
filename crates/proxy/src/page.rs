//! The page's files, as part of the binary: what `/` and `/page/…` of the admin listener serve.
//!
//! They are HTML, CSS and JavaScript, served as they are written, without a build step and without other origins, so
//! the page works without the internet. The data comes from the admin API; the files contain none and need no key.
//!
//! Not here: headers and status codes, which are the listener's; compression, since the page is loaded once over a local
//! network.

/// One file.
#[derive(Debug)]
pub(crate) struct PageFile {
    /// The path of its URL.
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

pub(crate) static FILES: &[PageFile] = &[
    file("/", HTML, include_bytes!("page/index.html")),
    file("/page/api.js", SCRIPT, include_bytes!("page/api.js")),
    file("/page/ask.js", SCRIPT, include_bytes!("page/ask.js")),
    file("/page/charts.js", SCRIPT, include_bytes!("page/charts.js")),
    file("/page/control.js", SCRIPT, include_bytes!("page/control.js")),
    file("/page/decision.js", SCRIPT, include_bytes!("page/decision.js")),
    file("/page/decisions.js", SCRIPT, include_bytes!("page/decisions.js")),
    file("/page/dom.js", SCRIPT, include_bytes!("page/dom.js")),
    file("/page/fleet.js", SCRIPT, include_bytes!("page/fleet.js")),
    file("/page/format.js", SCRIPT, include_bytes!("page/format.js")),
    file("/page/icon.svg", SVG, include_bytes!("page/icon.svg")),
    file("/page/key.js", SCRIPT, include_bytes!("page/key.js")),
    file("/page/live.js", SCRIPT, include_bytes!("page/live.js")),
    file("/page/main.js", SCRIPT, include_bytes!("page/main.js")),
    file("/page/numbers.js", SCRIPT, include_bytes!("page/numbers.js")),
    file("/page/page.css", CSS, include_bytes!("page/page.css")),
    file("/page/prefixes.js", SCRIPT, include_bytes!("page/prefixes.js")),
    file("/page/programs.js", SCRIPT, include_bytes!("page/programs.js")),
    file("/page/routers.js", SCRIPT, include_bytes!("page/routers.js")),
    file("/page/row.js", SCRIPT, include_bytes!("page/row.js")),
    file("/page/sentence.js", SCRIPT, include_bytes!("page/sentence.js")),
    file("/page/shadows.js", SCRIPT, include_bytes!("page/shadows.js")),
    file("/page/theme.js", SCRIPT, include_bytes!("page/theme.js")),
    file("/page/tip.js", SCRIPT, include_bytes!("page/tip.js")),
    file("/page/undo.js", SCRIPT, include_bytes!("page/undo.js")),
    file("/page/words.js", SCRIPT, include_bytes!("page/words.js")),
    file("/page/plot.css", CSS, maitre_charts::PLOT_STYLE.as_bytes()),
    file("/page/plot.js", SCRIPT, maitre_charts::PLOT_SCRIPT.as_bytes()),
    file("/page/vendor/uPlot.LICENSE", TEXT, maitre_charts::UPLOT_LICENSE.as_bytes()),
    file("/page/vendor/uPlot.iife.min.js", SCRIPT, maitre_charts::UPLOT_SCRIPT.as_bytes()),
    file("/page/vendor/uPlot.min.css", CSS, maitre_charts::UPLOT_STYLE.as_bytes()),
];

const fn file(path: &'static str, content_type: &'static str, bytes: &'static [u8]) -> PageFile {
    PageFile { path, content_type, bytes }
}

/// The file at a path without its query.
pub(crate) fn find(path: &str) -> Option<&'static PageFile> {
    FILES.iter().find(|it| it.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// Chosen: about a second on a slow connection.
    const BYTES_MAX: usize = 300 << 10;

    /// A namespace, which is not loaded.
    const SVG_NAMESPACE: &str = "http://www.w3.org/2000/svg";

    fn text(file: &PageFile) -> &'static str {
        std::str::from_utf8(file.bytes).unwrap()
    }

    fn ours() -> impl Iterator<Item = &'static PageFile> {
        FILES.iter().filter(|it| !it.path.starts_with("/page/vendor/"))
    }

    /// The text between each `before` and the next quotation mark.
    fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(|it| it.split('"').next())
    }

    #[test]
    fn only_the_path_of_a_file_finds_it() {
        let (page, script) = (find("/").unwrap(), find("/page/main.js").unwrap());
        assert_eq!((page.content_type, script.content_type), (HTML, SCRIPT));
        assert!(text(page).starts_with("<!doctype html>"));
        for path in ["", "/index.html", "/page", "/page/", "/page/../page.rs", "/page/main.js/", "main.js"] {
            assert!(find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn all_files_together_are_small() {
        let sum: usize = FILES.iter().map(|it| it.bytes.len()).sum();
        assert!(sum <= BYTES_MAX, "{sum} bytes, {BYTES_MAX} allowed");
    }

    #[test]
    fn every_file_of_the_folders_is_served_once() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = BTreeSet::new();
        for (folder, before) in
            [("proxy/src/page", "/page/"), ("charts/src", "/page/"), ("charts/src/vendor", "/page/vendor/")]
        {
            let entries = fs::read_dir(crates.join(folder)).unwrap().map(Result::unwrap);
            let files = entries.filter(|it| it.file_type().unwrap().is_file());
            found.extend(files.map(|it| format!("{before}{}", it.file_name().to_str().unwrap())));
        }
        assert!(found.remove("/page/lib.rs"));
        assert!(found.remove("/page/index.html"));
        found.insert("/".to_owned());
        let served: BTreeSet<String> = FILES.iter().map(|it| it.path.to_owned()).collect();
        assert_eq!(served, found);
        assert_eq!(served.len(), FILES.len());
    }

    #[test]
    fn every_file_that_a_file_loads_is_served() {
        let page = text(find("/").unwrap());
        let named: Vec<&str> = ["src=\"", "href=\""].iter().flat_map(|it| quoted(page, it)).collect();
        assert!(named.len() >= 5, "this test no longer understands the page: {named:?}");
        for name in named.into_iter().filter(|it| !it.starts_with('#')) {
            assert!(find(&format!("/{name}")).is_some(), "index.html asks for {name}");
        }
        for file in ours().filter(|it| it.content_type == SCRIPT) {
            for name in quoted(text(file), "from \"") {
                let path = name.strip_prefix("./").unwrap_or_else(|| panic!("{}: imports {name}", file.path));
                assert!(find(&format!("/page/{path}")).is_some(), "{}: imports {name}", file.path);
            }
        }
    }

    #[test]
    fn nothing_is_loaded_from_another_origin() {
        for file in ours() {
            let rest = text(file).replace(SVG_NAMESPACE, "");
            // An example in the text, not a link.
            let rest = rest.replace("http://host:port", "");
            assert!(!rest.contains("http://") && !rest.contains("https://"), "{}", file.path);
            assert!(!rest.contains("\"//") && !rest.contains("url("), "{}", file.path);
        }
    }

    #[test]
    fn the_page_obeys_the_content_security_policy() {
        let page = text(find("/").unwrap());
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains("javascript:"));
        assert!(!page.contains("<script>") && !page.contains(" onclick"));
        for file in ours().filter(|it| it.content_type == SCRIPT) {
            let text = text(file);
            assert!(!text.contains("eval(") && !text.contains("new Function"), "{}", file.path);
        }
    }

    #[test]
    fn no_script_makes_markup_of_data() {
        let ways = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "setHTML"];
        for file in ours().filter(|it| it.content_type == SCRIPT) {
            for way in ways {
                assert!(!text(file).contains(way), "{}: {way}", file.path);
            }
        }
    }

    /// Names in the scripts that are not fields of a view: a setting, and variables with a unit.
    const OWN_NAMES: &[&str] = &["admin_key", "at_s", "limit_ms", "slower_than_ms", "span_s", "value_ms"];

    /// Fields that the page does not show.
    const NOT_SHOWN: &[&str] = &[
        "added",
        "backlog_s",
        "block_tokens",
        "bytes",
        "bytes_max",
        "discovery",
        "floor_ms",
        "held_longest_ms",
        "held_tokens",
        "holders_total",
        "holds_ended",
        "load_ahead",
        "predicted_blocks",
        "reported_blocks",
        "restart",
        "source",
        "step_ms",
        "step_per_request_ms",
        "toml",
        "would_wait",
    ];

    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_').filter(|it| !it.is_empty())
    }

    #[test]
    fn the_scripts_and_the_views_have_the_same_fields() {
        let objects = crate::admin::openapi::objects();
        let fields: BTreeSet<&str> = objects.iter().flat_map(|it| it.fields).map(|it| it.name).collect();
        let scripts = ours().filter(|it| it.content_type == SCRIPT);
        let read: BTreeSet<&str> = scripts.flat_map(|it| words(text(it))).collect();
        // Names of our own are in camel case, so a name with an underscore is a field.
        let is_field = |it: &&str| it.contains('_') && it.starts_with(|it: char| it.is_ascii_lowercase());
        let unknown = read.iter().copied().filter(is_field).filter(|it| !fields.contains(it));
        assert_eq!(unknown.collect::<Vec<_>>(), OWN_NAMES, "no view has these fields");
        let unread = fields.iter().copied().filter(|it| !read.contains(it));
        assert_eq!(
            unread.collect::<BTreeSet<_>>(),
            NOT_SHOWN.iter().copied().collect(),
            "the page does not read these"
        );
    }

    #[test]
    fn the_page_has_a_sentence_for_every_word_of_the_router() {
        use maitre_dispatch::observer::decision::AttemptOutcome;

        let sentences = text(find("/page/words.js").unwrap());
        let known: BTreeSet<&str> = sentences.split(['"', ' ', ':', '\n']).collect();
        let whys = maitre_policy::Why::ALL.iter().map(|it| it.name());
        let outcomes = [
            AttemptOutcome::InFlight,
            AttemptOutcome::Answered,
            AttemptOutcome::Declined,
            AttemptOutcome::Failed,
            AttemptOutcome::BrokeOff,
            AttemptOutcome::Continued,
            AttemptOutcome::HandedOver,
            AttemptOutcome::Outpaced,
            AttemptOutcome::Left,
            AttemptOutcome::Recalled,
        ];
        let words = whys.chain(maitre_fleet::HealthState::NAMES).chain(outcomes.map(AttemptOutcome::name));
        let missing: Vec<&str> = words.filter(|it| !known.contains(it)).collect();
        assert_eq!(missing, [""; 0]);
    }
}
