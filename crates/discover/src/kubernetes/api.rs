//! A client for the API server: one connection for each request.
//!
//! One list and one watch a minute need no pool, and a new connection picks up a renewed token, a new
//! certificate and another address of the server without extra code.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use maitre_net::client::{HttpClient, HttpRequest, HttpResponse};
use maitre_net::dial::Dialer;
use maitre_net::tls::TlsClientSettings;
use serde::Deserialize;
use tokio::time::timeout;

use super::ApiError;
use super::account::Account;
use crate::api_address::ApiAddress;
use crate::settings::KubernetesSettings;

/// Largest error body that is read for its message.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Maximum characters of a message that are shown.
const MESSAGE_CHARS_MAX: usize = 300;

pub(super) struct ApiClient {
    api: ApiAddress,
    account: Account,
    timeout: Duration,
}

/// A response with status 200. Dropping it closes the connection.
pub(super) struct ApiResponse(HttpResponse);

impl ApiClient {
    pub(super) fn new(settings: &KubernetesSettings, account: Account) -> Result<ApiClient, ApiError> {
        let api = settings.api.clone().map_or_else(ApiAddress::of_this_cluster, Ok);
        let api = api.map_err(|error| ApiError::Failed(error.to_string()))?;
        Ok(ApiClient { api, account, timeout: settings.timeout })
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a GET and waits for the head of a good response.
    pub(super) async fn get(&self, path: &str) -> Result<ApiResponse, ApiError> {
        let resource = path.split('?').next().unwrap_or_default();
        let failed = |why: String| ApiError::Failed(format!("get {}{resource}: {why}", self.api));
        match timeout(self.timeout, self.send(path)).await {
            Err(_) => Err(failed(format!("no answer within {:?}", self.timeout))),
            Ok(Err(ApiError::Failed(why))) => Err(failed(why)),
            Ok(response) => response,
        }
    }

    async fn send(&self, path: &str) -> Result<ApiResponse, ApiError> {
        const USER_AGENT: &str = concat!("maitre/", env!("CARGO_PKG_VERSION"));
        let request = HttpRequest::get(path)
            .header(header::ACCEPT, HeaderValue::from_static("application/json"))
            .header(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let response = self.connector().await?.send(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let response = ApiResponse(response);
        match status {
            StatusCode::OK => Ok(response),
            StatusCode::GONE => Err(ApiError::Gone),
            status => Err(ApiError::Failed(format!("{status}{}", response.message().await))),
        }
    }

    /// Uses the current token and authorities. Without TLS no token is sent.
    async fn connector(&self) -> Result<HttpClient, ApiError> {
        let address = self.api.address();
        if !address.is_tls() {
            return Ok(HttpClient::new(address.clone(), Arc::default(), None));
        }
        let authorization = self.account.authorization().await?;
        let settings =
            TlsClientSettings { ca: Some(self.account.authorities()), ..TlsClientSettings::default() };
        // Reads a file, which may be slow.
        let dialer = tokio::task::spawn_blocking(move || Dialer::load("kubernetes", &settings)).await;
        let dialer = dialer.map_err(|error| failed(&error))?.map_err(|error| failed(&error.what()))?;
        Ok(HttpClient::new(address.clone(), Arc::new(dialer), Some(authorization)))
    }
}

fn failed(error: &dyn fmt::Display) -> ApiError {
    ApiError::Failed(error.to_string())
}

impl ApiResponse {
    /// The next chunk of the body; none at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        let chunk = self.0.chunk().await;
        chunk.map_err(|error| ApiError::Failed(format!("the response broke off: {error}")))
    }

    /// The whole body.
    pub(super) async fn read_all(mut self, bytes_max: usize) -> Result<Bytes, ApiError> {
        self.0.read_all(bytes_max).await.map_err(|error| failed(&error))
    }

    /// The message of an error response, if it has the API's format.
    async fn message(self) -> String {
        #[derive(Deserialize)]
        struct StatusMessage {
            message: String,
        }
        let bytes = self.read_all(ERROR_BYTES_MAX).await.unwrap_or_default();
        match serde_json::from_slice::<StatusMessage>(&bytes) {
            Ok(status) => format!(": {}", shown(&status.message)),
            Err(_) => String::new(),
        }
    }
}

/// Text from another program, cut and on one line.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MAX).map(|it| if it.is_control() { ' ' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_from_the_server_are_cut_to_one_line() {
        assert_eq!(shown("a\nb"), "a b");
        assert_eq!(shown(&"x".repeat(1_000)).len(), MESSAGE_CHARS_MAX);
    }
}
