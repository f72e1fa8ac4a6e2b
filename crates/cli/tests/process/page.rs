//! `maitre replay --html`: a complete page that loads nothing and is the same every time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::program::run;

/// Three prompts with a shared beginning, in two parts.
const TRACE: &str = r#"{"timestamp":0,"output_length":20,"prompt":[[7,2000],[31,155]],"answer":1,"part":0}
{"timestamp":4000,"output_length":30,"prompt":[[7,2000],[32,90]],"answer":2,"part":0}
{"timestamp":9000,"output_length":10,"prompt":[[7,2000],[33,64]],"answer":3,"part":1}
"#;

/// Tags without an end tag.
const VOID: &[&str] = &["!DOCTYPE", "meta", "link"];

/// A folder for each test, with a trace of this name.
fn trace(folder: &str, name: &str) -> (PathBuf, String) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    let trace = folder.join(name);
    fs::write(&trace, TRACE).unwrap();
    (folder, trace.to_str().unwrap().to_owned())
}

fn replay(trace: &str, page: &Path, more: &[&str]) -> Output {
    run(&[&["replay", "--trace", trace, "--workers", "2", "--html", page.to_str().unwrap()], more].concat())
}

#[track_caller]
fn page(trace: &str, path: &Path, more: &[&str]) -> String {
    let output = replay(trace, path, more);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(path).unwrap()
}

/// The charts' data: one object for each chart.
#[track_caller]
fn plots(html: &str) -> Vec<serde_json::Value> {
    let data = html.split("<script type=\"application/json\" id=\"plots\">").nth(1).expect("no data");
    serde_json::from_str(data.split("</script>").next().unwrap()).unwrap()
}

/// Checks that every tag is closed, in order, and that attributes are quoted.
#[track_caller]
fn check_tags(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(begin) = rest.find('<') {
        let end = begin + rest[begin..].find('>').expect("a tag without end");
        let tag = &rest[begin + 1..end];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of <{tag}>");
        assert!(!tag.contains('<'), "<{tag}>");
        match tag {
            _ if tag.starts_with('/') => assert_eq!(
                open.pop(),
                Some(name),
                "before: {}",
                &html[html.len() - rest.len()..][..begin.min(200)]
            ),
            _ if tag.ends_with('/') || VOID.contains(&name) => {}
            _ => open.push(name),
        }
        rest = &rest[end + 1..];
        // The content of a script is not markup.
        if name == "script" && !tag.starts_with('/') {
            rest = &rest[rest.find("</script>").expect("a script without end")..];
        }
    }
    assert!(open.is_empty(), "never ended: {open:?}");
}

#[test]
fn a_page_is_complete_and_loads_nothing() {
    let (folder, trace) = trace("page-whole", "trace.jsonl");
    let path = folder.join("page.html");
    let output = replay(&trace, &path, &["--strategy", "all", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let html = fs::read_to_string(&path).unwrap();
    check_tags(&html);
    // The URL of uPlot, in its comment, and the name of a language: neither is loaded.
    let rest =
        html.replace("https://github.com/leeoniya/uPlot", "").replace("http://www.w3.org/2000/svg", "");
    for absent in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!rest.contains(absent), "{absent}");
    }
    assert!(html.contains("default-src 'none'"), "the browser may load something");
    for row in report["rows"].as_array().unwrap() {
        let name = row["strategy"].as_str().unwrap();
        assert!(html.contains(&format!("<th scope=\"row\">{name}")), "{name} is not in the table");
        assert!(html.contains(&format!("Load of the workers under {name}")), "{name} has no chart");
    }
    assert!(html.contains("Parts of the trace"));
    assert!(html.contains("has the lowest mean TTFT"));
    let drawn = html.split("<script>").next().unwrap();
    assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "a number is none");
}

