//! Workers: those that the other router lists or discovers, and their parts in prefill/decode disaggregation.

use maitre_base::{HandoffStyle, Role};
use maitre_discover::WorkerSource;
use maitre_discover::source::{KubernetesSource, KubernetesTarget, Port};
use maitre_net::worker_url::WorkerOptions;

use super::Draft;
use crate::compat::flag::Old;
use crate::compat::table::MANIFEST;

/// The default port of discovered workers.
const WORKER_PORT: &str = "80";
/// What stands for no port after a prefill worker.
const NO_PORT: &str = "none";
/// How KV cache travels, for vllm-router.
const CONNECTOR: &str = "--kv-connector";
/// The flags that name workers or places to find some.
const NAMING: [&str; 6] = [
    "--worker-urls",
    "--prefill",
    "--decode",
    "--service-discovery",
    "--discovery-provider",
    "--vllm-discovery-address",
];

impl Draft<'_> {
    /// The flag that makes the other router send prompts and answers to different workers.
    fn split_flag(&self) -> &'static str {
        match self.old {
            Old::Sglang => "--pd-disaggregation",
            Old::VllmRouter => "--vllm-pd-disaggregation",
        }
    }

    pub(super) fn is_split(&self) -> bool {
        self.has(self.split_flag())
    }

    /// How prefill and decode workers hand KV cache over: as the other router drives them. None: not a way of ours.
    fn style(&self) -> Option<HandoffStyle> {
        match (self.old, self.one(CONNECTOR)) {
            (Old::Sglang, _) => Some(HandoffStyle::Sglang),
            (Old::VllmRouter, None | Some("nixl")) => Some(HandoffStyle::NixlPull),
            (Old::VllmRouter, Some("mooncake")) => Some(HandoffStyle::Mooncake),
            (Old::VllmRouter, Some(_)) => None,
        }
    }

    /// The options of every worker with this role.
    fn options(&self, role: Role) -> WorkerOptions {
        let ranks = self.ranks().and_then(|it| it.parse().ok()).unwrap_or(1);
        let transfer = if role == Role::Both { None } else { self.style() };
        WorkerOptions { ranks, role, transfer, ..WorkerOptions::default() }
    }

    pub(super) fn workers(&mut self) {
        if let Some(ranks) = self.ranks().map(str::to_owned)
            && let Err(what) = WorkerOptions::default().set("ranks", &ranks)
        {
            self.wrong("--intra-node-data-parallel-size", &what.to_string());
        }
        if self.is_split() && self.style().is_none() {
            self.wrong(
                CONNECTOR,
                "write nixl or mooncake: Maitre drives no other connector of this router's",
            );
        }
        let (workers, flag) = match self.is_split() {
            true => (self.pairs(), "--prefill, --decode"),
            false => (self.plain(), "--worker-urls"),
        };
        if !workers.is_empty() {
            self.set("workers", workers.join(","), flag);
        }
    }

    /// Workers that serve whole requests.
    fn plain(&mut self) -> Vec<String> {
        for flag in ["--prefill", "--decode", "--decode-policy", "--prefill-selector", "--decode-selector"] {
            if self.has(flag) {
                let what = format!("without {} it has no effect", self.split_flag());
                self.left(flag, &what);
            }
        }
        let options = self.options(Role::Both);
        let urls = self.words("--worker-urls");
        urls.iter().filter_map(|url| self.worker("--worker-urls", url, &options)).collect()
    }

    /// Workers that share each request: one computes the prompt, another answers.
    fn pairs(&mut self) -> Vec<String> {
        if self.has("--worker-urls") {
            let what = format!("with {} it has no effect", self.split_flag());
            self.left("--worker-urls", &what);
        }
        let mut workers = Vec::new();
        let prefill = self.given.iter().filter(|it| it.flag.is_called("--prefill"));
        for words in prefill.map(|it| &it.values) {
            let mut options = self.options(Role::Prefill);
            match words.as_slice() {
                [url] => workers.extend(self.worker("--prefill", url, &options)),
                [url, port] => {
                    self.bootstrap(&mut options, port);
                    workers.extend(self.worker("--prefill", url, &options));
                }
                _ => self.wrong("--prefill", "write --prefill URL or --prefill URL PORT for each worker"),
            }
        }
        let options = self.options(Role::Decode);
        for url in self.words("--decode") {
            workers.extend(self.worker("--decode", &url, &options));
        }
        workers
    }

    fn bootstrap(&mut self, options: &mut WorkerOptions, port: &str) {
        if port.eq_ignore_ascii_case(NO_PORT) {
            return;
        }
        if options.transfer == Some(HandoffStyle::NixlPull) {
            return self.left("--prefill", &format!("{port}: NIXL needs no bootstrap port"));
        }
        if let Err(what) = options.set("bootstrap", port) {
            self.wrong("--prefill", &what.to_string());
        }
    }

    /// A worker in our format; none, with a note, if Maitre cannot connect to it.
    fn worker(&mut self, flag: &str, url: &str, options: &WorkerOptions) -> Option<String> {
        let url = plain_url(url);
        if !url.starts_with("http://") && !url.starts_with("https://") {
            self.left(flag, &format!("{url}: workers must use HTTP or HTTPS"));
            return None;
        }
        Some(format!("{url}{}", query(options)))
    }

    pub(super) fn discovery(&mut self) {
        match self.one("--discovery-provider") {
            Some("kubernetes") => {}
            Some("file") => return self.left("--discovery-provider", MANIFEST),
            Some(_) => return self.wrong("--discovery-provider", "write kubernetes or file"),
            None if self.has("--service-discovery") => {}
            None => return,
        }
        let Some(namespace) = self.one("--service-discovery-namespace").map(str::to_owned) else {
            let what = "without it all namespaces were watched; Maitre watches one: set it";
            return self.wrong("--service-discovery-namespace", what);
        };
        let sources: Vec<(&str, Role)> = match self.is_split() {
            true => vec![("--prefill-selector", Role::Prefill), ("--decode-selector", Role::Decode)],
            false => vec![("--selector", Role::Both)],
        };
        if self.is_split() && self.has("--selector") {
            let what = format!("with {} it has no effect", self.split_flag());
            self.left("--selector", &what);
        }
        let port: Port = match self.one("--service-discovery-port").unwrap_or(WORKER_PORT).parse() {
            Ok(port) => port,
            Err(what) => return self.wrong("--service-discovery-port", &what),
        };
        let mut found = Vec::new();
        for (selector, role) in sources {
            let labels = self.words(selector);
            if labels.is_empty() {
                let what =
                    format!("without {selector} all Pods would be workers, which Maitre does not support");
                self.left("--service-discovery", &what);
            } else if labels.iter().all(|it| it.contains('=')) {
                let options = self.options(role);
                found.push(pods(namespace.clone(), &labels, port.clone(), options).to_string());
            } else {
                self.wrong(selector, "not a label; write key=value for each");
            }
        }
        if !found.is_empty() {
            self.set("discovery.from", found.join(","), "--service-discovery");
        }
    }

    /// Where workers were named and none could be carried over, nothing would be served.
    pub(super) fn left_without_workers(&mut self) {
        let names_one = |flag: &&str| match *flag {
            "--worker-urls" => !self.words(flag).is_empty(),
            flag => self.has(flag),
        };
        let named =
            if self.is_split() { Some(self.split_flag()) } else { NAMING.into_iter().find(names_one) };
        // Separate encode engines are refused with a reason of their own.
        let Some(flag) = named.filter(|_| !self.has("--epd-disaggregation")) else { return };
        let carried =
            ["workers", "discovery.from"].map(|key| self.set.get(key).map_or("", |it| &it.0)).join(",");
        let what = match self.is_split() {
            true if !carried.contains("role=prefill") => "no prefill worker is left",
            true if !carried.contains("role=decode") => "no decode worker is left",
            false if carried == "," => "no worker is left",
            _ => return,
        };
        self.missing.push(format!("{flag}: {what}, and Maitre cannot start without one"));
    }

    /// How many workers answer, each rank counted as one.
    pub(super) fn answering(&self) -> usize {
        let ranks = self.ranks().and_then(|it| it.parse().ok()).unwrap_or(1);
        let flag = if self.is_split() { "--decode" } else { "--worker-urls" };
        self.all(flag).map_or(0, |it| it.len()).saturating_mul(ranks)
    }

    /// Data-parallel ranks of each engine, if it has more than one.
    fn ranks(&self) -> Option<&str> {
        self.one("--intra-node-data-parallel-size").filter(|&it| it != "1")
    }
}

/// A worker's address in our format: with its scheme, without a trailing slash.
fn plain_url(url: &str) -> String {
    let url = url.trim_end_matches('/');
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

/// The options as they follow a URL.
fn query(options: &WorkerOptions) -> String {
    let pairs: Vec<String> = options.pairs().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// A source of workers: Pods that have all these labels.
fn pods(namespace: String, labels: &[String], port: Port, options: WorkerOptions) -> WorkerSource {
    let kind = KubernetesTarget::Pods(labels.join(","));
    WorkerSource::Kubernetes(KubernetesSource { namespace: Some(namespace), kind, port: Some(port), options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_one_item_of_a_list() {
        let labels = ["app=vllm".to_owned(), "tier=gpu".to_owned()];
        let source = pods("ml".to_owned(), &labels, Port::Number(8000), WorkerOptions::default());
        assert_eq!(source.to_string(), "kubernetes:ml?pods=app%3Dvllm%2Ctier%3Dgpu&port=8000");
    }

    #[test]
    fn a_worker_may_be_written_in_three_ways() {
        for url in ["a:8000", "http://a:8000", "http://a:8000/"] {
            assert_eq!(plain_url(url), "http://a:8000");
        }
    }
}
