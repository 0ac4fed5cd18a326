//! Changing a subscription: what is there is read, and something is written only if it still is what was read. So of two who change it
//! at once, on whichever nodes, none undoes what the other did. Whoever changes one goes round: read, decide, write, until the write
//! is taken.

use crate::http::app::App;
use crate::http::problem::{Answer, Problem};
use axum::http::StatusCode;
use tokio::sync::MutexGuard;
use tramline::store::verbs::{Expected, PutSubscription};
use tramline::{Kind, Policy, Start, Subscription};

/// How often others may be faster. Nodes that change one subscription at the same moment are rare, and one of them always gets on.
const TRIES: u32 = 20;

/// A change of one subscription. Those of this node wait for each other, so only other nodes can be faster.
pub(crate) struct Change<'a> {
    app: &'a App,
    name: &'a str,
    expected: Expected,
    tries: u32,
    _alone: MutexGuard<'a, ()>,
}

impl<'a> Change<'a> {
    pub(crate) async fn begin(app: &'a App, name: &'a str) -> Change<'a> {
        let alone = app.changing.lock().await;
        Change { app, name, expected: Expected::Nothing, tries: 0, _alone: alone }
    }

    /// The subscription as it is now.
    pub(crate) async fn read(&mut self) -> Answer<Option<Subscription>> {
        let all = self.app.ask(self.app.tram.subscriptions()).await?;
        let found = all.into_iter().find(|subscription| &*subscription.name == self.name);
        self.expected = match &found {
            Some(found) => Expected::This(Box::new(found.clone())),
            None => Expected::Nothing,
        };
        Ok(found)
    }

    /// Writes it, if it still is as it was read. `None`: somebody else has changed it; read it again.
    pub(crate) async fn write(
        &mut self,
        topics: &[&str],
        policy: Policy,
        start: Start,
    ) -> Answer<Option<Subscription>> {
        let put = PutSubscription {
            name: self.name.to_owned(),
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            policy,
            start,
            expected: self.expected.clone(),
            now: None,
        };
        self.app.forget(self.name);
        let written = self.app.ask(async {
            match self.app.tram.change_subscription(put).await {
                Err(error) if error.kind() == Kind::Changed => Ok(None),
                written => written.map(Some),
            }
        });
        let written = written.await?;
        self.app.forget(self.name);
        self.tries += 1;
        if written.is_none() && self.tries == TRIES {
            let detail = format!("subscription {:?} is being changed by many at once", self.name);
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "try again in a moment"));
        }
        Ok(written)
    }
}