#[test]
fn the_page_has_the_numbers_of_the_json() {
    let (folder, trace) = trace("page-numbers", "trace.jsonl");
    let path = folder.join("page.html");
    let output = replay(&trace, &path, &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let html = fs::read_to_string(&path).unwrap();
    let plots = plots(&html);
    let ids: Vec<&str> = plots.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["ttft", "tokens", "load0", "load1", "load2", "hits"]);
    for plot in &plots {
        let (id, count) = (plot["id"].as_str().unwrap(), plot["at"].as_array().unwrap().len());
        assert!(html.contains(&format!("id=\"{id}\"")), "{id} has no place");
        for series in plot["series"].as_array().unwrap() {
            assert_eq!(series["values"].as_array().unwrap().len(), count, "{id}: {}", series["name"]);
        }
    }
    let series = |id: &str, name: &str| {
        let plot = plots.iter().find(|it| it["id"] == id).unwrap();
        plot["series"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap().clone()
    };
    for row in report["rows"].as_array().unwrap() {
        let name = row["strategy"].as_str().unwrap();
        for (id, field) in [("hits", "hit_ratio"), ("tokens", "output_tokens_per_s")] {
            let (shown, value) =
                (series(id, name)["summary"].as_f64().unwrap(), row[field].as_f64().unwrap());
            assert!((shown - value).abs() <= value * 1e-4, "{name}: {field} is {value}, not {shown}");
        }
        let cell = format!("data-v=\"{}\"", row["ttft_mean_s"].as_f64().unwrap());
        assert!(html.contains(&cell), "{name}: {cell} is not in the table");
        // All answers arrive within the chart's longest time.
        assert_eq!(series("ttft", name)["values"].as_array().unwrap().last().unwrap(), 1.0, "{name}");
    }
}

#[test]
fn classes_and_tenants_are_in_the_page_the_table_and_the_json() {
    let (folder, _) = trace("page-classes", "trace.jsonl");
    let path = folder.join("page.html");
    let line =
        "hot:seconds=4,qps=5,shared=0,out=20,classes=interactive:1;batch:1,tenants=acme:3;b:1,deadline=60";
    let output = replay(line, &path, &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rows"][0]["deadlines_met_ratio"], 1.0);
    let names = |rows: &str, key: &str| -> Vec<String> {
        let rows = report[rows].as_array().unwrap().iter();
        rows.take(2).map(|it| it[key].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("classes", "class"), ["batch", "interactive"]);
    assert_eq!(names("tenants", "tenant"), ["acme", "b"]);
    let html = fs::read_to_string(&path).unwrap();
    check_tags(&html);
    for present in ["<h2>Classes</h2>", "<h2>Tenants</h2>", "<th scope=\"row\">acme</th>", "in time"] {
        assert!(html.contains(present), "{present}");
    }
    let table = String::from_utf8(replay(line, &path, &[]).stdout).unwrap();
    for present in ["\n  class batch ", "\n  tenant acme ", "in time"] {
        assert!(table.contains(present), "{table}");
    }
}

#[test]
fn a_sweep_has_charts_over_speeds() {
    let (folder, trace) = trace("page-sweep", "trace.jsonl");
    let html = page(&trace, &folder.join("page.html"), &["--speed", "4,1"]);
    check_tags(&html);
    assert!(html.contains("Mean time to first token, by load"));
    let plots = plots(&html);
    let served = plots.iter().find(|it| it["id"] == "served").unwrap();
    assert_eq!(served["at"].as_array().unwrap().len(), 3, "zero and two speeds");
    assert!(html.contains("1× and 4×"));
}

#[test]
fn the_same_replay_makes_the_same_bytes() {
    let (folder, trace) = trace("page-same", "trace.jsonl");
    let one = page(&trace, &folder.join("one.html"), &["--jobs", "1"]);
    let other = page(&trace, &folder.join("other.html"), &["--jobs", "3"]);
    assert_eq!(one, other);
    // Overwritten, and no temporary file is left.
    assert_eq!(page(&trace, &folder.join("one.html"), &[]), one);
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["one.html", "other.html", "trace.jsonl"]);
}

#[test]
fn names_from_outside_are_escaped() {
    let (folder, trace) = trace("page-name", "<script>alert('1')&\"x.jsonl");
    let html = page(&trace, &folder.join("page.html"), &[]);
    check_tags(&html);
    assert_eq!(html.matches("<script").count(), 3, "data, uPlot and our own");
    assert!(html.contains("&lt;script&gt;alert(&#39;1&#39;)&amp;&quot;x.jsonl"));
}

#[test]
fn json_and_the_page_come_together() {
    let (folder, trace) = trace("page-json", "trace.jsonl");
    let path = folder.join("page.html");
    let output = replay(&trace, &path, &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 3);
    assert!(path.exists());
}

#[test]
fn a_path_that_cannot_be_written_is_named() {
    let (folder, trace) = trace("page-place", "trace.jsonl");
    for (place, expected) in [("absent/page.html", "its folder does not exist"), (".", "not a file")] {
        let output = replay(&trace, &folder.join(place), &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--html") && said.contains(place) && said.contains(expected), "{said}");
    }
}
