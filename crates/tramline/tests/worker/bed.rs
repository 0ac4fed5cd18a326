//! The words in which the tests are written.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tramline::{Counts, Event, StoredEvent, Tramline, Worker};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// A lease whose end no test waits for.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) fn event(payload: &str) -> Event {
    Event::new("t", payload.to_owned())
}

pub(crate) fn text(event: &StoredEvent) -> String {
    String::from_utf8(event.payload.to_vec()).unwrap()
}

/// What the subscription `w` has; nothing if there is none.
pub(crate) async fn counts(tram: &Tramline) -> Counts {
    tram.stats("w").await.map(|stats| stats.counts).unwrap_or_default()
}

/// A worker `w` whose handlers tell that they have begun, and wait until they are let go.
pub(crate) fn waiting(tram: &Tramline, ordered: bool) -> (Worker, mpsc::UnboundedReceiver<()>, Arc<Notify>) {
    let (tell, begun) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let may_end = go_on.clone();
    let worker = tram.worker("w").topics(["t"]).on_any(move || {
        let (tell, go_on) = (tell.clone(), may_end.clone());
        async move {
            tell.send(()).unwrap();
            go_on.notified().await;
        }
    });
    (if ordered { worker.ordered_by_key() } else { worker }, begun, go_on)
}

/// A handler's notes, in the order in which they were taken.
#[derive(Clone, Default)]
pub(crate) struct Notes(pub(crate) Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}
