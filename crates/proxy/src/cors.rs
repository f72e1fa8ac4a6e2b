//! Cross-origin requests of browsers (CORS), from the origins that the operator lists.
//!
//! Without a list no origin is allowed: a browser then keeps pages of other origins from sending JSON here and from reading
//! what comes back. With one, the router answers preflights itself, because a browser sends them without a key, and
//! workers do not know the list. What a worker says about origins is replaced, because a worker sees only the router.
//!
//! Keys travel in headers and never in cookies, so credentials are not allowed.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::{Method, Request, Response};

use crate::refuse::no_content;

/// How long a browser remembers the answer to a preflight, in seconds. Chromium remembers none for more than two hours.
const PREFLIGHT_SECONDS: u32 = 600;

/// What the sender of a request may do, if it is a page in a browser.
pub(crate) enum CrossOrigin {
    /// The operator lists no origins.
    Off,
    /// Not one of the origins, or no browser at all.
    Unlisted,
    /// The value that allows it: its origin, or `*`.
    Allowed(HeaderValue),
}

impl CrossOrigin {
    pub(crate) fn of<B>(origins: &[String], request: &Request<B>) -> CrossOrigin {
        if origins.is_empty() {
            return CrossOrigin::Off;
        }
        match request.headers().get(ORIGIN) {
            _ if origins.iter().any(|it| it == "*") => CrossOrigin::Allowed(HeaderValue::from_static("*")),
            Some(origin) if origins.iter().any(|it| it.as_bytes() == origin.as_bytes()) => {
                CrossOrigin::Allowed(origin.clone())
            }
            _ => CrossOrigin::Unlisted,
        }
    }

    /// The answer to a preflight; None for any other request. An origin that is not listed gets one that allows nothing.
    pub(crate) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Bytes>> {
        let asks = |it| request.headers().contains_key(it);
        let is_preflight =
            request.method() == Method::OPTIONS && asks(ORIGIN) && asks(ACCESS_CONTROL_REQUEST_METHOD);
        if matches!(self, CrossOrigin::Off) || !is_preflight {
            return None;
        }
        let mut response = no_content();
        if matches!(self, CrossOrigin::Allowed(_)) {
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_SECONDS));
            // As asked: `*` would not include `authorization`.
            if let Some(names) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
                headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
            headers.append(VARY, HeaderValue::from_static("access-control-request-headers"));
        }
        Some(response)
    }

    /// Adds to a response what a browser must know to give it to the page.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        if matches!(self, CrossOrigin::Off) {
            // Engines allow every page by default (vLLM) or the page that asks (llama.cpp).
            headers.remove(ACCESS_CONTROL_ALLOW_ORIGIN);
            return;
        }
        for name in
            [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_EXPOSE_HEADERS]
        {
            headers.remove(name);
        }
        if !matches!(self, CrossOrigin::Allowed(it) if it == "*") {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if let CrossOrigin::Allowed(origin) = self {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_list_no_worker_allows_an_origin() {
        let request = Request::builder().header(ORIGIN, "https://evil.example.com").body(()).unwrap();
        for allowed in ["*", "https://evil.example.com"] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static(allowed));
            CrossOrigin::of(&[], &request).mark(&mut headers);
            assert!(headers.is_empty(), "{headers:?}");
        }
    }
}
