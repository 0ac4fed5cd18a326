//! The caller of a request, and what its token allows.

use crate::http::problem::{Answer, Problem};
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use std::collections::HashSet;
use std::sync::Arc;
use tramline::{Pattern, Scope, Subscription, Time, Token};

/// The caller of a request, and what it may do.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Arc<Rights>);

#[derive(Debug)]
struct Rights {
    name: String,
    scopes: Vec<Scope>,
    topics: Option<Vec<Pattern>>,
    subscriptions: Option<Vec<Pattern>>,
    expires_at: Option<Time>,
    is_listed: bool,
}

impl Caller {
    /// Somebody who may do everything.
    pub(crate) fn all_mighty(name: &str) -> Caller {
        Caller(Arc::new(Rights {
            name: name.to_owned(),
            scopes: vec![Scope::Admin],
            topics: None,
            subscriptions: None,
            expires_at: None,
            is_listed: false,
        }))
    }

    pub(crate) fn of(token: Token) -> Caller {
        Caller(Arc::new(Rights {
            name: token.name,
            scopes: token.scopes,
            topics: token.topics,
            subscriptions: token.subscriptions,
            expires_at: token.expires_at,
            is_listed: token.sealed.is_some(),
        }))
    }

    /// True from the moment on at which the token ends.
    pub(crate) fn has_expired(&self, now: Time) -> bool {
        self.0.expires_at.is_some_and(|end| end <= now)
    }

    /// The name, for records of who did what.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// True for a token that an admin may list with its secret: one of Routemaster's API.
    pub(crate) fn is_listed(&self) -> bool {
        self.0.is_listed
    }

    /// Checks that the caller has one of these scopes. Admins have all.
    pub(crate) fn needs(&self, any: &[Scope]) -> Answer<()> {
        let has = |scope: &Scope| *scope == Scope::Admin || any.contains(scope);
        if self.0.scopes.iter().any(has) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks a scope in a topic. The answer does not tell whether the topic exists.
    pub(crate) fn topic(&self, any: &[Scope], topic: &str) -> Answer<()> {
        self.needs(any)?;
        if self.sees_topic(topic) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks a scope in a subscription by its name.
    pub(crate) fn subscription(&self, any: &[Scope], name: &str) -> Answer<()> {
        self.needs(any)?;
        if matches(&self.0.subscriptions, name) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks a scope in all subscriptions that a pattern means, be they there or not: one of the caller's patterns has to cover it.
    pub(crate) fn covers(&self, any: &[Scope], pattern: &Pattern) -> Answer<()> {
        self.needs(any)?;
        let own = self.0.subscriptions.as_deref();
        if own.is_none_or(|own| own.iter().any(|own| own.covers(pattern))) {
            Ok(())
        } else {
            Err(forbidden())
        }
    }

    /// The topics that the caller is limited to.
    pub(crate) fn topics(&self) -> Option<&[Pattern]> {
        self.0.topics.as_deref()
    }

    /// True if nothing in these topics is hidden from the caller; `None` stands for all.
    pub(crate) fn covers_topics(&self, topics: Option<&[Pattern]>) -> bool {
        match (&self.0.topics, topics) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(all)) => all.iter().all(|one| own.iter().any(|own| own.covers(one))),
        }
    }

    /// Checks that everything a subscription consumes may be seen too.
    pub(crate) fn consumes<T: AsRef<str>>(&self, topics: &[T]) -> Answer<()> {
        if topics.iter().all(|topic| self.sees_topic(topic.as_ref())) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks that the caller is an admin of everything.
    pub(crate) fn everywhere(&self) -> Answer<()> {
        self.needs(&[])?;
        let limited = self.0.topics.is_some() || self.0.subscriptions.is_some();
        if limited { Err(forbidden()) } else { Ok(()) }
    }

    /// True if no topic is hidden from the caller.
    pub(crate) fn sees_all_topics(&self) -> bool {
        self.0.topics.is_none()
    }

    pub(crate) fn sees_topic(&self, topic: &str) -> bool {
        matches(&self.0.topics, topic)
    }

    pub(crate) fn sees(&self, subscription: &Subscription) -> bool {
        matches(&self.0.subscriptions, &subscription.name)
            && subscription.topics.iter().all(|topic| self.sees_topic(topic))
    }

    /// The names of those of these subscriptions that may be told.
    pub(crate) fn visible(&self, all: &[Subscription]) -> HashSet<Arc<str>> {
        all.iter().filter(|one| self.sees(one)).map(|one| one.name.clone()).collect()
    }
}

fn matches(patterns: &Option<Vec<Pattern>>, name: &str) -> bool {
    patterns.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(name)))
}

pub(crate) fn forbidden() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "the token does not allow this here",
        "use a token with the scope and a pattern for this name",
    )
}

pub(crate) fn unauthorized(detail: &str) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        detail,
        "send a valid token as `Authorization: Bearer ..`, or as the user name of Basic",
    )
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Caller> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| unauthorized("nobody has checked the token"))
    }
}
