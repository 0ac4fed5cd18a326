//! A request about one tally.

use crate::http::app::Shared;
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::access;
use crate::http::tallies::number::InPath;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use serde::de::DeserializeOwned;
use tramline::{Scope, TallyId};

/// Who asks for what, of the tally in the path. The body is read when it is clear that the caller may.
pub(crate) struct About {
    pub(crate) app: Shared,
    pub(crate) tally: TallyId,
    pub(crate) headers: HeaderMap,
    caller: Caller,
    body: Body,
}

impl FromRequest<Shared> for About {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Answer<About> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        let InPath(tally) = InPath::from_request_parts(&mut parts, app).await?;
        Ok(About { app: app.clone(), tally, headers: parts.headers, caller, body })
    }
}

impl About {
    /// What the body says, for callers with one of some scopes in the tally.
    pub(crate) async fn read<T: DeserializeOwned>(&mut self, any: &[Scope]) -> Answer<T> {
        access::check(&self.app, &self.caller, any, self.tally).await?;
        let body = self.app.read(&self.headers, std::mem::take(&mut self.body)).await?;
        body::parse(&body)
    }
}
