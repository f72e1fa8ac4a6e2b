//! What a router must know before it sends the two legs of a request: how the prefill worker hands KV cache over, where the
//! decode worker meets it, and numbers that no other request has.

use std::time::Duration;

use http::header::HeaderValue;
use maitre_base::{HandoffStyle, hash};
use maitre_dialect::legs::sglang::{Bootstrap, Rooms};
use maitre_dialect::legs::{Transfer, mooncake, nixl, tensorrt};
use maitre_dispatch::Failure;
use maitre_net::address::{Address, Scheme};
use maitre_net::upstream::UpstreamRequest;
use tracing::debug;

use crate::lane::Lane;
use crate::link::Link;

/// Where vLLM's side channel listens unless configured.
const SIDE_CHANNEL_PORT: u16 = 5600;

/// How long a bootstrap server may take to name its engines.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest answer of a bootstrap server.
const QUERY_BYTES_MAX: usize = 1 << 20;

/// How one request is handed over.
pub(super) struct HandoffPlan {
    pub(super) style: HandoffStyle,
    /// The prefill worker as the decode worker reaches it.
    host: String,
    port: Option<u16>,
    /// Mooncake's address of the same.
    bootstrap_url: String,
    engine_id: String,
    /// Of this attempt, here or at any other router.
    id: String,
    tensor_parallel: u32,
    random: u64,
    rooms: Rooms,
    prefill_rank: Option<u32>,
}

impl HandoffPlan {
    /// Finds out what the style needs. May ask the prefill worker's bootstrap server.
    pub(super) async fn make(lane: &Lane, prefill: &Link) -> Result<HandoffPlan, Failure> {
        let style = prefill.handoff_style();
        let id = lane.state.request_ids.of_transfer();
        let random = hash::bytes(lane.state.request_ids.instance_nonce, id.as_bytes());
        let (host, configured) = match &prefill.bootstrap {
            Some(at) => (at.host.clone(), Some(at.port)),
            None => (None, None),
        };
        let host = host.unwrap_or_else(|| prefill.address.host().to_owned());
        let reported = prefill.about().disaggregation;
        let port = configured.or(reported.and_then(|it| it.bootstrap_port));
        let ranks = prefill.rank.zip(reported.filter(|it| it.dp_size > 1));
        let (rooms, prefill_rank) = match ranks {
            Some((rank, it)) if it.follows_room && rank < it.dp_size => {
                (Rooms::on_rank(random, rank, it.dp_size), None)
            }
            Some((rank, _)) => (Rooms::any(random), Some(rank)),
            None => (Rooms::any(random), None),
        };
        let mut plan = HandoffPlan {
            style,
            host,
            port,
            bootstrap_url: String::new(),
            engine_id: prefill.engine_id.clone().unwrap_or_default(),
            id,
            tensor_parallel: prefill.tensor_parallel,
            random,
            rooms,
            prefill_rank,
        };
        match style {
            HandoffStyle::NixlPush => {
                let rank = u16::try_from(prefill.rank.unwrap_or(0)).unwrap_or(u16::MAX);
                plan.port = Some(port.unwrap_or(SIDE_CHANNEL_PORT).saturating_add(rank));
                plan.engine_id = nixl::engine_id_of(&plan.engine_id, prefill.rank);
            }
            HandoffStyle::Mooncake => plan.meet_mooncake(lane, prefill).await?,
            _ => {}
        }
        Ok(plan)
    }

    /// Asks the bootstrap server of a Mooncake worker for its engine, unless it is known. A restart changes it, and makes the
    /// router forget it.
    async fn meet_mooncake(&mut self, lane: &Lane, prefill: &Link) -> Result<(), Failure> {
        let port = self.port.unwrap_or(mooncake::BOOTSTRAP_PORT);
        let address = Address::new(Scheme::Http, &self.host, port).map_err(|_| Failure::Refused)?;
        self.bootstrap_url = address.to_string();
        if !self.engine_id.is_empty() {
            return Ok(());
        }
        if let Some(known) = prefill.about().reported_engine_id {
            self.engine_id = known;
            return Ok(());
        }
        let asked = async {
            let mut upstream = lane.upstreams.open_at(&address, QUERY_TIMEOUT).await.ok()?;
            let question = UpstreamRequest::get(mooncake::QUERY, address.header(), None);
            let head = upstream.send(question).await.ok()?;
            let body = upstream.read_all(QUERY_BYTES_MAX).await.ok()?;
            let engines = mooncake::engines(&body).ok().filter(|_| head.status.is_success())?;
            let rank = prefill.rank.unwrap_or(0);
            engines.into_iter().find(|it| it.0 == rank).map(|it| it.1)
        };
        let found = tokio::time::timeout(QUERY_TIMEOUT, asked).await.ok().flatten();
        let Some(engine_id) = found else {
            prefill.failed(format!("{address}{} names no engine of this worker", mooncake::QUERY));
            debug!(worker = prefill.url, %address, "cannot ask the bootstrap server");
            return Err(Failure::Unreachable);
        };
        prefill.learn(|about| about.reported_engine_id = Some(engine_id.clone()));
        self.engine_id = engine_id;
        Ok(())
    }

    /// The same in the words of the engines.
    pub(super) fn transfer(&self) -> Transfer<'_> {
        let HandoffPlan { host, port, engine_id, id, .. } = self;
        match self.style {
            HandoffStyle::NixlPull => Transfer::NixlPull,
            HandoffStyle::NixlPush => Transfer::NixlPush(nixl::SideChannel {
                engine_id,
                host,
                port: port.unwrap_or(SIDE_CHANNEL_PORT),
                tp_size: self.tensor_parallel,
                pp_size: 1,
                request_id: id,
            }),
            HandoffStyle::Mooncake => Transfer::Mooncake(mooncake::Pairing {
                request_id: id,
                bootstrap: &self.bootstrap_url,
                engine_id,
            }),
            HandoffStyle::Sglang => Transfer::Sglang(Bootstrap {
                host,
                port: *port,
                rooms: self.rooms,
                prefill_rank: self.prefill_rank,
            }),
            HandoffStyle::TensorRt => Transfer::TensorRt { request_id: tensorrt::request_id(self.random) },
            HandoffStyle::Store => Transfer::Store,
        }
    }

    /// The request id of both legs, where engines match them by it. The client's own may be in use twice.
    pub(super) fn request_id(&self) -> Option<HeaderValue> {
        let is_matched = self.style == HandoffStyle::NixlPush;
        is_matched.then(|| HeaderValue::from_str(&self.id).ok()).flatten()
    }
}
