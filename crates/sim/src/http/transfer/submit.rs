//! Requests and their legs: what a request asks of the connector, and how its job is submitted.

use maitre_base::Instant;
use serde_json::Value;
use tokio::sync::oneshot;

use super::bootstrap::{self, RoomRole};
use super::{Connector, Fetch, Leg, Order, PromptIdentity, Source, params};
use crate::engine::transfer::HoldId;
use crate::engine::{Job, Reject, Transfer};
use crate::http::HostState;
use crate::http::driver::{Ticket, TransferPlan};
use crate::http::error::ApiError;
use crate::http::request::TransferFields;
use crate::kv;

impl HostState {
    /// Which leg this request is. Without a connector its parameters mean nothing, as in vLLM.
    pub(in crate::http) fn leg(&self, fields: &TransferFields) -> Result<Leg, ApiError> {
        let Some(transfer) = &self.transfer else { return Ok(Leg::Plain) };
        match (transfer.connector(), fields.kv_transfer_params.as_deref()) {
            (Connector::Nixl(_), Some(text)) => params::nixl_leg(text),
            (Connector::Peer(_), Some(text)) => params::peer_leg(text),
            (Connector::Nixl(_) | Connector::Peer(_), None) => Ok(Leg::Plain),
            (Connector::Bootstrap(config), _) => params::room(fields).map(|room| match config.role {
                RoomRole::Prefill => Leg::Room(room),
                RoomRole::Decode => Leg::Decode(Source::Room(room)),
            }),
        }
    }

    /// The content of `/server_info`, which vLLM does not have.
    pub(in crate::http) fn server_info(&self) -> Option<Value> {
        let transfer = self.transfer.as_ref()?;
        match transfer.connector() {
            Connector::Bootstrap(config) => Some(bootstrap::server_info(self, transfer, config)),
            Connector::Nixl(_) | Connector::Peer(_) => None,
        }
    }

    /// Submits a job for its leg.
    pub(in crate::http) async fn submit_leg(
        &self,
        arrived: Instant,
        job: Job,
        leg: Leg,
    ) -> Result<Ticket, ApiError> {
        let connector = self.transfer.as_ref().map(|it| it.connector());
        match (leg, connector) {
            (Leg::Prefill, Some(Connector::Nixl(config))) => {
                let transfer = Transfer::Out { lease: config.lease };
                let plan = TransferPlan { transfer, ..TransferPlan::default() };
                Ok(self.driver.submit_transfer(arrived, job, plan)?)
            }
            (Leg::Decode(source), _) => Ok(self.submit_decode(arrived, job, source)?),
            (Leg::Room(address), Some(Connector::Bootstrap(config))) => {
                bootstrap::prefill(self, config, arrived, job, address.room).await
            }
            _ => Ok(self.driver.submit(arrived, job)?),
        }
    }

    /// The request failed before the engine had it: its source need not be kept.
    pub(in crate::http) fn release_source(&self, leg: Leg) {
        if let (Leg::Decode(source), Some(transfer)) = (leg, &self.transfer) {
            transfer.order(Order::Release(source));
        }
    }

    /// The value of `kv_transfer_params` in the answer to a prefill leg. `null` if nothing is held.
    pub(in crate::http) fn transfer_params(
        &self,
        request_id: &str,
        ticket: &Ticket,
        cached_tokens: u32,
    ) -> String {
        let none = || "null".to_owned();
        let Some(transfer) = &self.transfer else { return none() };
        let id = HoldId::from(ticket.job());
        let Some(hold) = self.driver.hold(id) else { return none() };
        params::render(&params::HandOver {
            engine_id: transfer.engine_id(self),
            request_id: params::request_id(request_id, id),
            host: transfer.host(),
            port: transfer.addr.port(),
            blocks: hold.blocks,
            num_tokens: hold.tokens,
            cached_tokens,
        })
    }

    fn submit_decode(&self, arrived: Instant, job: Job, source: Source) -> Result<Ticket, Reject> {
        let Some(transfer) = &self.transfer else { return self.driver.submit(arrived, job) };
        let (fetch, start) = oneshot::channel();
        let (is_wanted, wanted) = oneshot::channel();
        let prompt = PromptIdentity::of(&job, &source, self.config.engine.profile.block_tokens.max(1));
        let plan = TransferPlan {
            transfer: Transfer::In,
            cached_tokens: source.cached_tokens(),
            fetch: Some(fetch),
            wanted: Some(is_wanted),
        };
        let ticket = self.driver.submit_transfer(arrived, job, plan)?;
        transfer.order(Order::Fetch(Fetch { source, prompt, start, wanted }));
        Ok(ticket)
    }
}

impl PromptIdentity {
    fn of(job: &Job, source: &Source, block_tokens: u32) -> PromptIdentity {
        let names = match source {
            Source::Nixl(_) | Source::Room(_) => Vec::new(),
            Source::Peer(_) => {
                // The last token is computed in any case.
                let tokens = &job.prompt[..job.prompt.len().saturating_sub(1)];
                kv::names(&job.root, tokens, block_tokens as usize).collect()
            }
        };
        PromptIdentity { seed: job.seed, names }
    }
}

impl Source {
    fn cached_tokens(&self) -> Option<u32> {
        match self {
            Source::Nixl(remote) => remote.cached_tokens,
            Source::Peer(_) => None,
            // SGLang counts what it finds in its own cache, and it has no cache here.
            Source::Room(_) => Some(0),
        }
    }
}
