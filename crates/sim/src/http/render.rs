//! Renders an answer in its API's format: a file per API does the work.

use super::answer::{PlannedAnswer, StreamTemplate};
use super::api_format::ApiFormat;
use super::driver::AnswerProgress;
use super::error::ApiError;
use super::{chat, completion, messages, responses};

impl PlannedAnswer {
    pub(super) fn template(&self, progress: AnswerProgress) -> StreamTemplate {
        match self.api {
            ApiFormat::Chat => chat::template(self),
            ApiFormat::Completion | ApiFormat::Generate => completion::template(self),
            ApiFormat::Responses => responses::template(self),
            ApiFormat::Messages => messages::template(self, progress),
        }
    }

    /// The events after the last token.
    pub(super) fn closing(&self, progress: AnswerProgress) -> Vec<String> {
        match self.api {
            ApiFormat::Chat => chat::closing(self, progress),
            ApiFormat::Completion | ApiFormat::Generate => completion::closing(self, progress),
            ApiFormat::Responses => responses::closing(self, progress),
            ApiFormat::Messages => messages::closing(self, progress),
        }
    }

    /// The events of an answer that fails before its first token: what opens it, and the error.
    pub(super) fn failure(&self, progress: AnswerProgress) -> Vec<String> {
        let mut events = self.template(progress).opening;
        events.truncate(1);
        let error = ApiError::internal();
        match self.api {
            ApiFormat::Messages => events.push(messages::failure()),
            _ => events.extend([error.to_event(), "data: [DONE]\n\n".to_owned()]),
        }
        events
    }

    /// The answer in one piece.
    pub(super) fn whole(&self, progress: AnswerProgress) -> String {
        match self.api {
            ApiFormat::Chat => chat::whole(self, progress),
            ApiFormat::Completion => completion::whole(self, progress),
            ApiFormat::Generate => completion::generated(self, progress),
            ApiFormat::Responses => self.with_params(responses::whole(self, progress)),
            ApiFormat::Messages => self.with_params(messages::whole(self, progress)),
        }
    }

    /// The same object with the transfer parameters, if there are any.
    fn with_params(&self, object: String) -> String {
        match (self.kv_transfer_params.as_str(), object.strip_suffix('}')) {
            ("null", _) | (_, None) => object,
            (params, Some(open)) => format!(r#"{open},"kv_transfer_params":{params}}}"#),
        }
    }
}
