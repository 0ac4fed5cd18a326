//! Readers of a log, and the server they ask.

use crate::bed::{Private, event, read_log, server};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tramline::model::id::{EventId, Incarnation};
use tramline::store::Store;

/// The story: how far a log was complete was remembered for as long as the process lived. After a fail-over to a standby that lacked the
/// last events, their numbers were drawn again, and readers passed over the one that was still being written.
#[tokio::test]
async fn a_server_that_takes_over_and_lacks_events_is_asked_anew_how_far_its_log_is_complete() {
    let store = open_with_start().await;
    let mut all = Vec::new();
    for key in ["a", "b", "c"] {
        all.push(store.emit(event(key)).await.unwrap().events[0].id);
    }
    assert_eq!(read(&store, EventId(0)).await, all);
    // The one that takes over has only the first of them.
    let last = all[0].chunk().0;
    let sql = format!(
        "DELETE FROM $s.tramline_chunk WHERE chunk > {last}; SELECT setval('$s.tramline_chunk_number', {last}); \
         UPDATE $s.started SET at = at + '1 hour'"
    );
    store.rows(&sql).await;
    let mut writer = store.store.pool().begin().await.unwrap();
    let early = store.store.emit_in(&mut writer, [event("d")]).await.unwrap().events[0].id;
    let late = store.emit(event("e")).await.unwrap().events[0].id;
    assert_eq!((early, late), (all[1], all[2]), "the numbers are drawn again");
    assert_eq!(read(&store, all[0]).await, [], "somebody still writes below what is stored");
    writer.commit().await.unwrap();
    assert_eq!(read(&store, all[0]).await, [early, late]);
    store.close().await;
}

async fn read(store: &Private, after: EventId) -> Vec<EventId> {
    store.store.read_log(read_log(after)).await.unwrap().events.iter().map(|event| event.id).collect()
}

/// A store whose server says that it started when a table says so.
async fn open_with_start() -> Private {
    let schema = format!("only_{:x}", Incarnation::random().0);
    let mut admin = PgConnection::connect(&server()).await.unwrap();
    let sql = format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.started AS SELECT now() AS at; \
         CREATE FUNCTION {schema}.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql \
         AS 'SELECT at FROM {schema}.started'"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    // Named in the search path, the catalogue of the system is looked at in its turn and not before all others.
    let path = format!("&options=-c%20search_path%3D{schema}%2Cpg_catalog");
    Private::open_in(&server(), schema, &path).await
}
