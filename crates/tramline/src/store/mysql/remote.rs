//! Workers that claim through a node: who was seen lately.

use super::session::Session;
use super::sql::{Columns, insert, text};
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::store::verbs::{REMEMBERED, RemoteWorker, SeeRemote};
use sqlx::mysql::MySqlRow;
use std::collections::BTreeMap;

/// Sorted, so that two nodes never wait in a circle. The columns are set one after the other: whether somebody was forgotten has to be
/// asked before `seen_at` is set.
pub(super) fn see(session: &mut Session<'_>, see: &SeeRemote) {
    let mut seen: BTreeMap<(i64, &str), u64> = BTreeMap::new();
    for one in &see.workers {
        if session.catalog.require_subscription(one.subscription).is_ok() {
            *seen.entry((one.subscription.0, &one.name)).or_default() += one.claims;
        }
    }
    let (now, forgotten) = (session.now.0, session.now.before(REMEMBERED).0);
    let rows = seen.iter().map(|((id, name), claims)| format!("({id},{},{now},{now},{claims})", text(name)));
    let tail = format!(
        " ON DUPLICATE KEY UPDATE born_at = IF(seen_at <= {forgotten}, VALUES(born_at), born_at), \
         claims = IF(seen_at <= {forgotten}, 0, claims) + VALUES(claims), seen_at = GREATEST(seen_at, VALUES(seen_at))"
    );
    let head = "INSERT INTO tramline_remote (subscription, name, born_at, seen_at, claims) VALUES ";
    session.write_all(insert(head, rows, &tail, session.common.packet));
}

pub(super) async fn all(session: &mut Session<'_>) -> Result<Vec<RemoteWorker>> {
    let sql = format!(
        "SELECT subscription, name, born_at, seen_at, claims FROM tramline_remote WHERE seen_at > {} \
         ORDER BY name, subscription",
        session.now.before(REMEMBERED).0
    );
    let worker = |row: &MySqlRow| {
        Ok(RemoteWorker {
            subscription: SubscriptionId(row.int(0)?),
            name: row.text(1)?,
            born_at: row.time(2)?,
            seen_at: row.time(3)?,
            claims: row.int(4)?.max(0).cast_unsigned(),
        })
    };
    session.rows(sql).await?.iter().map(worker).collect()
}

/// Forgets who was not seen for long.
pub(super) fn expire(session: &mut Session<'_>, limit: u32) {
    let forgotten = session.now.before(REMEMBERED).0;
    session.write(format!(
        "DELETE FROM tramline_remote WHERE seen_at <= {forgotten} ORDER BY subscription, name LIMIT {limit}"
    ));
}
