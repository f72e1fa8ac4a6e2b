//! The two text formats of `/metrics`: OpenMetrics for scrapers that ask for it, Prometheus's classic text for the rest.
//!
//! prometheus-client writes OpenMetrics, which names the family of a counter without the `_total` of its samples. A
//! reader of the classic text takes such samples for a family without help and type: `promtool check metrics` counted 21
//! of them. So the classic text names counters in full, and has no `# UNIT` and no `# EOF`.

use http::header::{ACCEPT, HeaderMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    Classic,
    OpenMetrics,
}

impl MetricsFormat {
    /// The format that a scraper prefers. OpenMetrics only if it is named: `*/*` is what curl sends.
    pub(crate) fn of(headers: &HeaderMap) -> MetricsFormat {
        let (mut open, mut classic) = (0.0_f32, 0.0_f32);
        let values = headers.get_all(ACCEPT).iter().filter_map(|it| it.to_str().ok());
        for range in values.flat_map(|it| it.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let best = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => &mut open,
                "text/plain" | "text/*" | "*/*" => &mut classic,
                _ => continue,
            };
            let quality = parts.find_map(|it| it.strip_prefix("q=")).map_or(Ok(1.0), str::parse);
            *best = best.max(quality.unwrap_or(0.0));
        }
        match open > 0.0 && open >= classic {
            true => MetricsFormat::OpenMetrics,
            false => MetricsFormat::Classic,
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::Classic => "text/plain; version=0.0.4; charset=utf-8",
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// A page of OpenMetrics in this format.
    pub(crate) fn write(self, open: String) -> String {
        match self {
            MetricsFormat::Classic => classic(&open),
            MetricsFormat::OpenMetrics => open,
        }
    }
}

fn classic(open: &str) -> String {
    let mut page = String::with_capacity(open.len() + open.len() / 16);
    // The help comes first, and the name that it needs depends on the type.
    let mut help = "";
    for line in open.lines() {
        let about = line.strip_prefix("# ").map(|it| it.split_once(' ').unwrap_or((it, "")));
        match about {
            Some(("HELP", family)) => help = family.split_once(' ').map_or("", |it| it.1),
            Some(("TYPE", family)) => {
                let (name, kind) = family.split_once(' ').unwrap_or((family, "untyped"));
                let suffix = if kind == "counter" { "_total" } else { "" };
                for piece in ["# HELP ", name, suffix, " ", help, "\n"] {
                    page.push_str(piece);
                }
                for piece in ["# TYPE ", name, suffix, " ", kind, "\n"] {
                    page.push_str(piece);
                }
            }
            Some(_) => {}
            None => {
                page.push_str(line);
                page.push('\n');
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, expected: MetricsFormat) {
        let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
        assert_eq!(MetricsFormat::of(&headers), expected, "{accept}");
    }

    #[test]
    fn a_scraper_gets_the_format_that_it_prefers() {
        use MetricsFormat::{Classic, OpenMetrics};
        // Prometheus 3, Prometheus 2, and one that is set to the classic text.
        check(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OpenMetrics,
        );
        check(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OpenMetrics,
        );
        check("text/plain;version=0.0.4;q=1,*/*;q=0.1", Classic);
        check("*/*", Classic);
        check("application/json", Classic);
        check("Application/OpenMetrics-Text", OpenMetrics);
        check("application/openmetrics-text; q=0.2, text/plain", Classic);
        check("application/openmetrics-text;q=0, text/plain;q=0", Classic);
        check("application/openmetrics-text;q=much", Classic);
        check("", Classic);
        assert_eq!(MetricsFormat::of(&HeaderMap::new()), Classic);
    }

    #[test]
    fn the_classic_text_names_counters_in_full() {
        let open = "# HELP a Requests.\n# TYPE a counter\na_total{b=\"# HELP\"} 1\n\
                    # HELP c_seconds Time, and more.\n# TYPE c_seconds histogram\n# UNIT c_seconds seconds\n\
                    c_seconds_sum 0.5\n# EOF\n";
        let expected = "# HELP a_total Requests.\n# TYPE a_total counter\na_total{b=\"# HELP\"} 1\n\
                        # HELP c_seconds Time, and more.\n# TYPE c_seconds histogram\nc_seconds_sum 0.5\n";
        assert_eq!(classic(open), expected);
    }
}
