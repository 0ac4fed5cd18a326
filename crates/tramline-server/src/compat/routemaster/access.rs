//! Who calls: the root, a client by the name of its token, or somebody on this machine while there are no tokens.

use super::words::needs;
use crate::http::access::secrets;
use crate::http::app::Shared;
use crate::http::caller::{Caller, forbidden};
use crate::http::events::READ;
use crate::http::problem::{Answer, Problem};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tramline::{Scope, Subscription};

/// Who calls while there are no tokens and no user name is given.
const NOBODY: &str = "anonymous";
/// The longest token, and the longest name of one.
pub(super) const LONGEST: usize = 64;

/// True for what can be a token, or the name of one.
pub(super) fn is_plain(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b":_-".contains(&b);
    !text.is_empty() && text.len() <= LONGEST && text.bytes().all(plain)
}

/// The name that somebody gave while there are no tokens.
#[derive(Clone)]
struct Local(String);

/// While nobody needs a token, the user name is not one: it says who the client is.
pub(super) async fn without_tokens(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    if app.access.is_open() {
        let name = match secrets(request.headers()) {
            Ok(names) => names.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| NOBODY.into()),
            Err(problem) => return problem.into_response(),
        };
        if !is_plain(&name) {
            return needs("a user name of lower case letters, digits and : _ -").into_response();
        }
        request.headers_mut().remove(header::AUTHORIZATION);
        request.extensions_mut().insert(Local(name));
    }
    next.run(request).await
}

/// Who calls.
pub(super) struct Client {
    caller: Caller,
    kind: Kind,
}

/// What a caller is to Routemaster.
enum Kind {
    /// May do everything but act as a client.
    Root,
    /// Has a token that was created by this API.
    Client,
    /// Has a token of Tramline's own API, which may be limited to scopes and patterns.
    Scoped,
    /// Needs no token: root and client in one.
    Local(String),
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Client> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let kind = match parts.extensions.get::<Local>() {
            Some(Local(name)) => Kind::Local(name.clone()),
            None if caller.everywhere().is_ok() => Kind::Root,
            None if caller.is_listed() => Kind::Client,
            None => Kind::Scoped,
        };
        Ok(Client { caller, kind })
    }
}

impl Client {
    /// The name by which it owns topics and subscribes.
    fn name(&self) -> &str {
        match &self.kind {
            Kind::Local(name) => name,
            _ => self.caller.name(),
        }
    }

    pub(super) fn is_root(&self) -> bool {
        matches!(self.kind, Kind::Root | Kind::Local(_))
    }

    /// True for the client of this name.
    pub(super) fn is(&self, name: &str) -> bool {
        !matches!(self.kind, Kind::Root) && self.name() == name
    }

    /// Checks that it is the root. Gives its name, for records of who did what.
    pub(super) fn root(&self) -> Answer<&str> {
        if self.is_root() { Ok(self.name()) } else { Err(needs("a root token")) }
    }

    /// Checks that it is a client. Gives its name.
    fn client(&self) -> Answer<&str> {
        match self.kind {
            Kind::Root => Err(needs("a client token")),
            _ => Ok(self.name()),
        }
    }

    /// Checks that it may publish in a topic. Gives its name.
    pub(super) fn publishes(&self, topic: &str) -> Answer<&str> {
        let name = self.client()?;
        if matches!(self.kind, Kind::Scoped) {
            self.caller.topic(&[Scope::Publish], topic)?;
        }
        Ok(name)
    }

    /// Checks that it may have a subscription of these topics. Gives its name.
    pub(super) fn subscribes<T: AsRef<str>>(&self, topics: &[T]) -> Answer<&str> {
        let name = self.client()?;
        if matches!(self.kind, Kind::Scoped) {
            self.caller.subscription(&[Scope::Consume], name)?;
            self.caller.consumes(topics)?;
        }
        Ok(name)
    }

    /// Checks that it may delete a topic: the root may, and the owner.
    pub(super) fn deletes(&self, topic: &str, owner: Option<&str>) -> Answer<()> {
        match self.is_root() || (owner == Some(self.name()) && self.publishes(topic).is_ok()) {
            true => Ok(()),
            false => Err(forbidden()),
        }
    }

    /// True if it may know of a topic.
    pub(super) fn sees_topic(&self, topic: &str) -> bool {
        !matches!(self.kind, Kind::Scoped) || self.caller.sees_topic(topic)
    }

    /// Checks that it may know of subscribers at all.
    pub(super) fn looks(&self) -> Answer<()> {
        if matches!(self.kind, Kind::Scoped) { self.caller.needs(READ) } else { Ok(()) }
    }

    /// True if it may know of a subscriber.
    pub(super) fn sees(&self, subscription: &Subscription) -> bool {
        !matches!(self.kind, Kind::Scoped) || self.caller.sees(subscription)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_their_names_are_short_and_plain() {
        for good in ["a", "web-app", "a:b_c-9", &"x".repeat(64)] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", "A", "a b", "a/b", "a.b", "ü", "a\n", &"x".repeat(65)] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }
}
